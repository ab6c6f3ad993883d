"""States of a device at control as a table: what each allows, what each event makes of it, what comes next by itself.

Pure, and all of it: `leases` applies the table to records, `view` shows it. Docs tell it as docs/states.md.

| state           | identity        | lease               | SAs at peers | left by                               |
|-----------------|-----------------|---------------------|--------------|---------------------------------------|
| pending         | none            | no                  | none         | affirming result                      |
| affirming       | yes             | yes                 | yes          | deadline, finding, revoke, quarantine |
| warning         | yes             | if policy allows it | same         | next appraisal                        |
| contraindicated | management only | no, at once         | deleted      | affirming result                      |
| stale           | refused         | ended               | deleted      | fresh evidence                        |
| quarantined     | yes             | no                  | deleted      | `device restore` and fresh evidence   |
| revoked         | refused         | ended               | deleted      | `device restore`, to pending          |

What an operator decided stays: no appraisal and no deadline leads out of quarantined or revoked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ztdpu.errors import StateError
from ztdpu.model.device import DeviceState

P, A, W, C, S, Q, R = (
    DeviceState.PENDING,
    DeviceState.AFFIRMING,
    DeviceState.WARNING,
    DeviceState.CONTRAINDICATED,
    DeviceState.STALE,
    DeviceState.QUARANTINED,
    DeviceState.REVOKED,
)


class Event(StrEnum):
    """What can happen to a device, as far as its state goes."""

    AFFIRMED = "affirmed"
    """An appraisal said affirming."""
    WARNED = "warned"
    """An appraisal said warning; whether that is leased to is policy's business."""
    CONTRAINDICATED = "contraindicated"
    """An appraisal said contraindicated, or nothing at all."""
    LEASE_ENDED = "lease ended"
    """The deadline passed without fresh evidence."""
    RECORD_LOST = "record lost"
    """Control's store went back: what was decided about leases since is not known."""
    REVOKED = "revoked"
    QUARANTINED = "quarantined"
    RESTORED = "restored"
    ROLLBACK_ALLOWED = "restored with leave to roll back"


_APPRAISALS: Final[Mapping[Event, DeviceState]] = {Event.AFFIRMED: A, Event.WARNED: W, Event.CONTRAINDICATED: C}

TABLE: Final[Mapping[DeviceState, Mapping[Event, DeviceState]]] = {
    P: {**_APPRAISALS, Event.REVOKED: R, Event.QUARANTINED: Q, Event.ROLLBACK_ALLOWED: P},
    A: {**_APPRAISALS, Event.LEASE_ENDED: S, Event.RECORD_LOST: S, Event.REVOKED: R, Event.QUARANTINED: Q},
    W: {**_APPRAISALS, Event.LEASE_ENDED: S, Event.RECORD_LOST: S, Event.REVOKED: R, Event.QUARANTINED: Q},
    C: {**_APPRAISALS, Event.RECORD_LOST: S, Event.REVOKED: R, Event.QUARANTINED: Q, Event.ROLLBACK_ALLOWED: P},
    S: {**_APPRAISALS, Event.REVOKED: R, Event.QUARANTINED: Q, Event.ROLLBACK_ALLOWED: P},
    Q: {Event.REVOKED: R, Event.RESTORED: P, Event.ROLLBACK_ALLOWED: P},
    R: {Event.RESTORED: P, Event.ROLLBACK_ALLOWED: P},
}
"""State -> event -> next state. What is not here stays as it is, or is refused: `next_state` says which."""

OPERATORS: Final = frozenset({Event.REVOKED, Event.QUARANTINED, Event.RESTORED, Event.ROLLBACK_ALLOWED})
"""A person asks for these: where the table has nothing, the answer is no. All others change nothing then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """What a device in a state has."""

    identity: bool
    """New SVIDs are issued to it."""
    stream: bool
    """Its Connect stream is open, be it for management only."""
    may_lease: bool
    """It may hold a lease: epoch keys, and SAs at peers. In warning, if policy says so."""
    speaks_against: bool
    """Something speaks against it: its conversations are over. When nothing speaks for it, they only wait."""


RIGHTS: Final[Mapping[DeviceState, Rights]] = {
    P: Rights(identity=False, stream=False, may_lease=False, speaks_against=False),
    A: Rights(identity=True, stream=True, may_lease=True, speaks_against=False),
    W: Rights(identity=True, stream=True, may_lease=True, speaks_against=False),
    C: Rights(identity=False, stream=True, may_lease=False, speaks_against=True),
    S: Rights(identity=False, stream=False, may_lease=False, speaks_against=False),
    Q: Rights(identity=True, stream=True, may_lease=False, speaks_against=True),
    R: Rights(identity=False, stream=False, may_lease=False, speaks_against=True),
}


def next_state(state: DeviceState, event: Event) -> DeviceState:
    """The state after an event.

    Raises:
        StateError: an operator asks for what this state does not have; the message wants a name before it.

    """
    following = TABLE[state].get(event)
    if following is not None:
        return following
    if event not in OPERATORS:
        return state
    if event in (Event.RESTORED, Event.ROLLBACK_ALLOWED):
        raise StateError(
            f"is {state}; there is nothing to restore",
            remedy="only revoked and quarantined devices are restored",
        )
    raise StateError(f"is {state} already", remedy="`ztdpu device restore` is the way back")


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """What happens next if nobody does anything."""

    what: str
    in_ms: int | None
    """None: nothing happens by itself."""


def what_comes_next(
    state: DeviceState, *, lease_ms: int, since_appraisal_ms: int | None, interval_ms: int, needs_token: bool
) -> Next:
    """The next deadline of a device: every state has one, or names who must act.

    Args:
        state: as it is now, an ended lease accounted for.
        lease_ms: left of the lease; 0 without one.
        since_appraisal_ms: since the last appraisal; None: there was none.
        interval_ms: between two attestations.
        needs_token: whether it must show a join token first.

    """
    if state in (Q, R):
        return Next(what=f"stays {state} until an operator restores it", in_ms=None)
    if lease_ms:
        return Next(what="stale without fresh evidence", in_ms=lease_ms)
    if state is P and needs_token:
        return Next(what="waits for a join token (`ztdpu device token`)", in_ms=None)
    if since_appraisal_ms is None:
        return Next(what="waits for its agent's first evidence", in_ms=None)
    return Next(what="its agent attests again", in_ms=max(0, interval_ms - since_appraisal_ms))
