"""Rules of rotation: when an SA is renewed, when it must stop, who lags, when an old master key may die.

    rotate master key -> hint -> requests -> new SAs -> confirmed or first packet -> 5 s drain -> old key dead

Make before break: the previous master key opens packets until every leased sender has switched, or a whole
lease (at least a minute) has passed. A second rotation would cut who still lags, so it needs force. PSP has no
forward secrecy within two rotations. Used by the agent's daemon and worker. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ztdpu.errors import SaExhaustedError, StateError
from ztdpu.psp.kdf import master_key_slot

SOFT_PACKETS: Final = 1 << 31
SOFT_OCTETS: Final = 1 << 38
SOFT_AGE_S: Final = 3600
HARD_OCTETS: Final = 1 << 40
DRAIN_S: Final = 5
OFFERED_S: Final = 30
"""A receive SA that was offered and never used is deleted after this."""
RETIRE_AFTER_S_MIN: Final = 60


class Cause(StrEnum):
    """Why an SA should be renewed."""

    AGE = "age"
    PACKETS = "packets"
    OCTETS = "octets"


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftLimits:
    """Past any of these a sender asks for a new SA and goes on with the old one meanwhile."""

    packets: int = SOFT_PACKETS
    octets: int = SOFT_OCTETS
    age_s: float = SOFT_AGE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveSa:
    """What the rules need to know of one receive SA."""

    peer: str
    spi: int
    network_id: bytes
    use: int
    lane: int
    in_use: bool
    """ACTIVE: a packet or a confirmation has come. OFFERED and DRAINING are not."""


def renewal_cause(*, packets: int, octets: int, age_s: float, limits: SoftLimits | None = None) -> Cause | None:
    """Return why an SA should be renewed now, None while it need not be."""
    limits = limits or SoftLimits()
    if age_s >= limits.age_s:
        return Cause.AGE
    if packets >= limits.packets:
        return Cause.PACKETS
    if octets >= limits.octets:
        return Cause.OCTETS
    return None


def check_hard_limit(octets: int) -> None:
    """Raise SaExhaustedError when nothing more may be sealed under this SA."""
    if octets >= HARD_OCTETS:
        raise SaExhaustedError("the SA has sealed all that it may", remedy="ask the peer for a new one")


def lagging_senders(sas: Iterable[ReceiveSa], *, active_slot: int, leased: Collection[str]) -> tuple[str, ...]:
    """Return the leased peers that still send under the previous master key, sorted.

    A peer lags while any SA in use under the other slot has no SA in use under `active_slot` for the same
    network, use and lane. A peer without a lease cannot switch and is not waited for.
    """
    old: set[tuple[str, bytes, int, int]] = set()
    new: set[tuple[str, bytes, int, int]] = set()
    for sa in sas:
        if sa.in_use and sa.peer in leased:
            side = new if master_key_slot(sa.spi) == active_slot else old
            side.add((sa.peer, sa.network_id, sa.use, sa.lane))
    return tuple(sorted({peer for peer, *_ in old - new}))


def check_rotation(lagging: Collection[str], *, has_previous: bool, force: bool) -> None:
    """Raise StateError when a rotation would cut a leased sender that has not switched since the last one."""
    if has_previous and lagging and not force:
        raise StateError(
            f"{', '.join(sorted(lagging))} still sends under the previous master key",
            remedy="wait until it has switched, or rotate with --force and cut it off",
        )


def previous_may_retire(*, rotated_s: float, now_s: float, lease_s: float, lagging: Collection[str]) -> bool:
    """Say whether the previous master key may be forgotten: all have switched and drained, or time is up.

    Times in seconds on one monotonic clock; `lease_s` is the longest lease in force.
    """
    age_s = now_s - rotated_s
    return (not lagging and age_s >= DRAIN_S) or age_s >= max(lease_s, RETIRE_AFTER_S_MIN)
