"""The numbers of a lease: its bounds, and when it ends on either side.

    agent    t0 = BOOTTIME, asks                      deadline = t0 + duration x 0.999, at most t0 + own maximum
    control                    t1 = BOOTTIME, commits  deadline = t1 + duration

t0 lies before t1, so the agent always ends first, also when its clock runs 0.1 % slow. Durations and deadlines
are on CLOCK_BOOTTIME, which counts suspend; wall clocks play no part. Used by control and the agent's daemon; the
worker compares the deadline, and its clocks, in `packet.gate`. Pure: the clocks are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ztdpu.errors import LeaseError

LEASE_S_MIN: Final = 2
LEASE_S_MAX: Final = 3600
"""Bounds of what a tenant may choose: its own bound on revocation while cut off."""
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


def check_revocations_applied(applied_generation: int, revocations: Iterable[tuple[int, int]]) -> None:
    """Raise LeaseError unless every revocation older than 2 s was applied.

    `revocations` are (generation, ms since its commit).
    """
    if any(generation > applied_generation and age_ms > REVOCATION_GRACE_MS for generation, age_ms in revocations):
        raise LeaseError("revocations are not applied yet", remedy="the agent must be connected to the main port")
