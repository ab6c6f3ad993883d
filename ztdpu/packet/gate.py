"""Whether anything may move at all: lease, clock doubt, fork. The first question for every packet.

The worker's loop has `packet.pipeline` call `begin_batch` with both clocks after every wake-up and before every
read, so no batch is longer than one super-packet or one GRO run; a lease needs no message to end. Reads no clock
itself.
"""

from __future__ import annotations

from typing import Final

from ztdpu.model.verdict import Reason

CLOCK_STEP_LIMIT_NS: Final = 2_000_000_000
"""A step of REALTIME minus BOOTTIME beyond this is clock doubt (protocols.md 3)."""


class Gate:
    """Open while a lease lasts in the process that got it, on clocks that did not step."""

    __slots__ = ("_deadline_ns", "_offset_ns", "_pid", "clock_step_ns", "now_s", "realtime_ns", "refusal")

    def __init__(self, *, pid: int) -> None:
        self._pid = pid
        self._deadline_ns = 0
        self._offset_ns = 0
        self.refusal: Reason | None = Reason.NO_LEASE
        """Why nothing moves; None while it may."""
        self.now_s = 0.0
        """CLOCK_BOOTTIME of this batch."""
        self.realtime_ns = 0
        """CLOCK_REALTIME of this batch."""
        self.clock_step_ns = 0
        """The step that caused clock doubt; 0 without doubt."""

    def set_lease(self, deadline_boottime_ns: int, *, boottime_ns: int, realtime_ns: int) -> None:
        """Move until `deadline_boottime_ns` at most; a future one ends clock doubt, a past one stops at once."""
        self._deadline_ns = deadline_boottime_ns
        if deadline_boottime_ns > boottime_ns:
            self._offset_ns = realtime_ns - boottime_ns
            self.clock_step_ns = 0

    def begin_batch(self, *, boottime_ns: int, realtime_ns: int, pid: int) -> Reason | None:
        """Return why nothing may move in this batch, or None; also kept in `refusal`."""
        self.now_s = boottime_ns / 1e9
        self.realtime_ns = realtime_ns
        self.refusal = self._judge(boottime_ns, realtime_ns, pid)
        return self.refusal

    def _judge(self, boottime_ns: int, realtime_ns: int, pid: int) -> Reason | None:
        if pid != self._pid:
            return Reason.FORKED
        if self.clock_step_ns:
            return Reason.CLOCK_DOUBT
        if boottime_ns >= self._deadline_ns:
            return Reason.NO_LEASE
        step_ns = realtime_ns - boottime_ns - self._offset_ns
        if abs(step_ns) > CLOCK_STEP_LIMIT_NS:
            self.clock_step_ns = step_ns
            return Reason.CLOCK_DOUBT
        return None
