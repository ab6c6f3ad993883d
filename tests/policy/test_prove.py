"""`prove` against sending every packet, on worlds that are sound and on tables that are not."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings

from tests.policy.worlds import PORTS, Fabric, clusters, make_cluster, make_packet, questions
from ztdpu.errors import TablesError
from ztdpu.model.flow import Direction, Protocol
from ztdpu.model.verdict import Verdict
from ztdpu.packet.pipeline import Pipeline
from ztdpu.packet.tables import DeviceTables, Prefix, Route, Rule, check_tables
from ztdpu.packet.virtio import VIRTIO_OCTETS
from ztdpu.policy.cluster import Cluster
from ztdpu.policy.prove import prove
from ztdpu.policy.reach import World, build_world


def crossings(cluster: Cluster, fabric: Fabric) -> set[tuple[str, str]]:
    tenants = {endpoint.name: endpoint.tenant for endpoint in cluster.endpoints.values()}
    found = set()
    for source, _, own, other, protocol in questions(cluster):
        for port in (0,) if protocol in (Protocol.ICMP, Protocol.ICMPV6) else PORTS:
            outcome, holder = fabric.send(source, own, other, protocol, port)
            if outcome.verdict is not Verdict.DROP and tenants[source] != tenants[holder]:
                found.add((tenants[source], tenants[holder]))
    return found


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cluster=clusters())
def test_prove_equals_brute_force(cluster: Cluster) -> None:
    proof = prove(build_world(cluster))
    assert {(one.source_tenant, one.destination_tenant) for one in proof.witnesses} == crossings(
        cluster, Fabric(cluster)
    )
    assert proof.holds, "what is compiled crosses by Peerings only"
    assert proof.pairs == 3
    if not cluster.peerings:
        assert not proof.witnesses


def test_a_witness_is_a_packet_that_passes() -> None:
    cluster = joined()
    (there,) = prove(build_world(cluster)).witnesses
    assert (there.source, there.destination, there.protocol, there.port, there.peering) == ("a0", "b0", "tcp", 7, "a-b")
    own, other = (cluster.endpoints[name].addresses[0].packed for name in ("a0", "b0"))
    assert Fabric(cluster).send("a0", own, other, 6, 7)[1] == "b0"


def joined(devices: int = 2) -> Cluster:
    hosts = [
        ("Device", f"d{i}", {}, {"profile": "bluefield-3", "underlay": {"address": f"192.0.2.{i + 1}"}})
        for i in range(devices)
    ]
    tenants = [("Tenant", name, {}, {"peerings": ["a-b"]}) for name in "ab"]
    ends = [
        ("Endpoint", "a0", {}, {"tenant": "a", "device": "d0", "addresses": ["10.0.1.1"]}),
        ("Endpoint", "b0", {}, {"tenant": "b", "device": f"d{devices - 1}", "addresses": ["10.0.2.1"]}),
    ]
    members = [{"tenant": name, "endpointSelector": {}} for name in "ab"]
    ports = [{"port": 7}]
    out = {"tenant": "a", "endpointSelector": {}, "egress": [{"to": [{"peering": "a-b"}], "ports": ports}]}
    into = {"tenant": "b", "endpointSelector": {}, "ingress": [{"from": [{"peering": "a-b"}], "ports": ports}]}
    policies = [("NetworkPolicy", "out", {}, out), ("NetworkPolicy", "into", {}, into)]
    return make_cluster([*hosts, *tenants, *ends, ("Peering", "a-b", {}, {"members": members}), *policies])


def planted() -> dict[str, DeviceTables]:
    """Tables as a faulty compiler would make them: b's endpoint is routed in a's network, and lives in it."""
    everywhere = (Prefix(address=bytes(4), length=0),)
    cluster = joined()
    tables = Fabric(cluster).tables
    shared = next(one for one in tables["d0"].networks if one.tenant == "a")
    other = next(one for one in tables["d1"].networks if one.tenant == "b")
    routes = (
        *shared.routes,
        *(Route(address=r.address, device=r.device, endpoint_id=r.endpoint_id) for r in other.routes),
    )

    def opened(device: DeviceTables, direction: Direction, networks: object) -> DeviceTables:
        rule = Rule(
            rule_id=99, direction=direction, verdict=Verdict.ALLOW, protocol=0, port_first=0, port_last=65535,
            peers=everywhere,
        )  # fmt: skip
        (endpoint,) = device.endpoints
        endpoint = dataclasses.replace(endpoint, rules=(rule,), peerings=(), network_id=shared.network_id)
        made = dataclasses.replace(device, networks=networks, endpoints=(endpoint,))
        check_tables(made)
        return made

    mixed = dataclasses.replace(shared, routes=tuple(sorted(routes, key=lambda route: route.address)))
    return {
        "d0": opened(tables["d0"], Direction.EGRESS, (mixed,)),
        "d1": opened(tables["d1"], Direction.INGRESS, (dataclasses.replace(mixed, tenant="b"),)),
    }


def test_a_planted_hole_is_found() -> None:
    tables = planted()
    proof = prove(World(tables.values()))
    assert not proof.holds
    (breach,) = proof.breaches
    assert (breach.source, breach.destination) == ("a0", "b0")
    assert proof.shared_ids == (("a", "b"),)
    outcome, holder = Fabric.of_tables(tables).send("a0", bytes((10, 0, 1, 1)), bytes((10, 0, 2, 1)), 6, 9)
    assert (outcome.verdict, holder) == (Verdict.ALLOW, "b0"), "and the packet really passes"


def test_an_endpoint_on_two_devices_is_refused() -> None:
    """One of them would not be looked at, and the proof would be about the other."""
    tables = planted()
    twin = dataclasses.replace(tables["d1"].endpoints[0], name="a0")
    with pytest.raises(TablesError, match="a0 is on d0 and on d1"):
        World([tables["d0"], dataclasses.replace(tables["d1"], endpoints=(twin,))])
    assert World(tables.values()).places.keys() == {"a0", "b0"}


@pytest.mark.parametrize("is_sound", [True, False])
def test_between_two_endpoints_of_one_device_networks_are_not_mixed(is_sound: bool) -> None:
    """b's network as a faulty compiler would route it, a0 in it: the answer would not come back by the Peering."""
    own, other = bytes((10, 0, 1, 1)), bytes((10, 0, 2, 1))
    cluster = joined(devices=1)
    (tables,) = Fabric(cluster).tables.values()
    first = next(one for one in tables.networks if one.tenant == "a")
    networks = tuple(
        dataclasses.replace(one, routes=(*first.routes, *one.routes)) if one.tenant == "b" and not is_sound else one
        for one in tables.networks
    )
    mixed = dataclasses.replace(tables, networks=networks)
    check_tables(mixed)
    taken: list[bytes] = []

    class Sink:
        def deliver(self, endpoint_id: bytes, buffers: object) -> None:
            taken.append(endpoint_id)

        def transmit(self, *_: object) -> bool:
            return False

    pipeline = Pipeline(device="d0", sink=Sink(), new_master_key=lambda: bytes(32), pid=1)
    pipeline.apply_tables(mixed)
    pipeline.set_lease(10**12, boottime_ns=1, realtime_ns=1)
    pipeline.begin_batch(boottime_ns=1, realtime_ns=1, pid=1)
    packet = bytes(VIRTIO_OCTETS) + make_packet(own, other, 6, 7, 5000)
    pipeline.read_buffer[: len(packet)] = packet
    pipeline.outbound(next(one.endpoint_id for one in mixed.endpoints if one.name == "a0"), len(packet))
    flows = list(World([mixed]).flows_from(World([mixed]).places["a0"]))
    assert (bool(taken), bool(flows)) == (is_sound, is_sound), pipeline.counters.by_reason()
