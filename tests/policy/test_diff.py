"""`diff` against sending every packet through both worlds."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from tests.policy.worlds import PORTS, Fabric, clusters, make_cluster, questions, text
from ztdpu.model.flow import Protocol
from ztdpu.model.verdict import Verdict
from ztdpu.policy.cluster import Cluster
from ztdpu.policy.diff import diff_worlds
from ztdpu.policy.reach import build_world

ICMP = (Protocol.ICMP, Protocol.ICMPV6)


def passing(cluster: Cluster) -> set[tuple[str, str, str, str, str, int]]:
    """Send every packet there is, with the ports at which something may change."""
    fabric, found = Fabric(cluster), set()
    for source, target, own, other, protocol in questions(cluster):
        for port in (0,) if protocol in ICMP else PORTS:
            outcome, holder = fabric.send(source, own, other, protocol, port)
            if outcome.verdict is not Verdict.DROP and holder == target:
                word = "icmp" if protocol in ICMP else protocol.name.lower()
                found.add((source, target, text(own), text(other), word, port))
    return found


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=clusters(), after=clusters())
def test_diff_equals_brute_force(before: Cluster, after: Cluster) -> None:
    said: dict[bool, set[tuple[str, str, str, str, str, int]]] = {True: set(), False: set()}
    for change in diff_worlds(build_world(before), build_world(after)):
        for own, other in change.addresses:
            for port in PORTS if change.protocol != "icmp" else (0,):
                if change.first <= port <= change.last:
                    said[change.gained].add((change.source, change.destination, own, other, change.protocol, port))
    old, new = passing(before), passing(after)
    assert said[True] == new - old
    assert said[False] == old - new


def two_endpoints(ports: list[dict[str, object]]) -> Cluster:
    policy = {
        "tenant": "a",
        "endpointSelector": {},
        "ingress": [{"ports": ports}],
        "egress": [{}],
    }
    devices = [("Device", "d0", {}, {"profile": "bluefield-3", "underlay": {"address": "192.0.2.1"}})]
    ends = [
        ("Endpoint", f"a{i}", {}, {"tenant": "a", "device": "d0", "addresses": [f"10.0.0.{i + 1}"]}) for i in range(2)
    ]
    return make_cluster([*devices, ("Tenant", "a", {}, {}), *ends, ("NetworkPolicy", "p", {}, policy)])


def test_largest_first_and_only_what_is_enforced() -> None:
    before = two_endpoints([{"port": 80}, {"port": 443}])
    after = two_endpoints([{"port": 443}, {"port": 443, "endPort": 443}, {"port": 8000, "endPort": 8009}])
    changes = diff_worlds(build_world(before), build_world(after))
    shown = [("+" if one.gained else "-", one.source, one.destination, one.ports) for one in changes]
    assert shown == [
        ("+", "a0", "a1", "8000-8009/tcp"),
        ("+", "a1", "a0", "8000-8009/tcp"),
        ("-", "a0", "a1", "80/tcp"),
        ("-", "a1", "a0", "80/tcp"),
    ]
    assert diff_worlds(build_world(after), build_world(after)) == ()
