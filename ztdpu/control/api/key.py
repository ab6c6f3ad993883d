"""KeyService. No key material passes here."""

# ruff: noqa: N802 - gRPC fixes the names of methods
from __future__ import annotations

from typing import Any

from ztdpu.control.change_steps import ChangeRequest
from ztdpu.control.changes import Changes
from ztdpu.control.doors.authorisation import ACCESS, Access, Scope
from ztdpu.control.fleet import Fleet
from ztdpu.control.view import view_keys
from ztdpu.errors import PermissionDeniedError, UsageError
from ztdpu.rpc.convert.key import key_to_message, rotation_to_message
from ztdpu.v1 import key_pb2, key_pb2_grpc


class KeyServicer(key_pb2_grpc.KeyServiceServicer):
    """Epochs and rotation."""

    def __init__(self, fleet: Fleet, changes: Changes) -> None:
        self._fleet = fleet
        self._changes = changes

    async def ListKeys(self, _request: Any, _context: Any) -> key_pb2.ListKeysResponse:
        """Epochs of networks in reach."""
        access = ACCESS.get()
        return key_pb2.ListKeysResponse(
            keys=[key_to_message(key) for key in view_keys(self._fleet) if access.sees_tenant(key.tenant)]
        )

    async def RotateKeys(self, request: key_pb2.RotateKeysRequest, _context: Any) -> key_pb2.RotateKeysResponse:
        """Rotate a tenant's epoch key, or a device's master key (operators only)."""
        access, subject = ACCESS.get(), request.WhichOneof("subject")
        change = ChangeRequest(
            caller=access.caller,
            method=f"rotate-{subject}-key" if subject else "rotate-key",
            subject=request.tenant or request.device,
            reason=request.reason,
            request_id=request.request_id,
            parameters=f"force={request.force}",
        )
        with self._changes.audited(change):
            _require_reach(access, request)
        if subject == "device":
            return rotation_to_message(self._changes.rotate_device_key(change, force=request.force))
        return rotation_to_message(self._changes.rotate_tenant_key(change))


def _require_reach(access: Access, request: key_pb2.RotateKeysRequest) -> None:
    """UsageError, PermissionDeniedError, NotFoundError."""
    subject = request.WhichOneof("subject")
    if subject is None:
        raise UsageError("name a tenant or a device")
    if subject == "tenant":
        access.require_tenant(request.tenant, f"tenant {request.tenant!r}")
    elif access.scope is not Scope.ALL:
        raise PermissionDeniedError("a device's master key serves every tenant on it", remedy="ask an operator")
