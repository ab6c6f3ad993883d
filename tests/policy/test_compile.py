"""Cluster to tables: rows, routes, MTU, determinism."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from ztdpu.errors import NotFoundError, PolicyError
from ztdpu.model.flow import Direction
from ztdpu.packet.tables import DeviceTables, Prefix, decode_tables
from ztdpu.policy.compile import compile_tables
from ztdpu.policy.explain import assumed_networks
from ztdpu.policy.load import load_directory


def host(text: str) -> Prefix:
    address = ipaddress.ip_address(text)
    return Prefix(address=address.packed, length=address.max_prefixlen)


def tables_of(repository: Path, device: str = "dpu-0", **options: int) -> DeviceTables:
    cluster = load_directory(repository)
    return decode_tables(compile_tables(cluster, device, assumed_networks(cluster), **options).blob)


def test_rows_of_an_endpoint(repository: Path) -> None:
    (endpoint,) = [e for e in tables_of(repository).endpoints if e.name == "blue-0"]
    shown = [(r.direction, r.protocol, r.port_first, r.port_last, len(r.peers)) for r in endpoint.rules]
    assert shown == [
        (Direction.INGRESS, 6, 5000, 5009, 4),
        (Direction.EGRESS, 6, 5000, 6000, 4),
        (Direction.EGRESS, 1, 0, 65535, 2),
        (Direction.EGRESS, 58, 0, 65535, 2),
    ]
    assert host("10.1.0.11") in endpoint.rules[0].peers
    assert host("10.1.0.12") not in endpoint.rules[0].peers, "red's address is not in blue's network"


def test_an_endpoint_without_policy_has_no_rows(repository: Path) -> None:
    (endpoint,) = [e for e in tables_of(repository).endpoints if e.name == "red-0"]
    assert endpoint.rules == ()


def test_networks_routes_and_peers(repository: Path) -> None:
    tables = tables_of(repository)
    assert [network.tenant for network in tables.networks] == ["blue", "red"]
    blue, red = tables.networks
    assert blue.network_id != red.network_id
    assert [(str(ipaddress.ip_address(r.address)), r.device) for r in red.routes] == [
        ("10.1.0.10", "dpu-0"),
        ("10.1.0.12", "dpu-1"),
    ]
    assert [(p.device, ipaddress.ip_address(p.underlay_address).compressed) for p in tables.peers] == [
        ("dpu-1", "10.90.0.11")
    ]


def test_mtu_follows_the_underlay(repository: Path) -> None:
    assert {e.mtu_octets for e in tables_of(repository).endpoints} == {9000 - 60}
    assert {e.mtu_octets for e in tables_of(repository, underlay_mtu_octets=1500).endpoints} == {1440}
    file = repository / "cluster.yaml"
    file.write_text(
        file.read_text()
        .replace("address: 10.90.0.10}", 'address: "fd00:90::10"}')
        .replace("address: 10.90.0.11}", 'address: "fd00:90::11"}')
    )
    assert {e.mtu_octets for e in tables_of(repository).endpoints} == {9000 - 80}


def test_an_ip_block_with_a_hole(repository: Path) -> None:
    file = repository / "cluster.yaml"
    file.write_text(
        file.read_text().replace(
            "- to: [{endpointSelector: {}}]", "- to: [{ipBlock: {cidr: 10.1.0.0/24, except: [10.1.0.128/25]}}]"
        )
    )
    (endpoint,) = [e for e in tables_of(repository).endpoints if e.name == "blue-0"]
    egress = [rule for rule in endpoint.rules if rule.direction is Direction.EGRESS]
    assert [(r.protocol, len(r.peers), len(r.excepted)) for r in egress] == [(6, 1, 1), (1, 1, 1)], "no ICMPv6 to IPv4"


def test_the_same_files_give_the_same_bytes(repository: Path) -> None:
    cluster = load_directory(repository)
    networks = assumed_networks(cluster)
    first = compile_tables(cluster, "dpu-0", networks)
    (repository / "moved.yaml").write_text((repository / "cluster.yaml").read_text() + "\n# a comment\n")
    (repository / "cluster.yaml").unlink()
    second = compile_tables(load_directory(repository), "dpu-0", networks)
    assert first.revision == second.revision
    assert first.sources != second.sources, "places travel beside the blob"
    assert compile_tables(cluster, "dpu-1", networks).revision != first.revision


def test_refusals(repository: Path) -> None:
    cluster = load_directory(repository)
    networks = assumed_networks(cluster)
    with pytest.raises(NotFoundError, match="no device 'dpu-9'"):
        compile_tables(cluster, "dpu-9", networks)
    with pytest.raises(PolicyError, match="'red' has no network"):
        compile_tables(cluster, "dpu-0", {"blue": networks["blue"]})
