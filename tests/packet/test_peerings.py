"""A Peering between two tenants over two devices, with real sealed packets: its own SAs, and nothing beside it."""

from __future__ import annotations

import dataclasses

import pytest

from tests.packet.test_pipeline import (
    BLUE,
    HOSTS,
    RED,
    Device,
    carry,
    connect,
    endpoint_id,
    foreign,
    packed,
    tables_of,
    udp,
)
from ztdpu.model.verdict import Reason
from ztdpu.packet.tables import DeviceTables, NetworkTable, Route, check_tables

PEERING = b"P" * 16
GREEN = b"G" * 16
ALL_HOSTS = {**HOSTS, "green-0": (GREEN, "dpu-0", ("10.2.0.10",)), "green-1": (GREEN, "dpu-1", ("10.2.0.11",))}
MEMBERS = ("blue-0", "blue-1", "green-0", "green-1")


def network(network_id: bytes, name: str, hosts: list[str]) -> NetworkTable:
    routes = [
        Route(address=packed(address), device=ALL_HOSTS[host][1], endpoint_id=endpoint_id(host))
        for host in hosts
        for address in ALL_HOSTS[host][2]
    ]
    routes.sort(key=lambda route: (len(route.address), route.address))
    return NetworkTable(
        network_id=network_id, generation=1, tenant=name, psp_version=1, flow_quota=1000, routes=tuple(routes)
    )


def peered(device: str) -> DeviceTables:
    """Everything may talk to everything that exists for it; blue-2 takes no part."""
    plain = tables_of(device, hosts=ALL_HOSTS)
    endpoints = [
        dataclasses.replace(one, peerings=(PEERING,) if one.name in MEMBERS else ()) for one in plain.endpoints
    ]
    greens = network(GREEN, "green", ["green-0", "green-1"])
    tables = dataclasses.replace(
        plain,
        networks=(*plain.networks, greens, network(PEERING, "blue-green", list(MEMBERS))),
        endpoints=tuple(endpoints),
    )
    check_tables(tables)
    return tables


def joined(*networks: bytes) -> tuple[Device, Device]:
    first, second = Device("dpu-0"), Device("dpu-1")
    for device in (first, second):
        device.pipeline.apply_tables(peered(device.name))
        device.lease()
    if networks:
        connect(first, second, *networks)
        connect(second, first, *networks)
    return first, second


def test_a_packet_to_a_partner_rides_on_the_peerings_sa() -> None:
    first, second = joined(BLUE, GREEN, PEERING)
    first.give("blue-0", udp(destination="10.2.0.11"))
    carry(first, second)
    assert [to for to, _ in second.delivered] == [endpoint_id("green-1")]
    used = {sa.line.network_id: sa.packets for sa in second.pipeline.sas.receive.values()}
    assert used == {BLUE: 0, GREEN: 0, PEERING: 1}
    second.give("green-1", udp(source="10.2.0.11", destination="10.1.0.10", sport=2222, dport=1111))
    carry(second, first)
    assert [to for to, _ in first.delivered] == [endpoint_id("blue-0")], "and the answer comes back"


def test_own_traffic_stays_in_the_own_network() -> None:
    first, second = joined(BLUE, PEERING)
    first.give("blue-0", udp())
    carry(first, second)
    used = {sa.line.network_id: sa.packets for sa in second.pipeline.sas.receive.values()}
    assert used == {BLUE: 1, PEERING: 0}


def test_without_the_peerings_keys_nothing_moves() -> None:
    first, _ = joined(BLUE, GREEN)
    first.give("blue-0", udp(destination="10.2.0.11"))
    assert first.reasons == {Reason.NO_SA: 1}
    assert [line.network_id for line in first.pipeline.take_wanted()] == [PEERING]


def test_partners_on_one_device_go_through_both_fences() -> None:
    first, _ = joined(PEERING)
    first.give("blue-0", udp(destination="10.2.0.10"))
    assert [to for to, _ in first.delivered] == [endpoint_id("green-0")]
    assert first.pipeline.flow_count == 2


def test_who_takes_no_part_has_no_way() -> None:
    first, _ = joined(BLUE, RED, PEERING)
    first.give("blue-2", udp(source="10.1.0.12", destination="10.2.0.11"))
    first.give("red-0", udp(destination="10.2.0.11"))
    assert first.reasons == {Reason.NO_ROUTE: 2}


@pytest.mark.parametrize(
    ("network_id", "source", "reason"),
    [
        (PEERING, "10.1.0.10", Reason.RULE_ALLOWED),
        (BLUE, "10.1.0.10", Reason.FOREIGN_DESTINATION),
        (GREEN, "10.1.0.10", Reason.FOREIGN_SOURCE),
        (RED, "10.1.0.10", Reason.FOREIGN_DESTINATION),
        (PEERING, "10.1.0.12", Reason.FOREIGN_SOURCE),
        (PEERING, "10.2.0.10", Reason.FOREIGN_SOURCE),
    ],
    ids=["the Peering", "the sender's network", "the receiver's", "a third", "no member", "its own tenant's partner"],
)
def test_a_hostile_device_cannot_use_another_networks_key(network_id: bytes, source: str, reason: Reason) -> None:
    """dpu-0 seals to green-1 whatever it likes, under each key it holds."""
    _, second = joined()
    second.take(foreign(second, udp(source=source, destination="10.2.0.11")[10:], network=network_id))
    assert second.reasons == {reason: 1}
    assert len(second.delivered) == (reason is Reason.RULE_ALLOWED)


def test_a_peering_that_ends_cuts_its_flows_and_no_other() -> None:
    first, second = joined(BLUE, PEERING)
    first.give("blue-0", udp(destination="10.2.0.11"))
    first.give("blue-0", udp())
    assert first.pipeline.flow_count == 2
    alone = tables_of("dpu-0", hosts={name: host for name, host in ALL_HOSTS.items() if not name.startswith("green")})
    assert first.pipeline.apply_tables(alone) == 1
    assert ("dpu-1", PEERING) not in first.pipeline.sas.datagram_senders
    assert second.pipeline.flow_count == 0
