"""Which authorities there are and how each stands: prepared, active, replaced. Values, and their form in the store.

One is active and signs; a prepared one is believed already and signs nothing yet; a replaced one is still believed.
Called by `issue` (to sign and to verify) and `rotation` (to change). No I/O of its own: the
record is a text in control's store, keys are in a `SigningKeyStore` under the name that stands in the record.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from ztdpu.errors import ConfigurationError, StateError, SvidError
from ztdpu.trust.authority import AUTHORITY_CURVES
from ztdpu.trust.certificate import ec_public_key, spki_sha256

NAME_OCTETS: Final = 8


class AuthorityState(StrEnum):
    """How an authority stands."""

    PREPARED = "prepared"
    ACTIVE = "active"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityRecord:
    """One authority."""

    key_name: str
    """In the key store."""
    certificate: x509.Certificate
    state: AuthorityState
    since_unix_ms: int

    @property
    def name(self) -> str:
        """The first octets of the SHA-256 of its key, hexadecimal."""
        return authority_name(self.certificate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """All of them, oldest first, and the sequence of the bundle that they make."""

    authorities: tuple[AuthorityRecord, ...]
    sequence: int

    @property
    def active(self) -> AuthorityRecord:
        """The one that signs."""
        return next(one for one in self.authorities if one.state is AuthorityState.ACTIVE)

    def find(self, state: AuthorityState) -> AuthorityRecord | None:
        """The one in this state; there is at most one in each."""
        return next((one for one in self.authorities if one.state is state), None)

    def prepare(self, record: AuthorityRecord, *, now_unix_ms: int) -> Standing:
        """Believe a new one. StateError while another rotation is under way."""
        for state, remedy in ((AuthorityState.PREPARED, "activate"), (AuthorityState.REPLACED, "retire")):
            other = self.find(state)
            if other is not None:
                raise StateError(
                    f"authority {other.name} is {state}: a rotation is under way",
                    remedy=f"`ztdpu identity rotate-authority {remedy}` ends it",
                )
        return Standing(authorities=(*self.authorities, record), sequence=self._next(now_unix_ms))

    def activate(self, *, now_unix_ms: int) -> Standing:
        """Sign with the prepared one. StateError without one."""
        if self.find(AuthorityState.PREPARED) is None:
            raise StateError("no authority is prepared", remedy="`ztdpu identity rotate-authority prepare` first")
        following = {
            AuthorityState.PREPARED: AuthorityState.ACTIVE,
            AuthorityState.ACTIVE: AuthorityState.REPLACED,
        }
        moved = tuple(
            replace(one, state=following.get(one.state, one.state), since_unix_ms=now_unix_ms)
            for one in self.authorities
        )
        return Standing(authorities=moved, sequence=self.sequence)

    def retire(self, *, now_unix_ms: int) -> Standing:
        """Believe the replaced one no more. StateError without one."""
        if self.find(AuthorityState.REPLACED) is None:
            raise StateError("no authority is replaced", remedy="`ztdpu identity rotate-authority activate` first")
        kept = tuple(one for one in self.authorities if one.state is not AuthorityState.REPLACED)
        return Standing(authorities=kept, sequence=self._next(now_unix_ms))

    def _next(self, now_unix_ms: int) -> int:
        return max(self.sequence + 1, now_unix_ms)


def authority_name(certificate: x509.Certificate) -> str:
    """What people call it. SvidError for a key that no authority has."""
    key = ec_public_key(certificate, curves=AUTHORITY_CURVES, refusal=SvidError)
    return spki_sha256(key)[:NAME_OCTETS].hex()


def encode_standing(standing: Standing) -> str:
    """Text for the store."""
    return json.dumps(
        {
            "sequence": standing.sequence,
            "authorities": [
                {
                    "key": one.key_name,
                    "state": str(one.state),
                    "since_unix_ms": one.since_unix_ms,
                    "certificate": one.certificate.public_bytes(Encoding.PEM).decode(),
                }
                for one in standing.authorities
            ],
        }
    )


def decode_standing(text: str) -> Standing:
    """Read it again. ConfigurationError when the store holds something else."""
    try:
        fields = json.loads(text)
        authorities: Sequence[AuthorityRecord] = [
            AuthorityRecord(
                key_name=str(one["key"]),
                state=AuthorityState(one["state"]),
                since_unix_ms=int(one["since_unix_ms"]),
                certificate=x509.load_pem_x509_certificate(one["certificate"].encode()),
            )
            for one in fields["authorities"]
        ]
        standing = Standing(authorities=tuple(authorities), sequence=int(fields["sequence"]))
        _ = standing.active
    except (ValueError, TypeError, KeyError, StopIteration) as error:
        raise ConfigurationError(
            "control's record of its authorities is damaged", remedy="restore control.db from a backup"
        ) from error
    return standing
