"""What every change shares: the request, the checks before it, its audit leaf, and the answer to its repetition.

`changes.Changes` and `policy_changes.PolicyChanges` build on it. Decides nothing about devices or policy.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from ztdpu.control.audit import AuditEvent, AuditOutcome
from ztdpu.control.devices.record import AnsweredRequest
from ztdpu.control.doors.authorisation import Caller
from ztdpu.control.fleet import Fleet
from ztdpu.control.store.store import Transaction
from ztdpu.errors import ConflictError, PolicyRefusedError, StateError, UsageError, ZtdpuError
from ztdpu.telemetry import get_logger

REASON_LIMIT: Final = 512
REQUEST_ID_LIMIT: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRequest:
    """What every change carries."""

    caller: Caller
    method: str
    """Word for the audit log: `revoke-device`."""
    subject: str
    reason: str
    request_id: str = ""
    expected_version: int = 0
    """0: whatever it is now."""
    parameters: str = ""
    """Everything else that tells two requests apart."""

    @property
    def sha256(self) -> bytes:
        """The request without its id: the same id with another request is a mistake, not a repetition."""
        fields = [self.method, self.subject, self.reason, self.expected_version, self.parameters]
        return hashlib.sha256(json.dumps(fields).encode()).digest()

    def event(self, outcome: AuditOutcome = AuditOutcome.DONE, **detail: str | int) -> AuditEvent:
        """The audit line of this request."""
        return AuditEvent(
            actor=self.caller.name,
            role=str(self.caller.role),
            action=self.method,
            subject=self.subject,
            outcome=outcome,
            reason=self.reason,
            request_id=self.request_id,
            detail=detail,
        )

    def refusal(self, error: ZtdpuError) -> AuditEvent:
        """The audit line of this request when it is refused: the code word, and the actor's own words beside it."""
        detail: dict[str, str | int] = {"message": error.message[:300], "said": self.reason[:REASON_LIMIT]}
        if isinstance(error, PolicyRefusedError):
            detail |= {"faults": len(error.faults), "first": str(error.faults[0])[:300]}
        return dataclasses.replace(self.event(AuditOutcome.REFUSED, **detail), reason=error.code)


class ChangeSteps:
    """The steps; a change is a method of a subclass."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    @contextmanager
    def audited(self, request: ChangeRequest, *, dry_run: bool = False) -> Iterator[None]:
        """Up to and with the commit of a change: what is refused in it leaves a leaf. A dry run asks only."""
        try:
            yield
        except ZtdpuError as error:
            if not dry_run:
                self._audit_refusal(request, error)
            raise

    def _audit_refusal(self, request: ChangeRequest, error: ZtdpuError) -> None:
        try:
            self._fleet.audit(request.refusal(error))
        except StateError as cause:  # a full disk is what refused it: the caller shall hear of that
            get_logger().error("refusal-not-audited", method=request.method, cause=str(cause))

    def _check(self, request: ChangeRequest, *, dry_run: bool, is_device: bool = True) -> None:
        if is_device:
            self._fleet.record(request.subject)
        if not request.reason.strip() and not dry_run:
            raise UsageError("a change wants a reason", remedy="say why; it stands in the audit log")
        if len(request.reason) > REASON_LIMIT or len(request.request_id) > REQUEST_ID_LIMIT:
            raise UsageError(f"reason or request id is too long ({REASON_LIMIT} and {REQUEST_ID_LIMIT} characters)")

    def _earlier(self, transaction: Transaction, request: ChangeRequest) -> dict[str, Any] | None:
        """What was answered to the same request before."""
        if not request.request_id:
            return None
        answered = transaction.get_answer(request.request_id)
        if answered is None:
            return None
        if (answered.actor, answered.request_sha256) != (request.caller.name, request.sha256):
            raise ConflictError("this request id belongs to another request", remedy="use a fresh one")
        answer: dict[str, Any] = json.loads(answered.answer)
        return answer

    def _remember(self, transaction: Transaction, request: ChangeRequest, answer: dict[str, Any]) -> None:
        if request.request_id:
            transaction.put_answer(
                AnsweredRequest(
                    request_id=request.request_id,
                    actor=request.caller.name,
                    method=request.method,
                    request_sha256=request.sha256,
                    answer=json.dumps(answer).encode(),
                )
            )
