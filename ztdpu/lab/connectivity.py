"""Every flow that policy allows between endpoints of a running lab: tried, and counted at both ends.

    policy files -> allowed flows (the worker's own matcher says which) -> probes -> captures at ztdpu0

Called by `ztdpu check connectivity`, and with `lab.campaign` it says both halves: what may pass does, what may
not does not.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Final

from ztdpu.lab.attacks.cross_tenant_tcp import mark_of
from ztdpu.lab.campaign import ALLOWED_PORT
from ztdpu.lab.crew import Crew, Hand
from ztdpu.lab.layout import EndpointPlan, LabPlan, family
from ztdpu.model.flow import Protocol
from ztdpu.model.verdict import Verdict
from ztdpu.policy.cluster import Cluster
from ztdpu.policy.documents import ClusterEgressRule, ClusterIngressRule, EgressRule, IngressRule
from ztdpu.policy.explain import Explainer

PACKETS: Final = 5
_MARK_OCTETS: Final = 12
_ARRIVAL_S: Final = 2.0
_PROTOCOLS: Final = {"tcp": Protocol.TCP, "udp": Protocol.UDP, "icmp": Protocol.ICMP}


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedFlow:
    """One flow that policy allows."""

    source: EndpointPlan
    destination: EndpointPlan
    source_address: str
    destination_address: str
    protocol: str
    """`tcp`, `udp` or `icmp`."""
    port: int
    """0 for icmp."""

    @property
    def name(self) -> str:
        """Both ends, protocol and port, IP version."""
        what = "ping" if self.protocol == "icmp" else f"{self.protocol}/{self.port}"
        return f"{self.source.name} -> {self.destination.name} {what} v{family(self.destination_address)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowCount:
    """One flow in figures."""

    name: str
    attempts: int
    seen: int
    """Packets that left the source's virtual function."""
    delivered: int
    """Packets that came out of the destination's."""


def allowed_flows(cluster: Cluster, plan: LabPlan) -> Iterator[AllowedFlow]:
    """Yield for each ordered pair of endpoints, protocol and IP version one flow, where policy allows any."""
    ports = _ports(cluster)
    explainer = Explainer(cluster)
    for source, destination in permutations(plan.endpoints, 2):
        if destination not in plan.mates(source):
            continue  # a network is private: without a Peering no policy reaches across
        for own, other in zip(_by_family(source), _by_family(destination), strict=True):
            if not own or not other:
                continue
            for word, protocol in _PROTOCOLS.items():
                for port in [0] if word == "icmp" else ports:
                    answer = explainer.explain(source=source.name, destination=other, protocol=protocol, port=port)
                    if answer.verdict is not Verdict.DROP:
                        yield AllowedFlow(
                            source=source,
                            destination=destination,
                            source_address=own,
                            destination_address=other,
                            protocol=word,
                            port=port,
                        )
                        break


def _by_family(endpoint: EndpointPlan) -> tuple[str, str]:
    first = {version: next((a for a in endpoint.addresses if family(a) == version), "") for version in (4, 6)}
    return first[4], first[6]


def _ports(cluster: Cluster) -> list[int]:
    """Ports worth trying: a usual one, then the first of every range that some policy names."""
    rules: list[IngressRule | EgressRule | ClusterIngressRule | ClusterEgressRule] = []
    for policy in cluster.network_policies.values():
        rules += [*policy.spec.ingress, *policy.spec.egress]
    for above in cluster.cluster_network_policies.values():
        rules += [*above.spec.ingress, *above.spec.egress]
    written = {entry.port for rule in rules for entry in rule.ports or () if entry.port}
    called = {number for endpoint in cluster.endpoints.values() for number in endpoint.ports.values()}
    named = {port for port in written if isinstance(port, int)} | called
    return [ALLOWED_PORT, *sorted(named - {ALLOWED_PORT})]


def try_flows(crew: Crew, flows: list[AllowedFlow]) -> list[FlowCount]:
    """Send PACKETS of each flow and count them where they leave and where they arrive."""
    marks = {flow: secrets.token_bytes(_MARK_OCTETS) for flow in flows}
    captures = _start_captures(crew, marks)
    probes = []
    for name in dict.fromkeys(flow.source.name for flow in flows):
        orders = [_order(flow, marks[flow]) for flow in flows if flow.source.name == name]
        probes.append(crew.start_python(name, "ztdpu.lab.probe", json.dumps(orders)))
    for probe in probes:
        probe.finish(timeout_s=30)
    wanted = PACKETS * len(flows)
    deadline = time.monotonic() + _ARRIVAL_S
    while True:
        counts = {name: hand.ask()["marks"] for name, hand in captures.items()}
        results = [
            FlowCount(
                name=flow.name,
                attempts=PACKETS,
                seen=counts[flow.source.name][flow.name][1],
                delivered=counts[flow.destination.name][flow.name][0],
            )
            for flow in flows
        ]
        if sum(result.delivered for result in results) >= wanted or time.monotonic() > deadline:
            return results
        time.sleep(0.1)


def _start_captures(crew: Crew, marks: Mapping[AllowedFlow, bytes]) -> dict[str, Hand]:
    """Count at both ends of every flow, each endpoint its own flows alone."""
    options: dict[str, list[str]] = {}
    for flow, mark in marks.items():
        octets = mark_of(flow.port, mark) if flow.protocol == "tcp" else mark
        for end in (flow.source.name, flow.destination.name):
            options.setdefault(end, []).extend(("--mark", f"{flow.name}={octets.hex()}"))
    hands = crew.start_captures([(name, "ztdpu0", arguments) for name, arguments in options.items()])
    return dict(zip(options, hands, strict=True))


def _order(flow: AllowedFlow, mark: bytes) -> dict[str, str | int]:
    return {
        "source": flow.source_address,
        "target": flow.destination_address,
        "protocol": flow.protocol,
        "port": flow.port,
        "mark": mark.hex(),
        "attempts": PACKETS,
    }
