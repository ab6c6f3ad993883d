"""PolicyService."""

# ruff: noqa: N802 - gRPC fixes the names of methods
from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from ztdpu.control.change_steps import ChangeRequest
from ztdpu.control.doors.authorisation import ACCESS
from ztdpu.control.fleet import Fleet
from ztdpu.control.policy.changes import PolicyChange, PolicyChanges
from ztdpu.control.policy.watch import PolicyWatch
from ztdpu.control.view import view_device_policy
from ztdpu.errors import Location, PolicyError, PolicyRefusedError
from ztdpu.model.administration import PolicyFaultPlace, PolicyStatus, PolicySync
from ztdpu.rpc.convert.policy import status_to_message, sync_to_message
from ztdpu.v1 import policy_pb2, policy_pb2_grpc


class PolicyServicer(policy_pb2_grpc.PolicyServiceServicer):
    """The policy in force, and how it changes."""

    def __init__(self, fleet: Fleet, changes: PolicyChanges, watch: PolicyWatch) -> None:
        self._fleet = fleet
        self._changes = changes
        self._watch = watch

    @property
    def faults(self) -> tuple[PolicyFaultPlace, ...]:
        """Of the last attempt, when it was refused."""
        refused = self._changes.faults
        return tuple(_fault(one) for one in refused.faults) if refused else ()

    async def SyncPolicy(self, request: policy_pb2.SyncPolicyRequest, _context: Any) -> policy_pb2.SyncPolicyResponse:
        """All or nothing; faults are part of the answer, not an error of the call."""
        return sync_to_message(await self.answer(self._changes.sync(self._change(request, "sync-policy"))))

    async def HoldPolicy(self, request: policy_pb2.HoldPolicyRequest, _context: Any) -> policy_pb2.SyncPolicyResponse:
        """Back to a commit that was in force."""
        change = self._change(request, "hold-policy", subject=request.commit)
        return sync_to_message(await self.answer(self._changes.hold(change, request.commit)))

    async def ResumePolicy(
        self, request: policy_pb2.ResumePolicyRequest, _context: Any
    ) -> policy_pb2.SyncPolicyResponse:
        """On to what the branch stands at."""
        return sync_to_message(await self.answer(self._changes.resume(self._change(request, "resume-policy"))))

    async def GetPolicyStatus(self, _request: Any, _context: Any) -> policy_pb2.PolicyStatus:
        """What is in force and who enforces it."""
        return status_to_message(self._status())

    async def answer(self, doing: Awaitable[PolicyChange]) -> PolicySync:
        """Carry a change out and tell how it ended."""
        try:
            done = await doing
        except PolicyRefusedError as error:
            return PolicySync(
                status=self._status(), changed_devices=(), faults=tuple(_fault(one) for one in error.faults)
            )
        return PolicySync(status=self._status(), changed_devices=done.changed, faults=())

    def _change(self, request: Any, method: str, *, subject: str = "") -> ChangeRequest:
        return ChangeRequest(
            caller=ACCESS.get().caller,
            method=method,
            subject=subject or self._changes.source.name,
            reason=request.reason,
            request_id=request.request_id,
        )

    def _status(self) -> PolicyStatus:
        source = self._changes.source
        loaded_unix_ms, generation = self._changes.loaded
        return PolicyStatus(
            directory=source.name,
            loaded_unix_ms=loaded_unix_ms,
            generation=generation,
            devices=tuple(view_device_policy(self._fleet, name) for name in self._fleet.names()),
            faults=self.faults,
            source=source,
            tests=self._watch.report,
        )


def _fault(error: PolicyError) -> PolicyFaultPlace:
    message = f"{error.message} ({error.remedy})" if error.remedy else error.message
    return PolicyFaultPlace(message=message, where=error.where or Location(file="", line=0))
