"""PolicyTest documents: run against a cluster. Pure; called by `ztdpu policy test` and before a policy is accepted.

`allow`: every port that is named passes, between every pair of addresses of one family that exist for each other.
`drop`: none does. Tests may come from another cluster (the one accepted last), so that a change cannot take away the
test that it would fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from ztdpu.errors import Location, NotFoundError, UsageError
from ztdpu.model.flow import Protocol
from ztdpu.model.verdict import Verdict
from ztdpu.policy.cluster import Cluster
from ztdpu.policy.documents import TestFlow, TestGroup, TestPairs
from ztdpu.policy.explain import Explainer
from ztdpu.policy.intervals import Ranges, intersect, subtract
from ztdpu.policy.reach import Flow, Place, World, build_world
from ztdpu.policy.select import is_selected

_PORTS: Final = re.compile(r"(?:(any)|([0-9]+)(?:-([0-9]+))?)/(tcp|udp)")
_SHOWN: Final = 3
"""Pairs that a failed line names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestResult:
    """One line of a PolicyTest."""

    __test__ = False

    test: str
    """Name of the document."""
    line: str
    """What was asked, for people."""
    passed: bool
    detail: str
    """Why it failed; empty when it passed."""
    where: Location
    checked: int
    """Pairs of endpoints that were looked at."""


def run_tests(
    cluster: Cluster, *, tests_of: Cluster | None = None, world: World | None = None
) -> tuple[TestResult, ...]:
    """Run all PolicyTests of `tests_of` (of the cluster itself, when absent) against `cluster`."""
    return tuple(_Runner(cluster, tests_of or cluster, world or build_world(cluster)).run())


class _Runner:
    def __init__(self, cluster: Cluster, tests_of: Cluster, world: World) -> None:
        self._cluster = cluster
        self._tests_of = tests_of
        self._world = world
        self._explainer = Explainer(cluster)

    def run(self) -> Iterator[TestResult]:
        for name, test in self._tests_of.policy_tests.items():
            for index, flow in enumerate(test.spec.flows):
                where = self._tests_of.locate("PolicyTest", name, ("spec", "flows", index))
                line = f"{flow.from_} -> {flow.to} {flow.port} {flow.expect}"
                yield self._result(name, line, where, *self._flow(flow))
            for index, pairs in enumerate(test.spec.pairs):
                where = self._tests_of.locate("PolicyTest", name, ("spec", "pairs", index))
                line = f"{_group_words(pairs.from_)} -> {_group_words(pairs.to)} {pairs.port} {pairs.expect}"
                yield self._result(name, line, where, *self._pairs(pairs))

    @staticmethod
    def _result(name: str, line: str, where: Location, detail: str, checked: int) -> TestResult:
        return TestResult(test=name, line=line, passed=not detail, detail=detail, where=where, checked=checked)

    def _flow(self, flow: TestFlow) -> tuple[str, int]:
        source = self._world.places.get(flow.from_)
        if source is None:
            return f"there is no endpoint {flow.from_!r}", 0
        target = self._world.places.get(flow.to)
        if target is not None:
            found = list(self._world.flows_between(source, target))
            families = _families(source, target)
        else:
            try:
                packed = ip_address(flow.to).packed
            except ValueError:
                return f"there is no endpoint {flow.to!r}", 0
            found = [one for one in self._world.flows_from(source) if one.destination_address == packed]
            families = [len(packed)]
        detail = _compare(found, flow.port, flow.expect, families)
        if detail or flow.reason is not None:
            detail = self._check_reason(flow, detail)
        return detail, 1

    def _check_reason(self, flow: TestFlow, detail: str) -> str:
        """Ask `explain` about the first port: for the reason that is wanted, and for words why a test failed."""
        protocol, port = _first_port(flow.port)
        try:
            answer = self._explainer.explain(source=flow.from_, destination=flow.to, protocol=protocol, port=port)
        except (NotFoundError, UsageError) as error:
            return detail or error.message
        if not detail and flow.reason is not None and answer.reason != flow.reason:
            return f"reason is {answer.reason}: {answer.steps[-1].text}"
        if detail and answer.verdict is Verdict.DROP:
            return f"{detail}: {answer.steps[-1].text}"
        return detail

    def _pairs(self, pairs: TestPairs) -> tuple[str, int]:
        sources = [place for place in self._world.places.values() if self._is_in(pairs.from_, place)]
        targets = {place.name: place for place in self._world.places.values() if self._is_in(pairs.to, place)}
        checked = sum(len(targets) - (source.name in targets) for source in sources)
        faults: list[str] = []
        for source in sources:
            by_target: dict[str, list[Flow]] = {}
            for flow in self._world.flows_from(source):
                by_target.setdefault(flow.destination, []).append(flow)
            # What nobody can reach fulfils `drop`; `allow` has to look at every pair.
            names = targets if pairs.expect == "allow" else by_target.keys() & targets.keys()
            for name in sorted(names):
                if name == source.name:
                    continue
                families = _families(source, targets[name])
                detail = _compare(by_target.get(name, []), pairs.port, pairs.expect, families)
                if detail:
                    faults.append(f"{source.name} -> {name}: {detail}")
        more = f" and {len(faults) - _SHOWN} pairs more" if len(faults) > _SHOWN else ""
        return "; ".join(faults[:_SHOWN]) + more, checked

    def _is_in(self, group: TestGroup, place: Place) -> bool:
        if group.tenant is not None and place.tenant != group.tenant:
            return False
        if group.not_tenant is not None and place.tenant == group.not_tenant:
            return False
        return is_selected(group.endpoint_selector, self._cluster.endpoints[place.name].labels)


def _families(source: Place, target: Place) -> list[int]:
    """Octets of addresses that both have."""
    mine = {len(address) for address in source.table.addresses}
    return sorted(mine & {len(address) for address in target.table.addresses})


def _compare(flows: list[Flow], port: str, expect: str, families: list[int]) -> str:
    """Return what is not as expected, for people; empty when all is."""
    for octets in families or [4]:
        for protocol, wanted in _asked(port, octets):
            those = [flow.ports for flow in flows if flow.protocol is protocol and len(flow.source_address) == octets]
            if expect == "drop":
                wrong = next((found for found in (intersect(ports, wanted) for ports in those) if found), ())
            else:
                wrong = next((lack for lack in (subtract(wanted, ports) for ports in those or [()]) if lack), ())
            if wrong:
                return f"{'passes' if expect == 'drop' else 'does not pass'} on {_words(protocol, wrong)}"
    return ""


def _asked(port: str, octets: int) -> Iterator[tuple[Protocol, Ranges]]:
    icmp = Protocol.ICMP if octets == 4 else Protocol.ICMPV6
    if port in ("any", "icmp"):
        yield icmp, ((0, 0),)
    if port == "any":
        yield Protocol.TCP, ((1, 65535),)
        yield Protocol.UDP, ((1, 65535),)
    found = _PORTS.fullmatch(port)
    if found:
        first, last = (1, 65535) if found[1] else (int(found[2]), int(found[3] or found[2]))
        yield Protocol[found[4].upper()], ((first, last),)


def _first_port(port: str) -> tuple[Protocol, int]:
    protocol, ranges = next(_asked(port, 4))
    return protocol, ranges[0][0]


def _words(protocol: Protocol, ranges: Ranges) -> str:
    if protocol not in (Protocol.TCP, Protocol.UDP):
        return "icmp"
    shown = ", ".join(f"{first}-{last}" if last != first else str(first) for first, last in ranges[:_SHOWN])
    return f"{shown}{', ...' if len(ranges) > _SHOWN else ''}/{protocol.name.lower()}"


def _group_words(group: TestGroup) -> str:
    who = group.tenant or (f"not {group.not_tenant}" if group.not_tenant else "everybody")
    labels = [f"{key}={value}" for key, value in group.endpoint_selector.match_labels.items()]
    return f"{who}{{{','.join(labels)}}}" if labels else who
