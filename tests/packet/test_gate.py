"""When anything may move at all."""

from __future__ import annotations

import pytest

from ztdpu.model.verdict import Reason
from ztdpu.packet.gate import Gate

S = 1_000_000_000


def leased() -> Gate:
    gate = Gate(pid=1)
    gate.set_lease(160 * S, boottime_ns=100 * S, realtime_ns=5000 * S)
    return gate


@pytest.mark.parametrize(
    ("boottime_ns", "realtime_ns", "pid", "expected"),
    [
        (100 * S, 5000 * S, 1, None),
        (160 * S - 1, 5060 * S, 1, None),
        (160 * S, 5060 * S, 1, Reason.NO_LEASE),
        (130 * S, 5030 * S, 2, Reason.FORKED),
        (130 * S, 5032 * S, 1, None),
        (130 * S, 5032 * S + 1, 1, Reason.CLOCK_DOUBT),
        (130 * S, 5028 * S - 1, 1, Reason.CLOCK_DOUBT),
    ],
)
def test_the_gate(boottime_ns, realtime_ns, pid, expected):
    gate = leased()
    assert gate.begin_batch(boottime_ns=boottime_ns, realtime_ns=realtime_ns, pid=pid) is expected
    assert gate.refusal is expected


def test_a_new_gate_is_closed():
    gate = Gate(pid=1)
    assert gate.refusal is Reason.NO_LEASE
    assert gate.begin_batch(boottime_ns=1, realtime_ns=1, pid=1) is Reason.NO_LEASE


def test_doubt_lasts_until_a_lease_that_is_alive():
    gate = leased()
    gate.begin_batch(boottime_ns=130 * S, realtime_ns=9000 * S, pid=1)
    assert gate.begin_batch(boottime_ns=131 * S, realtime_ns=5031 * S, pid=1) is Reason.CLOCK_DOUBT
    gate.set_lease(130 * S, boottime_ns=132 * S, realtime_ns=9002 * S)
    assert gate.begin_batch(boottime_ns=132 * S, realtime_ns=9002 * S, pid=1) is Reason.CLOCK_DOUBT
    gate.set_lease(200 * S, boottime_ns=132 * S, realtime_ns=9002 * S)
    assert gate.begin_batch(boottime_ns=133 * S, realtime_ns=9003 * S, pid=1) is None
