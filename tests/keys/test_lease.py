"""The numbers of a lease."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztdpu.errors import LeaseError
from ztdpu.keys.lease import (
    check_clock_step,
    check_deadline,
    check_lease_s,
    check_revocations_applied,
    clock_offset_ns,
    clock_step_ms,
    control_deadline_ns,
    grant_deadline_ns,
    remaining_ms,
)

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


def test_deadline_is_exclusive():
    check_deadline(100, 99)
    with pytest.raises(LeaseError, match="has ended"):
        check_deadline(100, 100)
    with pytest.raises(LeaseError, match="no lease"):
        check_deadline(0, 1)


@pytest.mark.parametrize(("deadline", "now", "left"), [(2 * S, S, 1000), (S, S, 0), (S, 2 * S, 0), (S, S - 1, 0)])
def test_remaining(deadline, now, left):
    assert remaining_ms(deadline, now) == left


@pytest.mark.parametrize("lease_s", [2, 60, 3600])
def test_leases_that_a_tenant_may_choose(lease_s):
    check_lease_s(lease_s)


@pytest.mark.parametrize("lease_s", [1, 0, -1, 3601])
def test_leases_that_no_tenant_may_choose(lease_s):
    with pytest.raises(LeaseError, match="outside"):
        check_lease_s(lease_s)


@pytest.mark.parametrize("step_ns", [0, 1, 2 * S, -2 * S])
def test_small_steps_are_no_doubt(step_ns):
    check_clock_step(clock_offset_ns(50 * S, 10 * S), 40 * S + step_ns)


@pytest.mark.parametrize("step_ns", [2 * S + 1, -2 * S - 1, 3600 * S, -3600 * S])
def test_larger_steps_are(step_ns):
    with pytest.raises(LeaseError, match="clock stepped"):
        check_clock_step(40 * S, 40 * S + step_ns)


@pytest.mark.parametrize(("step_ns", "step_ms"), [(2_999_999, 2), (-2_999_999, -2), (0, 0), (5 * S, 5000)])
def test_step_in_ms(step_ns, step_ms):
    assert clock_step_ms(S, S + step_ns) == step_ms


def test_revocations_older_than_two_seconds_must_be_applied():
    revocations = [(10, 0), (11, 5 * S)]
    check_revocations_applied(11, revocations, 100 * S)
    check_revocations_applied(10, revocations, 7 * S)
    check_revocations_applied(0, [], 7 * S)
    with pytest.raises(LeaseError, match="not been applied"):
        check_revocations_applied(10, revocations, 7 * S + 1)
    with pytest.raises(LeaseError, match="not been applied"):
        check_revocations_applied(9, revocations, 3 * S)
