"""Audit leaves, to and from messages."""

from __future__ import annotations

from ztdpu.model.administration import AuditEntry
from ztdpu.v1 import audit_pb2


def entry_to_message(entry: AuditEntry) -> audit_pb2.AuditEntry:
    """Message for a leaf."""
    return audit_pb2.AuditEntry(index=entry.index, leaf=entry.leaf, leaf_hash=entry.leaf_hash)


def entry_from_message(message: audit_pb2.AuditEntry) -> AuditEntry:
    """The leaf that a message carries."""
    return AuditEntry(index=message.index, leaf=message.leaf, leaf_hash=message.leaf_hash)
