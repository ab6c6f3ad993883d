from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztdpu.model.verdict import Outcome, Reason, Verdict
from ztdpu.packet.flows import CUT_MEMORY, WHEEL_SLOTS, EndpointFlows, Flow, FlowTable, reverse_key
from ztdpu.packet.headers import TCP, UDP
from ztdpu.packet.states import TCP_TIMEOUTS_S, UDP_TIMEOUTS_S, FlowState
from ztdpu.packet.tables import Route

BLUE, RED = b"network-of-blue!", b"network-of-red!!"
OUTCOME = Outcome(verdict=Verdict.ALLOW, reason=Reason.FLOW_ESTABLISHED, rule_id=1)
ROUTE = Route(address=bytes(4), device="dpu-1", endpoint_id=bytes(16))


def new_flow(home, number=0, *, protocol=TCP, now_s=0.0):
    key = b"AAAABBBB" + number.to_bytes(4)
    return Flow(
        home=home, protocol=protocol, sent_key=b"s" + key, received_key=b"r" + key, local=b"AAAA", remote=b"BBBB",
        port=80, opened_here=True, outcome=OUTCOME, route=ROUTE, last_s=now_s,
    )  # fmt: skip


def filled(count, *, now_s=0.0, protocol=TCP):
    table, home = FlowTable(), EndpointFlows(BLUE)
    for number in range(count):
        assert table.add(new_flow(home, number, now_s=now_s, protocol=protocol), quota=count, now_s=now_s)
    return table, home


def test_a_flow_is_found_both_ways_until_it_is_removed():
    table, home = filled(1)
    (flow,) = home
    assert home.sent[flow.sent_key] is flow is home.received[flow.received_key]
    assert (table.count, table.count_of(BLUE), table.count_of(RED)) == (1, 1, 0)
    table.remove(flow)
    table.remove(flow)
    assert (table.count, table.count_of(BLUE)) == (0, 0)
    assert not home.sent
    assert not home.received


def test_memory_of_cut_flows_is_bounded_and_keeps_the_latest():
    table, home = filled(CUT_MEMORY)
    flows = list(home)
    for flow in flows:
        table.cut(flow)
    assert table.count == 0
    assert len(home.cut) == CUT_MEMORY
    assert flows[-1].sent_key in home.cut
    assert flows[0].sent_key not in home.cut


def test_quota_is_exact_and_per_network():
    table, home = filled(5)
    red = EndpointFlows(RED)
    assert not table.add(new_flow(home, 5), quota=5, now_s=0.0)
    assert table.add(new_flow(red, 5), quota=5, now_s=0.0)
    assert (table.count_of(BLUE), table.count_of(RED)) == (5, 1)
    assert len(home.sent) == len(home.received) == 5
    table.remove(next(iter(home)))
    assert table.add(new_flow(home, 5), quota=5, now_s=0.0)


def test_quota_of_zero_allows_none():
    assert not FlowTable().add(new_flow(EndpointFlows(BLUE)), quota=0, now_s=0.0)


def test_a_full_network_makes_room_from_idle_flows():
    table, home = filled(5, protocol=UDP)
    late = UDP_TIMEOUTS_S[FlowState.OPENING]
    assert not table.add(new_flow(home, 5), quota=5, now_s=late - 1)
    assert table.add(new_flow(home, 5, now_s=late + 1), quota=5, now_s=late + 1)


@pytest.mark.parametrize("start_s", [0.0, 0.999, 1e6, 1e9 + 0.5])
@pytest.mark.parametrize("state", list(TCP_TIMEOUTS_S))
def test_idle_in_each_state(state, start_s):
    table, home = filled(1, now_s=start_s)
    (flow,) = home
    table.enter(flow, state)
    idle = TCP_TIMEOUTS_S[state]
    now_s = start_s
    while now_s + 1.0 < start_s + idle:
        now_s += 1.0
        assert table.expire(now_s) == 0
    assert table.expire(start_s + idle + 1.0) == 1
    assert table.count == 0


def test_a_packet_keeps_a_flow():
    table, home = filled(1)
    (flow,) = home
    for second in range(0, 600, 30):
        flow.last_s = float(second)
        assert table.expire(float(second)) == 0
    assert table.expire(570.0 + TCP_TIMEOUTS_S[FlowState.OPENING] + 1) == 1


def test_closing_does_not_wait_for_the_old_timeout():
    table, home = filled(1)
    (flow,) = home
    table.enter(flow, FlowState.ESTABLISHED)
    for second in range(300):
        table.expire(float(second))
    flow.last_s = 300.0
    table.enter(flow, FlowState.CLOSED)
    assert table.expire(309.0) == 0
    assert table.expire(311.0) == 1


def test_work_per_call_is_bounded_and_nothing_is_forgotten():
    table, _ = filled(1000, protocol=UDP)
    seen = []
    while table.count:
        seen.append(table.expire(100.0, 64))
    assert max(seen) <= 64
    assert sum(seen) == 1000
    assert len(seen) <= 17


def test_after_a_long_silence_all_are_found():
    table, home = filled(10)
    for flow in home:
        table.enter(flow, FlowState.ESTABLISHED)
    assert table.expire(1e7) == 10


def test_an_empty_table_skips_the_time_that_passed():
    table, home = filled(1)
    table.remove(next(iter(home)))
    later = 1e9
    assert table.add(new_flow(home, now_s=later), quota=1, now_s=later)
    assert table.expire(later) == 0
    assert table.expire(later + 61) == 1


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_the_wheel_against_the_definition(seed, count):
    """Random life, small and large steps of time: whoever idled too long is gone, nobody else is."""
    source = random.Random(seed)
    table, home = filled(count)
    now_s = 0.0
    for _ in range(60):
        now_s += source.choice((0.01, 0.5, 1.0, 7.0, 61.0, WHEEL_SLOTS + 1.0, 2000.0))
        table.expire(now_s, 10_000)
        for flow in home:
            idle = now_s - flow.last_s
            assert idle < flow.timeout_s + 1.0
            action = source.random()
            if action < 0.3:
                flow.last_s = now_s
            elif action < 0.5:
                flow.last_s = now_s
                table.enter(flow, source.choice(list(TCP_TIMEOUTS_S)))
            elif action < 0.55:
                table.remove(flow)
        alive = len(list(home))
        assert alive == table.count == sum(len(slot) for slot in table._slots)
        if alive < count:
            fresh = new_flow(home, source.randrange(1 << 30), now_s=now_s)
            if fresh.sent_key not in home.sent:
                assert table.add(fresh, quota=count, now_s=now_s)


def test_reverse_key_is_its_own_inverse():
    for protocol, rest in ((TCP, b"\0\1\0\2"), (UDP, b"\0\1\0\2\x11"), (1, b"\0\1\x08\0\0\0"), (58, b"\0\1\0\0\0\0")):
        for octets in (4, 16):
            key = b"a" * octets + b"b" * octets + rest
            back = reverse_key(key, protocol, octets)
            assert back != key
            assert len(back) == len(key)
            assert back.startswith(b"b" * octets + b"a" * octets)
            assert reverse_key(back, protocol, octets) == key
