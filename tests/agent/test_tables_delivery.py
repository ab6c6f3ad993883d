"""Tables against the roster: what control may send is what an operator signed, Peerings included."""

from __future__ import annotations

import dataclasses

import pytest

from ztdpu.agent.tables_delivery import check_against_roster, open_delivery
from ztdpu.errors import TablesError
from ztdpu.packet.tables import DeviceTables, EndpointTable, NetworkTable, PeerTable, Route, encode_tables, revision
from ztdpu.trust.roster import Roster, RosterDevice, RosterNetwork

BLUE, GREEN, RED, PEERING = (word.ljust(16, b"-") for word in (b"blue", b"green", b"red", b"blue-green"))
ADDRESSES = {"blue-0": bytes((10, 1, 0, 10)), "green-1": bytes((10, 2, 0, 11))}
ROSTER = Roster(
    serial=1,
    trust_domain="ztdpu.lab",
    devices=(
        RosterDevice(name="dpu-0", device_id_sha256=b"0" * 32, tenants=("blue",)),
        RosterDevice(name="dpu-1", device_id_sha256=b"1" * 32, tenants=("green", "red")),
    ),
    networks=(
        RosterNetwork(tenant="blue", network_id=BLUE, generation=1),
        RosterNetwork(tenant="green", network_id=GREEN, generation=1),
        RosterNetwork(tenant="red", network_id=RED, generation=1),
        RosterNetwork(tenant="blue-green", network_id=PEERING, generation=1, members=("blue", "green")),
    ),
)


def route(name: str, device: str) -> Route:
    return Route(address=ADDRESSES[name], device=device, endpoint_id=name.encode().ljust(16))


def network(network_id: bytes, name: str, *routes: Route) -> NetworkTable:
    return NetworkTable(network_id=network_id, generation=1, tenant=name, psp_version=1, flow_quota=9, routes=routes)


def tables(**changes: object) -> DeviceTables:
    own, partner = route("blue-0", "dpu-0"), route("green-1", "dpu-1")
    endpoint = EndpointTable(
        endpoint_id=own.endpoint_id, name="blue-0", network_id=BLUE, addresses=(own.address,), mtu_octets=1440,
        rules=(), peerings=(PEERING,),
    )  # fmt: skip
    fields: dict[str, object] = {
        "device": "dpu-0",
        "networks": (network(BLUE, "blue", own), network(PEERING, "blue-green", own, partner)),
        "endpoints": (endpoint,),
        "peers": (PeerTable(device="dpu-1", underlay_address=bytes(4)),),
    }
    return DeviceTables(**(fields | changes))  # type: ignore[arg-type]


def test_what_the_operator_signed_is_taken() -> None:
    check_against_roster(tables(), ROSTER)
    blob = encode_tables(tables())
    taken = open_delivery(generation=1, revision=revision(blob), blob=blob, device="dpu-0", lowest_generation=0)
    assert taken.tables == tables()


def moved(network_id: bytes, name: str) -> DeviceTables:
    """The Peering's network under another name or id."""
    networks = (tables().networks[0], network(network_id, name, *tables().networks[1].routes))
    (endpoint,) = tables().endpoints
    return tables(networks=networks, endpoints=(dataclasses.replace(endpoint, peerings=(network_id,)),))


def living_in(network_id: bytes, peerings: tuple[bytes, ...]) -> DeviceTables:
    (endpoint,) = tables().endpoints
    return tables(endpoints=(dataclasses.replace(endpoint, network_id=network_id, peerings=peerings),))


ROSTER_WITHOUT = dataclasses.replace(ROSTER, networks=ROSTER.networks[:3])
ROSTER_OF_OTHERS = dataclasses.replace(
    ROSTER, networks=(*ROSTER.networks[:3], dataclasses.replace(ROSTER.networks[3], members=("green", "red")))
)


@pytest.mark.parametrize(
    ("made", "roster", "words"),
    [
        (tables(), ROSTER_WITHOUT, "is not in the roster"),
        (moved(b"x" * 16, "blue-green"), ROSTER, "is not in the roster"),
        (moved(PEERING, "red"), ROSTER, "is not in the roster"),
        (tables(), ROSTER_OF_OTHERS, "may not host blue-green"),
        (living_in(PEERING, ()), ROSTER, "in no tenant's network"),
        (living_in(BLUE, (BLUE,)), ROSTER, "takes no part in the Peering"),
    ],
    ids=["no Peering signed", "another id", "another name", "of other tenants", "lives in a Peering", "no Peering"],
)
def test_what_nobody_signed_is_refused(made: DeviceTables, roster: Roster, words: str) -> None:
    with pytest.raises(TablesError, match=words):
        check_against_roster(made, roster)
