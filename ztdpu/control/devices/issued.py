"""What was issued to a device last, kept beside its record: which certificates may speak for it, and who signed them.

The newest two count, since a device goes over to a new SVID while its older stream still stands. Written by
`appraisal.conclusion` in the transaction that grants, asked by the agent's servicer and by whoever shows identities.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from cryptography import x509

from ztdpu.control.store.store import Transaction

KEPT: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedSvid:
    """One X.509-SVID."""

    serial: str
    """Hexadecimal."""
    authority: str
    """Name of the authority that signed it."""
    spki_sha256: str
    not_before_unix_s: int
    not_after_unix_s: int


def describe_svid(certificate: x509.Certificate, *, authority: str, spki_sha256: bytes) -> IssuedSvid:
    """What is kept of one."""
    return IssuedSvid(
        serial=f"{certificate.serial_number:x}",
        authority=authority,
        spki_sha256=spki_sha256.hex(),
        not_before_unix_s=int(certificate.not_valid_before_utc.timestamp()),
        not_after_unix_s=int(certificate.not_valid_after_utc.timestamp()),
    )


def read_issued(transaction: Transaction, device: str) -> Sequence[IssuedSvid]:
    """The newest ones, newest first; empty before the first."""
    return _decode(transaction.get_text(_name(device)))


def read_all_newest(transaction: Transaction) -> Mapping[str, IssuedSvid]:
    """Device -> the newest one, for all that were issued any."""
    return {
        name.removeprefix(_name("")): newest
        for name, text in transaction.list_texts(_name("")).items()
        for newest in _decode(text)[:1]
    }


def note_issued(transaction: Transaction, device: str, issued: IssuedSvid) -> None:
    """Keep one more, and forget the oldest."""
    kept = [issued, *read_issued(transaction, device)][:KEPT]
    transaction.put_text(_name(device), json.dumps([asdict(one) for one in kept]))


def _decode(text: str) -> Sequence[IssuedSvid]:
    return [IssuedSvid(**one) for one in json.loads(text)] if text else []


def _name(device: str) -> str:
    return f"svid:{device}"
