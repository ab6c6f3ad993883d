"""AuditService: leaves as they were hashed."""

# ruff: noqa: N802 - gRPC fixes the names of methods
from __future__ import annotations

from typing import Any, Final

from ztdpu.control.devices.record import AuditRecord
from ztdpu.control.fleet import Fleet
from ztdpu.errors import NotFoundError, UsageError
from ztdpu.model.administration import AuditEntry
from ztdpu.rpc.convert.audit import entry_to_message
from ztdpu.v1 import audit_pb2, audit_pb2_grpc

PAGE: Final = 100
PAGE_LIMIT: Final = 1000


class AuditServicer(audit_pb2_grpc.AuditServiceServicer):
    """Read only."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def ListAudit(self, request: audit_pb2.ListAuditRequest, _context: Any) -> audit_pb2.ListAuditResponse:
        """A page of leaves, oldest first."""
        limit = request.limit or PAGE
        if limit > PAGE_LIMIT:
            raise UsageError(f"a page has at most {PAGE_LIMIT} entries", remedy="ask for several pages")
        with self._fleet.transaction() as transaction:
            size = transaction.count_audit()
            first = max(0, size - limit) if request.newest else min(request.first, size)
            records = transaction.list_audit(first=first, limit=limit)
        return audit_pb2.ListAuditResponse(entries=[entry_to_message(_entry(one)) for one in records], tree_size=size)

    async def GetAudit(self, request: audit_pb2.GetAuditRequest, _context: Any) -> audit_pb2.AuditEntry:
        """One leaf."""
        with self._fleet.transaction() as transaction:
            size = transaction.count_audit()
            records = transaction.list_audit(first=request.index, limit=1) if request.index < size else []
        if not records:
            raise NotFoundError(f"no audit entry {request.index}", remedy=f"entries are 0 to {size - 1}")
        return entry_to_message(_entry(records[0]))


def _entry(record: AuditRecord) -> AuditEntry:
    return AuditEntry(index=record.index, leaf=record.leaf, leaf_hash=record.leaf_hash)
