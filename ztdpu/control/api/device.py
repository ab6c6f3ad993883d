"""DeviceService."""

# ruff: noqa: N802 - gRPC fixes the names of methods
from __future__ import annotations

from typing import Any

from ztdpu.control.change_steps import ChangeRequest
from ztdpu.control.changes import Changes
from ztdpu.control.doors.authorisation import ACCESS
from ztdpu.control.fleet import Fleet
from ztdpu.control.meters import Meters
from ztdpu.control.view import view_device_for
from ztdpu.errors import NotFoundError
from ztdpu.rpc.convert.device import change_to_message, device_to_message, token_to_message
from ztdpu.v1 import device_pb2, device_pb2_grpc


class DeviceServicer(device_pb2_grpc.DeviceServiceServicer):
    """Devices as admins see and change them."""

    def __init__(self, fleet: Fleet, changes: Changes, meters: Meters) -> None:
        self._fleet = fleet
        self._changes = changes
        self._meters = meters

    def _in_reach(self, device: str) -> bool:
        return ACCESS.get().sees_device(device, self._fleet.desired.tenants_on(device))

    async def ListDevices(self, _request: Any, _context: Any) -> device_pb2.ListDevicesResponse:
        """Devices in reach, by name."""
        access = ACCESS.get()
        return device_pb2.ListDevicesResponse(
            generation=self._fleet.generation,
            devices=[
                device_to_message(view_device_for(self._fleet, name, access))
                for name in self._fleet.names()
                if self._in_reach(name)
            ],
        )

    async def GetDevice(self, request: device_pb2.GetDeviceRequest, _context: Any) -> device_pb2.Device:
        """One device."""
        if not self._in_reach(request.name):
            raise NotFoundError(f"no device {request.name!r}")
        return device_to_message(view_device_for(self._fleet, request.name, ACCESS.get()))

    async def CreateJoinToken(self, request: device_pb2.CreateJoinTokenRequest, _context: Any) -> device_pb2.JoinToken:
        """A token for one enrolment."""
        change = ChangeRequest(
            caller=ACCESS.get().caller,
            method="create-join-token",
            subject=request.name,
            reason=request.reason,
            request_id=request.request_id,
        )
        return token_to_message(self._changes.create_join_token(change, ttl_s=request.ttl_s))

    async def RevokeDevice(
        self, request: device_pb2.ChangeDeviceRequest, _context: Any
    ) -> device_pb2.ChangeDeviceResponse:
        """Revoke."""
        answer = await self._changes.revoke(_change("revoke-device", request), dry_run=request.dry_run)
        for peer in answer.peers:
            self._meters.revocation_seconds.observe(peer.duration_ms / 1000)
        return change_to_message(answer)

    async def QuarantineDevice(
        self, request: device_pb2.ChangeDeviceRequest, _context: Any
    ) -> device_pb2.ChangeDeviceResponse:
        """Quarantine."""
        answer = await self._changes.quarantine(_change("quarantine-device", request), dry_run=request.dry_run)
        return change_to_message(answer)

    async def RestoreDevice(
        self, request: device_pb2.ChangeDeviceRequest, _context: Any
    ) -> device_pb2.ChangeDeviceResponse:
        """Restore."""
        answer = self._changes.restore(
            _change("restore-device", request), dry_run=request.dry_run, allow_rollback=request.allow_rollback
        )
        return change_to_message(answer)


def _change(method: str, request: device_pb2.ChangeDeviceRequest) -> ChangeRequest:
    return ChangeRequest(
        caller=ACCESS.get().caller,
        method=method,
        subject=request.name,
        reason=request.reason,
        request_id=request.request_id,
        expected_version=request.expected_version,
        parameters=f"allow_rollback={request.allow_rollback}",
    )
