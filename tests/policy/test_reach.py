"""Reasoning about sets of ports against an SMT solver: for all 65,536 ports, not only those at the edges of rules."""

from __future__ import annotations

import dataclasses
from functools import reduce

import pytest
import z3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.policy.worlds import clusters
from ztdpu.model.flow import Direction, Protocol
from ztdpu.model.verdict import Verdict
from ztdpu.packet.tables import Prefix, Rule
from ztdpu.policy.cluster import Cluster
from ztdpu.policy.intervals import ALL_PORTS, Ranges, intersect, merge, size, subtract
from ztdpu.policy.reach import PROTOCOLS, Sweep, build_world

PORT = z3.Int("port")


def formula(rules: tuple[Rule, ...], direction: Direction, peer: bytes, protocol: int) -> z3.BoolRef:
    """Whether a flow passes, written down from the words of the tables and from nothing else."""

    def covers(prefix: Prefix) -> bool:
        shift = 8 * len(peer) - prefix.length
        same = len(prefix.address) == len(peer)
        return same and int.from_bytes(peer) >> shift == int.from_bytes(prefix.address) >> shift

    def speaks(rule: Rule) -> bool:
        here = rule.direction is direction and rule.protocol in (0, protocol)
        return here and any(map(covers, rule.peers)) and not any(map(covers, rule.excepted))

    decided = z3.BoolVal(False)
    for tier in sorted({rule.tier for rule in rules}, reverse=True):
        below = decided
        for rule in reversed([one for one in rules if one.tier == tier and speaks(one)]):
            inside = z3.And(rule.port_first <= PORT, rule.port_last >= PORT)
            result = below if rule.verdict is None else z3.BoolVal(rule.verdict is not Verdict.DROP)
            decided = z3.If(inside, result, decided)
    return decided


def member(ranges: Ranges) -> z3.BoolRef:
    return z3.Or([z3.And(first <= PORT, last >= PORT) for first, last in ranges])


def differ(left: z3.BoolRef, right: z3.BoolRef, protocol: int) -> int | None:
    """A port for which they differ, None when there is none."""
    solver = z3.Solver()
    solver.add(PORT >= 0, (65535 if protocol in (Protocol.TCP, Protocol.UDP) else 0) >= PORT)
    solver.add(z3.Xor(left, right))
    return solver.model()[PORT].as_long() if solver.check() == z3.sat else None


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cluster=clusters(), data=st.data())
def test_sweeps_agree_with_a_solver(cluster: Cluster, data: st.DataObject) -> None:
    world = build_world(cluster)
    for place in data.draw(st.lists(st.sampled_from(list(world.places.values())), min_size=1, max_size=3)):
        for peer in place.ways:
            for direction in Direction:
                for protocol in PROTOCOLS[len(peer)]:
                    said = member(place.sweep.allowed(direction, peer, protocol))
                    found = differ(formula(place.table.rules, direction, peer, protocol), said, protocol)
                    assert found is None, (place.name, direction, peer, protocol, found)


def test_the_solver_sees_a_planted_fault() -> None:
    everywhere = (Prefix(address=bytes(4), length=0),)
    row = Rule(
        rule_id=1, direction=Direction.EGRESS, verdict=Verdict.ALLOW, protocol=6, port_first=10, port_last=20,
        peers=everywhere,
    )  # fmt: skip
    right, wrong = Sweep((row,)), Sweep((dataclasses.replace(row, port_last=21),))
    truth = formula((row,), Direction.EGRESS, bytes(4), 6)
    assert differ(truth, member(right.allowed(Direction.EGRESS, bytes(4), 6)), 6) is None
    assert differ(truth, member(wrong.allowed(Direction.EGRESS, bytes(4), 6)), 6) == 21


ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)).map(lambda one: (one[0], one[0] + one[1]))).map(
    merge
)


def ports(one: Ranges) -> set[int]:
    return reduce(set.union, (set(range(first, last + 1)) for first, last in one), set())


@given(left=ranges, right=ranges)
def test_intervals_are_sets(left: Ranges, right: Ranges) -> None:
    assert ports(intersect(left, right)) == ports(left) & ports(right)
    assert ports(subtract(left, right)) == ports(left) - ports(right)
    assert ports(merge(left + right)) == ports(left) | ports(right)
    for one in (intersect(left, right), subtract(left, right), merge(left + right)):
        assert one == merge(one), "sorted, apart, not touching"
        assert size(one) == len(ports(one))


@pytest.mark.parametrize("one", [(), ((3, 7),), ALL_PORTS])
def test_all_ports(one: Ranges) -> None:
    assert intersect(ALL_PORTS, one) == one == intersect(one, ALL_PORTS)
    assert subtract(one, ALL_PORTS) == ()
