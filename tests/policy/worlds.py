"""Small random clusters for properties, and real packets sent through their firewalls: the judge of all reasoning."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from ipaddress import ip_address
from itertools import count
from typing import Any

from hypothesis import strategies as st

from ztdpu.errors import PolicyError
from ztdpu.model.flow import Protocol
from ztdpu.model.verdict import Outcome, Reason, Verdict
from ztdpu.packet.checksum import checksum
from ztdpu.packet.firewall import Firewall
from ztdpu.packet.headers import Packet, parse
from ztdpu.packet.tables import DeviceTables, decode_tables
from ztdpu.policy.cluster import Cluster, build_cluster
from ztdpu.policy.compile import Compiler, assumed_networks
from ztdpu.policy.documents import KINDS
from ztdpu.policy.entry import Entry
from ztdpu.policy.yaml import Placed

PORTS = (0, 1, 2, 3, 4, 5, 6, 7, 1000, 65535)
"""Every rule below begins and ends at one of these, or one beside it."""
ADDRESSES = {
    "a": ["10.0.1.1", "10.0.1.2", "10.0.1.9"],
    "b": ["10.0.2.1", "10.0.2.2", "10.0.2.9"],
    "c": ["10.0.1.1", "10.0.1.2", "10.0.1.9"],
}
"""c has the addresses of a; a and b may be joined by a Peering."""
LABELS = [{"role": "x"}, {"role": "y"}, {}]

selectors = st.sampled_from(
    [{}, {"matchLabels": {"role": "x"}}, {"matchExpressions": [{"key": "role", "operator": "NotIn", "values": ["x"]}]}]
)
blocks = st.sampled_from(
    [
        {"cidr": "10.0.0.0/8"},
        {"cidr": "10.0.1.0/24", "except": ["10.0.1.2/32"]},
        {"cidr": "0.0.0.0/0", "except": ["10.0.1.0/30", "10.0.2.9/32"]},
        {"cidr": "fd00::/16"},
        {"cidr": "fd00::/16", "except": ["fd00::a:2/127", "fd00::b:0/112"]},
        {"cidr": "10.0.2.1/32"},
    ]
)


@st.composite
def port_lists(draw: st.DrawFn, *, named: bool = True) -> list[dict[str, Any]] | None:
    if draw(st.booleans()):
        return None
    one = st.one_of(
        st.builds(
            lambda protocol, first, more: {"protocol": protocol, "port": first, "endPort": first + more},
            st.sampled_from(["TCP", "UDP"]),
            st.integers(1, 5),
            st.integers(0, 2),
        ),
        st.sampled_from([{"protocol": "ICMP"}, {"protocol": "UDP"}, {"port": "collective"}]),
        *([st.just({"port": "web"})] if named else []),
    )
    return draw(st.lists(one, min_size=1, max_size=3))


def without_none(**fields: Any) -> dict[str, Any]:
    return {key.rstrip("_"): value for key, value in fields.items() if value is not None}


@st.composite
def rules(draw: st.DrawFn, key: str, *, peering: bool) -> dict[str, Any]:
    kinds = [selectors.map(lambda one: {"endpointSelector": one})]
    if peering:
        kinds.append(st.just({"peering": "a-b"}))
        kinds.append(selectors.map(lambda one: {"peering": "a-b", "endpointSelector": one}))
    has_blocks = draw(st.booleans())
    if has_blocks:
        kinds.append(blocks.map(lambda one: {"ipBlock": one}))
    peers = draw(st.none() | st.lists(st.one_of(kinds), min_size=1, max_size=3))
    return without_none(**{key: peers}, ports=draw(port_lists(named=not has_blocks)))


@st.composite
def network_policies(draw: st.DrawFn, *, peering: bool, audit: bool) -> dict[str, Any]:
    tenant = draw(st.sampled_from("abc"))
    joined = peering and tenant in "ab"
    ingress = draw(st.lists(rules("from", peering=joined), min_size=1, max_size=2))
    egress = draw(st.lists(rules("to", peering=joined), min_size=1, max_size=2))
    way = draw(st.sampled_from(["both", "both", "in", "out"]))
    ingress, egress = ingress if way != "out" else [], egress if way != "in" else []
    types = ({"Ingress"} if ingress else set()) | ({"Egress"} if egress else set())
    types |= draw(st.sampled_from([set(), {"Ingress"}, {"Egress"}]))
    return without_none(
        tenant=tenant,
        endpointSelector=draw(selectors),
        policyTypes=draw(st.none() | st.just(sorted(types))),
        mode=draw(st.sampled_from(["enforce", "enforce", "audit"])) if audit else None,
        ingress=ingress,
        egress=egress,
    )


@st.composite
def cluster_policies(draw: st.DrawFn, priority: int, *, audit: bool) -> dict[str, Any]:
    tenants = st.sampled_from([{}, {"matchLabels": {"ztdpu.dev/name": "a"}}, {"matchLabels": {"team": "one"}}])
    both = st.builds(lambda t, e: {"endpoints": {"tenantSelector": t, "endpointSelector": e}}, tenants, selectors)
    subjects = st.one_of(tenants.map(lambda one: {"tenants": one}), both)
    networks = st.sampled_from([{"networks": ["10.0.1.0/24"]}, {"networks": ["0.0.0.0/0", "::/0"]}])
    actions = st.sampled_from(["Accept", "Deny", "Pass"])

    def one(key: str) -> dict[str, Any]:
        named = key == "from" or draw(st.booleans())
        peers = draw(st.lists(subjects if named else st.one_of(subjects, networks), min_size=1, max_size=2))
        return without_none(**{key: peers}, action=draw(actions), ports=draw(port_lists(named=named)))

    return without_none(
        tier=draw(st.sampled_from(["Admin", "Baseline"])),
        priority=priority,
        subject=draw(subjects),
        mode=draw(st.sampled_from(["enforce", "enforce", "audit"])) if audit else None,
        ingress=[one("from") for _ in range(draw(st.integers(0, 2)))],
        egress=[one("to") for _ in range(draw(st.integers(0, 2)))],
    )


@st.composite
def clusters(draw: st.DrawFn, *, audit: bool = True) -> Cluster:
    """Two devices, three tenants with up to three endpoints each, perhaps a Peering, a few policies."""
    peering = draw(st.booleans())
    documents: list[tuple[str, str, dict[str, str], dict[str, Any]]] = [
        ("Device", f"d{i}", {}, {"profile": "bluefield-3", "underlay": {"address": f"192.0.2.{i + 1}"}})
        for i in range(2)
    ]
    for tenant, labels in (("a", {"team": "one"}), ("b", {}), ("c", {"team": "one"})):
        spec: dict[str, Any] = {"ports": [{"name": "web", "port": 2}]}
        if peering and tenant in "ab":
            spec["peerings"] = ["a-b"]
        documents.append(("Tenant", tenant, labels, spec))
        for index in range(draw(st.integers(1, 3))):
            addresses = [ADDRESSES[tenant][index]]
            if draw(st.booleans()):
                addresses.append(f"fd00::{tenant}:{index + 1}")
            own = {"tenant": tenant, "device": f"d{draw(st.integers(0, 1))}", "addresses": addresses}
            if draw(st.booleans()):
                own["ports"] = [{"name": "web", "port": draw(st.integers(1, 5))}]
            documents.append(("Endpoint", f"{tenant}{index}", draw(st.sampled_from(LABELS)), own))
    if peering:
        members = [{"tenant": tenant, "endpointSelector": draw(selectors)} for tenant in "ab"]
        documents.append(("Peering", "a-b", {}, {"members": members}))
    for index, spec in enumerate(
        draw(st.lists(network_policies(peering=peering, audit=audit), min_size=2, max_size=6))
    ):
        documents.append(("NetworkPolicy", f"p{index}", {}, spec))
    above = [draw(cluster_policies(index, audit=audit)) for index in range(draw(st.integers(0, 3)))]
    documents += [("ClusterNetworkPolicy", f"q{index}", {}, spec) for index, spec in enumerate(above)]
    return make_cluster(documents)


def make_cluster(documents: list[tuple[str, str, dict[str, str], dict[str, Any]]]) -> Cluster:
    """(kind, name, labels, spec) -> cluster; anything wrong is a fault of the test."""
    faults: list[PolicyError] = []
    entries = []
    for kind, name, labels, spec in documents:
        value = {"apiVersion": "ztdpu.dev/v1", "kind": kind, "metadata": {"name": name, "labels": labels}, "spec": spec}
        entries.append(
            Entry(document=KINDS[kind].model_validate(value), placed=Placed(value=value, file=f"{name}.yaml"))
        )
    cluster = build_cluster(entries, faults)
    assert not faults, [str(fault) for fault in faults]
    return cluster


def make_packet(source: bytes, destination: bytes, protocol: int, port: int, source_port: int) -> bytes:
    """The first packet of a flow: SYN, datagram or echo request."""
    if protocol == Protocol.TCP:
        body = struct.pack("!HHIIBBHHH", source_port, port, 1, 0, 5 << 4, 0x02, 512, 0, 0)
    elif protocol == Protocol.UDP:
        body = struct.pack("!HHHH", source_port, port, 8, 0)
    else:
        body = struct.pack("!BBHHH", 8 if protocol == Protocol.ICMP else 128, 0, 0, source_port, 1)
    if len(source) == 4:
        head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(body), 0, 0x4000, 64, protocol, 0, source, destination)
        total = checksum(sum(struct.unpack("!10H", head)))
        head = head[:10] + total.to_bytes(2, "big") + head[12:]
    else:
        head = struct.pack("!IHBB16s16s", 6 << 28, len(body), protocol, 64, source, destination)
    return head + body


class Fabric:
    """The firewalls of all devices; each question is a new flow."""

    def __init__(self, cluster: Cluster) -> None:
        compiler = Compiler(cluster, assumed_networks(cluster))
        self.tables = {name: decode_tables(compiler.compile(name).blob) for name in cluster.devices}
        self._take(self.tables)

    @classmethod
    def of_tables(cls, tables: dict[str, DeviceTables]) -> Fabric:
        fabric = cls.__new__(cls)
        fabric.tables = tables
        fabric._take(tables)
        return fabric

    def _take(self, tables: dict[str, DeviceTables]) -> None:
        self._walls = {name: Firewall(one) for name, one in tables.items()}
        self._homes = {e.name: (name, e.endpoint_id) for name, one in tables.items() for e in one.endpoints}
        self._source_ports = count(1)

    def send(self, source: str, own: bytes, destination: bytes, protocol: int, port: int) -> tuple[Outcome, str]:
        """(how the packet ended, name of the endpoint that got it or "")."""
        device, endpoint_id = self._homes[source]
        raw = make_packet(own, destination, protocol, port, 1024 + next(self._source_ports) % 60_000)
        packet = Packet()
        assert parse(packet, raw, 0, len(raw)) is None
        outcome = self._walls[device].egress(endpoint_id, packet, 1.0)
        if outcome.verdict is Verdict.DROP:
            return outcome, ""
        way = packet.route
        assert way is not None
        far = self._walls[way.device]
        target = far.admit(way.network_id, packet, device)
        if isinstance(target, Reason):
            return Outcome(verdict=Verdict.DROP, reason=target), ""
        arrived = far.ingress(target.endpoint_id, packet, 1.0)
        if arrived.verdict is Verdict.DROP:
            return arrived, ""
        audited = next((one for one in (outcome, arrived) if one.verdict is Verdict.AUDIT), arrived)
        return audited, target.name


def questions(cluster: Cluster) -> Iterator[tuple[str, str, bytes, bytes, Protocol]]:
    """Every pair of addresses of one family of two endpoints, and every protocol of the family."""
    for source in cluster.endpoints.values():
        for target in cluster.endpoints.values():
            if source is target:
                continue
            for own in source.addresses:
                for other in target.addresses:
                    if own.version == other.version and own != other:
                        icmp = Protocol.ICMP if own.version == 4 else Protocol.ICMPV6
                        for protocol in (Protocol.TCP, Protocol.UDP, icmp):
                            yield source.name, target.name, own.packed, other.packed, protocol


def text(address: bytes) -> str:
    return str(ip_address(address))
