"""The numbers of a lease."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztdpu.errors import LeaseError
from ztdpu.keys.lease import check_revocations_applied, control_deadline_ns, grant_deadline_ns, remaining_ms

S = 1_000_000_000


@pytest.mark.parametrize(
    ("asked", "duration_ms", "maximum_s", "deadline"),
    [
        (0, 60_000, 3600, 59_940_000_000),
        (7 * S, 1_000, 3600, 7 * S + 999_000_000),
        (0, 60_000, 60, 59_940_000_000),
        (0, 60_000, 59, 59 * S),
        (0, 10**12, 3600, 3600 * S),
        (0, 1, 3600, 999_000),
    ],
)
def test_agent_deadline(asked, duration_ms, maximum_s, deadline):
    assert grant_deadline_ns(asked, duration_ms, maximum_s) == deadline


@given(
    st.integers(0, 10**18), st.integers(0, 10**10), st.integers(1, 3_600_000), st.integers(1, 7200),
    st.floats(0.9992, 1.001),
)  # fmt: skip
def test_agent_ends_before_control(asked, flight_ns, duration_ms, maximum_s, rate):
    # The agent's clock may run slow by 0.08 %: its deadline still comes first in control's time.
    agent_ns = (grant_deadline_ns(asked, duration_ms, maximum_s) - asked) / rate
    assert agent_ns < control_deadline_ns(flight_ns, duration_ms)


@pytest.mark.parametrize(("duration_ms", "maximum_s"), [(0, 60), (-1, 60), (60_000, 0), (60_000, -5)])
def test_no_lease_without_a_duration(duration_ms, maximum_s):
    with pytest.raises(LeaseError, match="longer than nothing"):
        grant_deadline_ns(0, duration_ms, maximum_s)


def test_control_grants_no_empty_lease():
    assert control_deadline_ns(5, 1) == 1_000_005
    with pytest.raises(LeaseError):
        control_deadline_ns(5, 0)


@pytest.mark.parametrize(("deadline", "now", "left"), [(2 * S, S, 1000), (S, S, 0), (S, 2 * S, 0), (S, S - 1, 0)])
def test_remaining(deadline, now, left):
    assert remaining_ms(deadline, now) == left


@pytest.mark.parametrize(
    ("applied", "ages_ms", "granted"),
    [
        (11, {10: 99_000, 11: 99_000}, True),
        (10, {10: 99_000, 11: 2000}, True),
        (0, {}, True),
        (10, {10: 99_000, 11: 2001}, False),
        (9, {10: 3000, 11: 0}, False),
    ],
)
def test_revocations_older_than_two_seconds_must_be_applied(applied, ages_ms, granted):
    if granted:
        check_revocations_applied(applied, ages_ms.items())
        return
    with pytest.raises(LeaseError, match="not applied"):
        check_revocations_applied(applied, ages_ms.items())
