"""The table of states: every state with every event, and what each state allows."""

from __future__ import annotations

from itertools import product

import pytest

from ztdpu.control.devices.states import OPERATORS, RIGHTS, TABLE, Event, next_state, what_comes_next
from ztdpu.errors import StateError
from ztdpu.model.device import DeviceState

P, A, W, C, S, Q, R = DeviceState
NO = None

# Written out by hand from the specification: a row per state, a column per event.
EVENTS = (
    Event.AFFIRMED,
    Event.WARNED,
    Event.CONTRAINDICATED,
    Event.LEASE_ENDED,
    Event.RECORD_LOST,
    Event.REVOKED,
    Event.QUARANTINED,
    Event.RESTORED,
    Event.ROLLBACK_ALLOWED,
)
EXPECTED = {
    P: (A, W, C, P, P, R, Q, NO, P),
    A: (A, W, C, S, S, R, Q, NO, NO),
    W: (A, W, C, S, S, R, Q, NO, NO),
    C: (A, W, C, C, S, R, Q, NO, P),
    S: (A, W, C, S, S, R, Q, NO, P),
    Q: (Q, Q, Q, Q, Q, R, NO, P, P),
    R: (R, R, R, R, R, NO, NO, P, P),
}


@pytest.mark.parametrize(("state", "event"), list(product(DeviceState, Event)))
def test_every_state_with_every_event(state: DeviceState, event: Event) -> None:
    expected = EXPECTED[state][EVENTS.index(event)]
    if expected is NO:
        with pytest.raises(StateError, match=str(state)):
            next_state(state, event)
    else:
        assert next_state(state, event) is expected


def test_the_table_is_complete() -> None:
    assert set(EVENTS) == set(Event)
    assert set(TABLE) == set(RIGHTS) == set(DeviceState)


def test_only_operators_are_refused_and_only_they_lead_out_of_what_they_decided() -> None:
    for state, event in product((Q, R), set(Event) - OPERATORS):
        assert next_state(state, event) is state


@pytest.mark.parametrize(
    ("state", "identity", "stream", "may_lease", "speaks_against"),
    [
        (P, False, False, False, False),
        (A, True, True, True, False),
        (W, True, True, True, False),
        (C, False, True, False, True),
        (S, False, False, False, False),
        (Q, True, True, False, True),
        (R, False, False, False, True),
    ],
)
def test_rights(state: DeviceState, identity: bool, stream: bool, may_lease: bool, speaks_against: bool) -> None:
    rights = RIGHTS[state]
    assert (rights.identity, rights.stream, rights.may_lease, rights.speaks_against) == (
        identity,
        stream,
        may_lease,
        speaks_against,
    )


@pytest.mark.parametrize(
    ("state", "lease_ms", "since_ms", "needs_token", "in_ms", "words"),
    [
        (P, 0, None, True, None, "join token"),
        (P, 0, None, False, None, "first evidence"),
        (A, 1500, 200, False, 1500, "stale"),
        (W, 1500, 200, False, 1500, "stale"),
        (W, 0, 200, False, 800, "attests again"),
        (C, 0, 200, False, 800, "attests again"),
        (S, 0, 60_000, False, 0, "attests again"),
        (Q, 0, 200, False, None, "operator"),
        (R, 0, 200, False, None, "operator"),
    ],
)
def test_what_comes_next(
    state: DeviceState, lease_ms: int, since_ms: int | None, needs_token: bool, in_ms: int | None, words: str
) -> None:
    following = what_comes_next(
        state, lease_ms=lease_ms, since_appraisal_ms=since_ms, interval_ms=1000, needs_token=needs_token
    )
    assert following.in_ms == in_ms
    assert words in following.what
