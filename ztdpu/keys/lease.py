"""The numbers of a lease: when it ends on either side, and when a clock can no longer be believed.

    agent    t0 = BOOTTIME, asks                      deadline = t0 + duration x 0.999, at most t0 + own maximum
    control                    t1 = BOOTTIME, commits  deadline = t1 + duration

t0 lies before t1, so the agent always ends first, also when its clock runs 0.1 % slow. Durations and deadlines
are on CLOCK_BOOTTIME, which counts suspend; wall clocks play no part. Used by control, the agent's daemon,
worker and reducer. Pure: the clocks are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ztdpu.errors import LeaseError

LEASE_S_MIN: Final = 2
LEASE_S_MAX: Final = 3600
"""Bounds of what a tenant may choose: its own bound on revocation while cut off."""
CLOCK_STEP_MAX_MS: Final = 2000
REVOCATION_GRACE_MS: Final = 2000
"""A revocation younger than this may still be on its way to an agent that asks for a lease."""
_NS_PER_S: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000
_AGENT_PER_MILLE: Final = 999


def grant_deadline_ns(asked_boottime_ns: int, duration_ms: int, max_lease_s: int) -> int:
    """Return the agent's deadline on its CLOCK_BOOTTIME, counted from before it asked.

    Raises LeaseError for a duration or a maximum that is not positive.
    """
    if duration_ms <= 0 or max_lease_s <= 0:
        raise LeaseError("a lease lasts longer than nothing")
    return asked_boottime_ns + min(duration_ms * _NS_PER_MS * _AGENT_PER_MILLE // 1000, max_lease_s * _NS_PER_S)


def control_deadline_ns(granted_boottime_ns: int, duration_ms: int) -> int:
    """Return control's deadline for the same lease, on control's CLOCK_BOOTTIME at the commit.

    Raises LeaseError for a duration that is not positive.
    """
    if duration_ms <= 0:
        raise LeaseError("a lease lasts longer than nothing")
    return granted_boottime_ns + duration_ms * _NS_PER_MS


def remaining_ms(deadline_ns: int, now_boottime_ns: int) -> int:
    """Return whole milliseconds left, never below 0."""
    return max(0, (deadline_ns - now_boottime_ns) // _NS_PER_MS)


def check_deadline(deadline_ns: int, now_boottime_ns: int) -> None:
    """Raise LeaseError when there is no lease (deadline 0) or it has ended; its last nanosecond is outside."""
    if now_boottime_ns >= deadline_ns:
        raise LeaseError("there is no lease" if deadline_ns <= 0 else "the lease has ended")


def check_lease_s(lease_s: int) -> None:
    """Raise LeaseError for a lease that no tenant may choose."""
    if not LEASE_S_MIN <= lease_s <= LEASE_S_MAX:
        raise LeaseError(f"a lease of {lease_s} s is outside {LEASE_S_MIN} to {LEASE_S_MAX} s")


def clock_offset_ns(realtime_ns: int, boottime_ns: int) -> int:
    """Return REALTIME minus BOOTTIME: constant but for steps and slewing."""
    return realtime_ns - boottime_ns


def clock_step_ms(offset_at_grant_ns: int, offset_now_ns: int) -> int:
    """Return by how much the clocks moved against each other since the grant, towards zero in whole ms."""
    step_ns = offset_now_ns - offset_at_grant_ns
    return step_ns // _NS_PER_MS if step_ns >= 0 else -(-step_ns // _NS_PER_MS)


def check_clock_step(offset_at_grant_ns: int, offset_now_ns: int) -> None:
    """Raise LeaseError for a step of over 2 s either way: clock doubt, all keys go, evidence must be fresh."""
    if abs(offset_now_ns - offset_at_grant_ns) > CLOCK_STEP_MAX_MS * _NS_PER_MS:
        raise LeaseError(f"the clock stepped by {clock_step_ms(offset_at_grant_ns, offset_now_ns)} ms")


def check_revocations_applied(
    applied_generation: int, revocations: Iterable[tuple[int, int]], now_boottime_ns: int
) -> None:
    """Raise LeaseError unless every revocation older than 2 s was applied.

    `revocations` are (generation, CLOCK_BOOTTIME ns of its commit) at control.
    """
    for generation, committed_ns in revocations:
        if generation > applied_generation and now_boottime_ns - committed_ns > REVOCATION_GRACE_MS * _NS_PER_MS:
            raise LeaseError("a revocation has not been applied yet")
