"""PolicyService."""

# ruff: noqa: N802 - gRPC fixes the names of methods
from __future__ import annotations

from typing import Any

from ztdpu.control.authorisation import ACCESS
from ztdpu.control.change_steps import ChangeRequest
from ztdpu.control.fleet import Fleet
from ztdpu.control.policy_changes import PolicyChanges
from ztdpu.control.view import view_device_policy
from ztdpu.errors import Location, PolicyError, PolicyRefusedError
from ztdpu.model.administration import PolicyFaultPlace, PolicyStatus, PolicySync
from ztdpu.rpc.convert.policy import status_to_message, sync_to_message
from ztdpu.v1 import policy_pb2, policy_pb2_grpc


class PolicyServicer(policy_pb2_grpc.PolicyServiceServicer):
    """The policy in force, and loading it again."""

    def __init__(self, fleet: Fleet, changes: PolicyChanges, *, directory: str) -> None:
        self._fleet = fleet
        self._changes = changes
        self._directory = directory
        self._loaded_unix_ms = fleet.now().unix_ms
        self._loaded_generation = fleet.generation
        self.faults: tuple[PolicyFaultPlace, ...] = ()
        """Of the last attempt, when it was refused."""

    async def SyncPolicy(self, request: policy_pb2.SyncPolicyRequest, _context: Any) -> policy_pb2.SyncPolicyResponse:
        """All or nothing; faults are part of the answer, not an error of the call."""
        change = ChangeRequest(
            caller=ACCESS.get().caller,
            method="sync-policy",
            subject=self._directory,
            reason=request.reason,
            request_id=request.request_id,
        )
        return sync_to_message(self.sync(change))

    def sync(self, change: ChangeRequest) -> PolicySync:
        """Carry a sync out, whoever asked; keeps the faults for `GetPolicyStatus`."""
        try:
            done = self._changes.sync_policy(change)
        except PolicyRefusedError as error:
            self.faults = tuple(_fault(one) for one in error.faults)
            return PolicySync(status=self._status(), changed_devices=(), faults=self.faults)
        if not done.is_repeated:
            self.faults = ()
            self._loaded_unix_ms, self._loaded_generation = self._fleet.now().unix_ms, self._fleet.generation
        return PolicySync(status=self._status(), changed_devices=done.changed, faults=())

    async def GetPolicyStatus(self, _request: Any, _context: Any) -> policy_pb2.PolicyStatus:
        """What is in force and who enforces it."""
        return status_to_message(self._status())

    def _status(self) -> PolicyStatus:
        return PolicyStatus(
            directory=self._directory,
            loaded_unix_ms=self._loaded_unix_ms,
            generation=self._loaded_generation,
            devices=tuple(view_device_policy(self._fleet, name) for name in self._fleet.names()),
            faults=self.faults,
        )


def _fault(error: PolicyError) -> PolicyFaultPlace:
    message = f"{error.message} ({error.remedy})" if error.remedy else error.message
    return PolicyFaultPlace(message=message, where=error.where or Location(file="", line=0))
