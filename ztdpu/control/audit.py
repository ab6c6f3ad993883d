"""The audit log's leaves: their bytes and their hashes (RFC 9162 section 2.1.1). Pure.

A leaf is written in the transaction of the change that it tells about; a refusal has one of its own. What
is hashed is what is stored, verbatim: nothing is ever re-encoded to verify it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

TEXT_LIMIT = 512
"""Longest text of a field that somebody else wrote."""


class AuditOutcome(StrEnum):
    """How what was asked for ended."""

    DONE = "done"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """One line of the log, before it is a leaf."""

    actor: str
    """Who: `operator:uid=0`, a SPIFFE ID, `control`, or `unidentified`."""
    role: str
    action: str
    """`revoke-device`, `attest`, ..., or the full method name of a refused call."""
    subject: str
    """What it was done to."""
    outcome: AuditOutcome
    reason: str
    """The actor's words, or the code word of a refusal."""
    request_id: str = ""
    detail: Mapping[str, str | int] = field(default_factory=dict)


def encode_leaf(event: AuditEvent, *, now_unix_ms: int) -> bytes:
    """The leaf's bytes: JSON, sorted keys, ASCII."""
    document: dict[str, Any] = {
        "time_unix_ms": now_unix_ms,
        "actor": event.actor[:TEXT_LIMIT],
        "role": event.role,
        "action": event.action[:TEXT_LIMIT],
        "subject": event.subject[:TEXT_LIMIT],
        "outcome": str(event.outcome),
        "reason": event.reason[:TEXT_LIMIT],
        "request_id": event.request_id[:TEXT_LIMIT],
    }
    if event.detail:
        document["detail"] = dict(event.detail)
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def hash_leaf(leaf: bytes) -> bytes:
    """SHA-256(0x00 || leaf)."""
    return hashlib.sha256(b"\x00" + leaf).digest()


def hash_node(left: bytes, right: bytes) -> bytes:
    """SHA-256(0x01 || left || right)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def hash_tree(leaf_hashes: Sequence[bytes]) -> bytes:
    """Root of the Merkle tree over `leaf_hashes` (RFC 9162 section 2.1.1); of an empty one, SHA-256 of nothing."""
    if not leaf_hashes:
        return hashlib.sha256(b"").digest()
    if len(leaf_hashes) == 1:
        return leaf_hashes[0]
    split = 1 << (len(leaf_hashes) - 1).bit_length() - 1
    return hash_node(hash_tree(leaf_hashes[:split]), hash_tree(leaf_hashes[split:]))
