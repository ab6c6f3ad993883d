"""The replay window: a step table, sweeps, runs, and a million random steps against a set."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ztdpu.errors import ReplayError
from ztdpu.psp import DEFAULT_SIZE_PACKETS, ReplayWindow


def verdict(window, iv):
    """new, duplicate or old; marks the IV when it is new."""
    try:
        window.look(iv)
    except ReplayError as error:
        with pytest.raises(ReplayError):
            window.update(iv)
        return "old" if error.too_old else "duplicate"
    window.update(iv)
    return "new"


W = DEFAULT_SIZE_PACKETS
STEPS = [
    (0, "new"), (0, "duplicate"), (1, "new"), (1, "duplicate"), (9, "new"), (8, "new"), (7, "new"), (7, "duplicate"),
    (9, "duplicate"), (W, "new"), (W - 1, "new"), (W - 1, "duplicate"), (W - 2, "new"), (2, "new"), (2, "duplicate"),
    (0, "old"), (1, "duplicate"), (W + 16, "new"), (3, "old"), (16, "old"), (17, "new"), (17, "duplicate"),
    (W + 16, "duplicate"), (4 * W, "new"), (3 * W + 1, "new"), (3 * W, "old"), (10, "old"), (3 * W + 1, "duplicate"),
    (3 * W + 2, "new"), (4 * W - 1, "new"), (4 * W + 1, "new"), (3 * W + 1, "old"), (3 * W + 2, "duplicate"),
    (0, "old"), (2**63, "new"), (2**64 - 1, "new"), (2**63, "old"), (2**64 - 1, "duplicate"), (2**64 - W, "new"),
    (2**64 - W - 1, "old"),
]  # fmt: skip


def test_steps():
    window = ReplayWindow()
    for number, (iv, expected) in enumerate(STEPS):
        assert verdict(window, iv) == expected, (number, iv)


@pytest.mark.parametrize("start", [0, 1, 1000])
def test_sweep_upwards(start):
    window = ReplayWindow(64)
    assert all(verdict(window, iv) == "new" for iv in range(start, start + 200))
    assert all(verdict(window, iv) == "duplicate" for iv in range(start + 136, start + 200))
    assert verdict(window, start + 135) == "old"


def test_sweep_downwards():
    window = ReplayWindow(64)
    assert all(verdict(window, iv) == "new" for iv in range(163, 99, -1))
    assert verdict(window, 99) == "old"
    assert all(verdict(window, iv) == "duplicate" for iv in range(163, 99, -1))


def test_every_second_then_the_gaps():
    window = ReplayWindow(256)
    assert all(verdict(window, iv) == "new" for iv in range(0, 256, 2))
    assert all(verdict(window, iv) == "new" for iv in range(1, 256, 2))
    assert all(verdict(window, iv) == "duplicate" for iv in range(1, 256))


def test_reorder_up_to_8000_is_accepted():
    window = ReplayWindow()
    ivs = [base + offset for base in range(0, 40_000, 8000) for offset in range(7999, -1, -1)]
    assert all(verdict(window, iv) == "new" for iv in ivs)


def test_looking_moves_nothing():
    window = ReplayWindow()
    window.update(10)
    for _ in range(3):
        window.look(10 + 10 * W)
    assert window.highest == 10
    assert verdict(window, 5) == "new"


def test_refused_update_marks_nothing():
    window = ReplayWindow(64)
    window.update(100)
    with pytest.raises(ReplayError) as caught:
        window.update_run(98, 5)
    assert not caught.value.too_old
    assert window.highest == 100
    assert verdict(window, 98) == "new"
    assert verdict(window, 102) == "new"


def test_run_that_begins_too_old_is_refused_whole():
    window = ReplayWindow(64)
    window.update(100)
    with pytest.raises(ReplayError) as caught:
        window.update_run(36, 3)
    assert caught.value.too_old
    assert verdict(window, 37) == "new"


def test_run_longer_than_the_window():
    window = ReplayWindow(64)
    window.update(3)
    window.update_run(10, 500)
    assert window.highest == 509
    assert verdict(window, 509 - 63) == "duplicate"
    assert verdict(window, 509 - 64) == "old"


@pytest.mark.parametrize("count", [0, -1])
def test_empty_run_is_a_defect(count):
    with pytest.raises(ValueError, match="at least one"):
        ReplayWindow().update_run(1, count)


def test_empty_window_is_a_defect():
    assert verdict(ReplayWindow(1), 5) == "new"
    with pytest.raises(ValueError, match="at least one"):
        ReplayWindow(0)


class Model:
    """The same rules with a set."""

    def __init__(self, size):
        self.size, self.seen, self.highest = size, set(), -1

    def run(self, first, count):
        if first <= self.highest - self.size:
            return "old"
        ivs = range(first, first + count)
        if not self.seen.isdisjoint(ivs):
            return "duplicate"
        self.seen.update(ivs)
        self.highest = max(self.highest, first + count - 1)
        return "new"


def run_verdict(window, first, count):
    try:
        window.look_run(first, count)
    except ReplayError as error:
        with pytest.raises(ReplayError):
            window.update_run(first, count)
        return "old" if error.too_old else "duplicate"
    window.update_run(first, count)
    return "new"


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 60) | st.just(1)), max_size=80),
)
def test_runs_agree_with_a_set(size, steps):
    window, model = ReplayWindow(size), Model(size)
    for offset, count in steps:
        first = max(0, model.highest + offset)
        assert run_verdict(window, first, count) == model.run(first, count)
        assert window.highest == model.highest


def test_a_million_random_ivs_agree_with_a_set():
    source = random.Random(2026)
    window, seen, highest = ReplayWindow(1024), set(), -1
    accepted = 0
    for _ in range(1_000_000):
        iv = max(0, highest + source.choice((1, 1, 1, 1, 2, -1, -3, -900, -1023, -1024, -1500, 40, 700)))
        expected = iv > highest - 1024 and iv not in seen
        try:
            window.update(iv)
        except ReplayError:
            assert not expected
            continue
        assert expected
        accepted += 1
        seen.add(iv)
        highest = max(highest, iv)
        if len(seen) > 20_000:
            seen = {old for old in seen if old > highest - 1024}
    assert accepted > 300_000
