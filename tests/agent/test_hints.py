"""What is owed to peers, as scripts of times."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztdpu.agent.hints import HINT_PAUSE_S, LAST_PAUSE_S, Hints


def test_a_hint_is_repeated_ever_more_slowly_until_the_peer_asks():
    hints, sent, now_s = Hints(), [], 0.0
    hints.owe("dpu-1", "restart", 0.0)
    while now_s < 60:
        sent += [(now_s, *due) for due in hints.take_due(now_s)]
        now_s = hints.next_s(otherwise_s=100)
    pauses = [later[0] - earlier[0] for earlier, later in itertools.pairwise(sent)]
    assert {row[1:] for row in sent} == {("dpu-1", "restart")}
    assert pauses[:3] == pytest.approx([HINT_PAUSE_S, 2 * HINT_PAUSE_S, 4 * HINT_PAUSE_S])
    assert max(pauses) == pytest.approx(LAST_PAUSE_S)
    hints.answered("dpu-1")
    assert hints.take_due(1000) == []
    assert hints.next_s(otherwise_s=7) == 7


def test_a_restart_is_not_made_less_by_a_rotation():
    hints = Hints()
    hints.owe("dpu-1", "restart", 5)
    hints.owe("dpu-1", "rotate", 1)
    assert hints.take_due(0.9) == []
    assert hints.take_due(1) == [("dpu-1", "restart")]
    hints.answered("dpu-1")
    hints.owe("dpu-1", "rotate", 10)
    assert hints.take_due(10) == [("dpu-1", "rotate")]


def test_a_forgotten_peer_is_owed_nothing():
    hints = Hints()
    hints.owe("dpu-1", "restart", 0)
    hints.owe("dpu-2", "restart", 0)
    hints.forget("dpu-1")
    assert hints.take_due(0) == [("dpu-2", "restart")]


def test_a_new_uplink_repeats_what_the_old_one_may_have_lost():
    hints = Hints()
    hints.owe("dpu-1", "restart", 0)
    for now_s in (0, HINT_PAUSE_S):
        assert len(hints.take_due(now_s)) == 1
    hints.hasten(2)
    assert hints.next_s(otherwise_s=100) == pytest.approx(2 * HINT_PAUSE_S)
    hints.hasten(0)
    assert hints.take_due(2.2) == [("dpu-1", "restart")]


STEPS = st.lists(
    st.tuples(st.sampled_from(["owe", "hasten", "answered", "look"]), st.floats(0, 3, allow_nan=False)), max_size=60
)


@given(STEPS)
def test_a_peer_never_gets_two_hints_within_a_second(steps):
    hints, now_s, sent = Hints(), 0.0, []
    for step, pause_s in steps:
        now_s += pause_s
        match step:
            case "owe":
                hints.owe("dpu-1", "rotate", now_s)
            case "hasten":
                hints.hasten(now_s)
            case "answered":
                hints.answered("dpu-1")
        sent += [now_s] * len(hints.take_due(now_s))
    assert all(later - earlier >= 1 for earlier, later in itertools.pairwise(sent))
