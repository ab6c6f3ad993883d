"""`allowed_signers` (the format of ssh-keygen(1), ALLOWED SIGNERS) and `revoked_signers`, read strictly.

    alice@example.org,ops@example.org namespaces="git" valid-before="20270101Z" ssh-ed25519 AAAA...

Refused although ssh-keygen takes it: patterns in principals or namespaces, `cert-authority`, RSA, and times without Z
(they would mean another moment on another machine).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from ztdpu.errors import CommitContentError, CommitSignatureError, Location
from ztdpu.trust.ssh_key import KEY_TYPES, SshKey, read_key

SIGNERS_LIMIT: Final = 4096
NAMESPACE: Final = "git"
_PRINCIPAL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@/-]{0,126}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9@._-]{0,63}")
_OPTION: Final = re.compile(r'([A-Za-z-]+)(?:="([^"]*)")?(?:,|$)')
_TIME: Final = re.compile(r"(\d{8})(\d{4})?(\d{2})?Z")
_FINGERPRINT: Final = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """One line: a key, whose it is, and when."""

    principals: frozenset[str]
    key: SshKey
    valid_after_unix_s: int | None
    valid_before_unix_s: int | None
    line: int

    def is_valid_at(self, unix_s: int) -> bool:
        """Whether the key counts at that moment: from `valid-after` on, before `valid-before`."""
        after, before = self.valid_after_unix_s, self.valid_before_unix_s
        return (after is None or unix_s >= after) and (before is None or unix_s < before)


def parse_allowed_signers(text: str, *, file: str) -> tuple[Signer, ...]:
    """Read the file. Lines for other namespaces than `git` are checked and left out.

    Raises:
        CommitContentError: the first line that is wrong, with its place.

    """
    signers: list[Signer] = []
    for number, line in _lines(text, file):
        where = Location(file=file, line=number)
        try:
            signer = _parse_line(line, number)
        except CommitContentError as error:
            raise CommitContentError(error.message, remedy=error.remedy, where=where) from None
        if signer is not None:
            signers.append(signer)
    if not signers:
        raise CommitContentError("no key that may sign commits", where=Location(file=file, line=0))
    return tuple(signers)


def parse_revoked_signers(text: str, *, file: str) -> frozenset[str]:
    """Fingerprints of keys that count no more: `SHA256:...` or public keys, one a line.

    Raises:
        CommitContentError: a line that is neither, with its place.

    """
    revoked: set[str] = set()
    for number, line in _lines(text, file):
        words = line.split()
        where = Location(file=file, line=number)
        if _FINGERPRINT.fullmatch(words[0]):
            revoked.add(words[0])
            continue
        if len(words) < 2:
            raise CommitContentError(
                "neither a public key nor a fingerprint SHA256:...",
                remedy="one of them a line; a binary revocation list (KRL) is not read",
                where=where,
            )
        try:
            revoked.add(read_key(words[0], words[1], refusal=CommitContentError).fingerprint)
        except CommitContentError as error:
            raise CommitContentError(error.message, where=where) from None
    return frozenset(revoked)


def find_principals(
    signers: Collection[Signer], key: SshKey, *, committed_unix_s: int, now_unix_s: int
) -> frozenset[str]:
    """Principals that the key speaks for, at the commit's own date and today.

    The date in a commit is its signer's to choose, so an old key must not sign under an old date: today counts too.

    Raises:
        CommitSignatureError: no line of the key holds at both moments.

    """
    lines = [signer for signer in signers if signer.key.blob == key.blob]
    both = (committed_unix_s, now_unix_s)
    principals = frozenset(
        principal for one in lines if all(map(one.is_valid_at, both)) for principal in one.principals
    )
    if not principals:
        names = ", ".join(sorted({principal for one in lines for principal in one.principals}))
        raise CommitSignatureError(
            f"the key {key.fingerprint} of {names} is outside its validity",
            remedy="sign with a key that is valid at the commit's date and now",
        )
    return principals


def _lines(text: str, file: str) -> list[tuple[int, str]]:
    if "\0" in text or "\r" in text:
        raise CommitContentError("not plain text with lines that end in LF", where=Location(file=file, line=0))
    numbered = enumerate(text.split("\n"), start=1)
    lines = [(number, line.strip()) for number, line in numbered if line.strip() and not line.lstrip().startswith("#")]
    if len(lines) > SIGNERS_LIMIT:
        raise CommitContentError(f"more than {SIGNERS_LIMIT} lines", where=Location(file=file, line=0))
    return lines


def _parse_line(line: str, number: int) -> Signer | None:
    principals, _, rest = line.partition(" ")
    names = principals.split(",")
    for name in names:
        if not _PRINCIPAL.fullmatch(name):
            raise CommitContentError(f"principal {name[:64]!r} is no plain name", remedy="patterns are not read")
    first = rest.lstrip().partition(" ")[0]
    options: dict[str, str | None] = {}
    if first not in KEY_TYPES and not first.startswith(("ssh-", "ecdsa-", "sk-")):
        written, rest = _split_options(rest.lstrip())
        options = _parse_options(written)
    words = rest.split()
    if len(words) < 2:
        raise CommitContentError("a key is missing: PRINCIPAL [OPTIONS] KEYTYPE BASE64")
    key = read_key(words[0], words[1], refusal=CommitContentError)
    if NAMESPACE not in (options.get("namespaces") or NAMESPACE).split(","):
        return None
    return Signer(
        principals=frozenset(names),
        key=key,
        valid_after_unix_s=_parse_time(options, "valid-after"),
        valid_before_unix_s=_parse_time(options, "valid-before"),
        line=number,
    )


def _split_options(text: str) -> tuple[str, str]:
    """(options, what follows the first blank outside quotes)."""
    is_quoted = False
    for index, character in enumerate(text):
        is_quoted ^= character == '"'
        if character == " " and not is_quoted:
            return text[:index], text[index:]
    return text, ""


def _parse_options(text: str) -> dict[str, str | None]:
    options: dict[str, str | None] = {}
    offset = 0
    while offset < len(text):
        match = _OPTION.match(text, offset)
        if match is None:
            raise CommitContentError(f"cannot read the options {text[offset : offset + 64]!r}")
        name, value = match[1].lower(), match[2]
        if name not in ("namespaces", "valid-after", "valid-before") or value is None:
            raise CommitContentError(
                f"option {match[1][:64]!r} is refused", remedy="namespaces, valid-after and valid-before are read"
            )
        if name in options:
            raise CommitContentError(f"option {name} is there twice")
        options[name] = value
        offset = match.end()
    for name in (options.get("namespaces") or NAMESPACE).split(","):
        if not _NAME.fullmatch(name):
            raise CommitContentError(f"namespace {name[:64]!r} is no plain name", remedy="patterns are not read")
    return options


def _parse_time(options: dict[str, str | None], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    match = _TIME.fullmatch(text)
    try:
        if match is None:
            raise ValueError(text)  # noqa: TRY301 - one way out for both
        digits = match[1] + (match[2] or "0000") + (match[3] or "00")
        moment = datetime.strptime(digits, "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        raise CommitContentError(
            f"{name} {text[:32]!r} is no time in UTC", remedy="write YYYYMMDDZ or YYYYMMDDHHMMSSZ, with the Z"
        ) from None
    return int(moment.timestamp())
