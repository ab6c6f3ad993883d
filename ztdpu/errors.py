"""Every exception of ztdpu: its code, the exit status of the command line, and what to do next.

Raised anywhere, caught at the edges: the command line prints `message` and `remedy`, an RPC answers
with `code` alone (a peer never sees exception text), the worker counts a `Reason` instead.

Two families are kept apart: *ours* (configuration, usage, state: the person at the keyboard can mend
it) and *theirs* (`RefusedError` and below: something sent to us did not verify; the answer is no).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A place in a file that a person can open."""

    file: str
    line: int
    """1-based; 0 when only the file is known."""
    column: int = 0
    """1-based; 0 when only the line is known."""

    def __str__(self) -> str:
        if not self.line:
            return self.file
        return f"{self.file}:{self.line}:{self.column}" if self.column else f"{self.file}:{self.line}"


class ZtdpuError(Exception):
    """Root of all errors that ztdpu raises on purpose."""

    code: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 1

    def __init__(self, message: str, *, remedy: str = "", where: Location | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.where = where

    def __str__(self) -> str:
        return f"{self.where} {self.message}" if self.where else self.message


# --- ours: a person can mend it ---------------------------------------------------------------


class UsageError(ZtdpuError):
    """The command was called in a way that cannot work."""

    code = "usage"
    exit_status = 2


class ConfigurationError(ZtdpuError):
    """A start-up file is missing, malformed or contradicts itself."""

    code = "configuration"
    exit_status = 2


class PolicyError(ZtdpuError):
    """A policy document was refused; nothing of its directory is applied."""

    code = "policy"


class PolicyPathError(PolicyError):
    """There is no policy where it was looked for: the place is wrong, not a document."""

    code = "policy-path"
    exit_status = 2


class PolicyRefusedError(PolicyError):
    """Every fault found in one policy directory, so that one run mends them all."""

    def __init__(self, faults: tuple[PolicyError, ...]) -> None:
        super().__init__(f"{len(faults)} fault(s) in the policy", remedy="mend them and run `ztdpu policy lint` again")
        self.faults = faults

    def __str__(self) -> str:
        return "\n".join(str(fault) for fault in self.faults)


class UnreachableError(ZtdpuError):
    """Control (or another process of ours) did not answer."""

    code = "unreachable"
    exit_status = 3


class MachineError(ZtdpuError):
    """The machine lacks something that the command needs (a privilege, a program, a kernel feature)."""

    code = "environment"


class StateError(ZtdpuError):
    """The thing asked for is not possible in the present state."""

    code = "state"


class NotFoundError(ZtdpuError):
    """No device, tenant, endpoint or file of that name: a mistake in the question, as for UsageError."""

    code = "not-found"
    exit_status = 2


class ConflictError(ZtdpuError):
    """Somebody else changed it first (expected version differs), or the name is taken."""

    code = "conflict"


class PermissionDeniedError(ZtdpuError):
    """The caller's role does not allow this."""

    code = "permission-denied"


# --- theirs: it did not verify, the answer is no ----------------------------------------------


class IdentityMisuseError(PermissionDeniedError):
    """An identity was shown by somebody who does not hold the rest of what its owner holds."""

    code = "identity-misuse"


class RefusedError(ZtdpuError):
    """Something that a peer sent was refused. Subclasses name the station that refused."""

    code = "refused"


class PspError(RefusedError):
    """A PSP packet was refused before or by its authentication tag."""

    code = "psp"


class PspFormatError(PspError):
    """Header malformed: length, version, the always-one bit, crypt offset."""

    code = "psp-format"


class PspAuthenticationError(PspError):
    """The integrity check value does not match."""

    code = "psp-authentication"


class ReplayError(PspError):
    """The IV was seen before or lies behind the window (`too_old`)."""

    code = "psp-replay"

    def __init__(self, message: str, *, too_old: bool) -> None:
        super().__init__(message)
        self.too_old = too_old


class SaExhaustedError(PspError):
    """No SPI or IV is left under this master key or SA: rotate."""

    code = "sa-exhausted"


class TablesError(RefusedError):
    """A compiled tables blob is not canonical, not complete or not for this device."""

    code = "tables"


class EvidenceError(RefusedError):
    """Evidence does not parse or its signature does not verify: no appraisal takes place."""

    code = "evidence"


class SpdmError(EvidenceError):
    """An SPDM message is malformed, unexpected or an ERROR."""

    code = "spdm"


class CertificateError(EvidenceError):
    """A certificate chain does not lead to a pinned root by the rules of its profile."""

    code = "certificate"


class BindingError(EvidenceError):
    """A KeyBinding is malformed, stale, foreign or not signed by the Alias key."""

    code = "binding"


class RosterError(RefusedError):
    """The roster is not signed by an operator, goes back in serial or does not list the device."""

    code = "roster"


class SvidError(RefusedError):
    """An X.509-SVID breaks the SPIFFE rules or is outside its validity."""

    code = "svid"


class EarError(RefusedError):
    """An attestation result does not verify or is not fresh."""

    code = "ear"


class CorimError(RefusedError):
    """A reference manifest (CoRIM) is malformed, not signed by the named key, or says what ztdpu cannot check."""

    code = "corim"


class WireError(RefusedError):
    """The octets of a message are not one strictly encoded value of the expected shape."""

    code = "wire"


class ExchangeError(RefusedError):
    """An SA request, offer, confirmation or hint was refused."""

    code = "exchange"


class ExchangeBusyError(ExchangeError):
    """A repeated request came while its answer is being made: nothing is wrong."""

    code = "exchange-busy"


class LeaseError(RefusedError):
    """There is no lease, or it ended."""

    code = "lease"


class EpochKeyError(RefusedError):
    """Sealed epoch keys do not open with this key and context, or are malformed."""

    code = "epoch-key"


class CommitError(RefusedError):
    """A commit of the policy repository does not count; the last accepted one stays in force."""

    code = "commit"


class CommitSignatureError(CommitError):
    """A commit is not signed, or not by a key that counts."""

    code = "commit-signature"


class CommitOwnerError(CommitError):
    """A commit's signer does not own a path that it changes, or a file speaks for another tenant."""

    code = "commit-owner"


class CommitHistoryError(CommitError):
    """A commit does not go forward from the last accepted one."""

    code = "commit-history"


class CommitContentError(CommitError):
    """A commit holds what is not read (a link, a submodule, something too large), or is malformed."""

    code = "commit-content"
