from __future__ import annotations

import dataclasses
import hashlib

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztdpu.errors import TablesError
from ztdpu.model.flow import Direction
from ztdpu.model.verdict import Verdict
from ztdpu.packet.tables import (
    DeviceTables,
    EndpointTable,
    NetworkTable,
    PeerTable,
    Prefix,
    Route,
    Rule,
    decode_tables,
    encode_tables,
    revision,
)

BLUE = b"network-of-blue!"
BLUE_0 = b"endpoint--blue-0"
BLUE_1 = b"endpoint--blue-1"
ANYWHERE = Prefix(address=bytes(4), length=0)


def allow(rule_id=1, **changes):
    values = {
        "rule_id": rule_id,
        "direction": Direction.EGRESS,
        "verdict": Verdict.ALLOW,
        "protocol": 6,
        "port_first": 80,
        "port_last": 443,
        "peers": (ANYWHERE,),
    }
    return Rule(**(values | changes))


def sample(**changes):
    """One device, one network, one endpoint here and one at a peer."""
    values = {
        "device": "dpu-0",
        "networks": (
            NetworkTable(
                network_id=BLUE,
                generation=7,
                tenant="blue",
                psp_version=1,
                flow_quota=1000,
                routes=(
                    Route(address=bytes((10, 1, 0, 10)), device="dpu-0", endpoint_id=BLUE_0),
                    Route(address=bytes((10, 1, 0, 11)), device="dpu-1", endpoint_id=BLUE_1),
                ),
            ),
        ),
        "endpoints": (
            EndpointTable(
                endpoint_id=BLUE_0,
                name="blue-0",
                network_id=BLUE,
                addresses=(bytes((10, 1, 0, 10)),),
                mtu_octets=8936,
                rules=(
                    allow(1),
                    allow(2, direction=Direction.INGRESS, excepted=(Prefix(address=b"\x0a\1\0\0", length=16),)),
                ),
            ),
        ),
        "peers": (PeerTable(device="dpu-1", underlay_address=bytes((10, 90, 0, 11))),),
    }
    return DeviceTables(**(values | changes))


def sample_with(**changes):
    """The sample with one field of its endpoint changed."""
    return sample(endpoints=(dataclasses.replace(sample().endpoints[0], **changes),))


def sample_network(**changes):
    return sample(networks=(dataclasses.replace(sample().networks[0], **changes),))


def test_round_trip_and_revision():
    blob = encode_tables(sample())
    assert decode_tables(blob) == sample()
    assert encode_tables(decode_tables(blob)) == blob
    assert revision(blob) == hashlib.sha256(blob).digest()


PEERING = b"peering".ljust(16, b"-")
GREEN_0 = b"green-0".ljust(16, b"-")
PARTNER = Route(address=bytes((10, 2, 0, 10)), device="dpu-1", endpoint_id=GREEN_0)


def peered(partner=PARTNER, **changes):
    """The sample, its endpoint in a Peering with one of another tenant on the other device."""
    blue = sample().networks[0]
    peering = dataclasses.replace(blue, network_id=PEERING, tenant="blue-green", routes=(blue.routes[0], partner))
    endpoint = dataclasses.replace(sample().endpoints[0], peerings=(PEERING,), **changes)
    return sample(networks=(*sample().networks, peering), endpoints=(endpoint,))


def test_peerings_tiers_and_rows_for_auditing_make_the_round_trip():
    denied = allow(7, verdict=Verdict.DROP, tier=0)
    passed = allow(8, verdict=None, tier=1)
    for audited in (None, (), (allow(9),)):
        tables = peered(rules=(denied, passed, allow(10, tier=2)), audit_rules=audited)
        assert decode_tables(encode_tables(tables)) == tables
    blobs = {encode_tables(peered(audit_rules=audited)) for audited in (None, (), (allow(9),))}
    assert len(blobs) == 3, "no rows for auditing are not the same as none that allow"


def test_an_address_that_would_be_two_endpoints_is_refused():
    encode_tables(peered())
    taken = sample().networks[0].routes[1].address
    with pytest.raises(TablesError, match="in two networks"):
        encode_tables(peered(dataclasses.replace(PARTNER, address=taken)))


def test_empty_tables_are_tables():
    empty = DeviceTables(device="dpu-0", networks=(), endpoints=(), peers=())
    assert decode_tables(encode_tables(empty)) == empty


ROUTES = sample().networks[0].routes

INCONSISTENT = {
    "own peer": sample(peers=(*sample().peers, PeerTable(device="dpu-0", underlay_address=bytes(4)))),
    "peer twice": sample(peers=sample().peers * 2),
    "underlay address": sample(peers=(PeerTable(device="dpu-1", underlay_address=bytes(5)),)),
    "no name": sample_with(name=""),
    "name of two lines": sample_with(name="blue\n0"),
    "name beyond ASCII": sample_with(name="bl\u00fce"),
    "long name": sample_with(name="d" * 254),
    "network twice": sample(networks=sample().networks * 2),
    "short network id": sample_network(network_id=b"blue"),
    "generation": sample_network(generation=2**64),
    "psp version without confidentiality": sample_network(psp_version=2),
    "quota below zero": sample_network(flow_quota=-1),
    "quota too high": sample_network(flow_quota=1_000_001),
    "route twice": sample_network(routes=(*ROUTES, ROUTES[1])),
    "route to a stranger": sample_network(routes=(*ROUTES, Route(address=bytes(16), device="dpu-9", endpoint_id=BLUE_1))),
    "route to a bad address": sample_network(routes=(*ROUTES, Route(address=bytes(6), device="dpu-1", endpoint_id=BLUE_1))),
    "endpoint not routed": sample_network(routes=ROUTES[1:]),
    "endpoint routed to another": sample_network(routes=(dataclasses.replace(ROUTES[0], endpoint_id=BLUE_1), ROUTES[1])),
    "endpoint in no network": sample(networks=()),
    "silent endpoint in no network": sample(
        networks=(), endpoints=(dataclasses.replace(sample().endpoints[0], addresses=()),)
    ),
    "endpoint twice": sample(endpoints=sample().endpoints * 2),
    "mtu": sample_with(mtu_octets=575),
    "address twice": sample_with(addresses=sample().endpoints[0].addresses * 2),
    "rule twice": sample_with(rules=(allow(3), allow(3))),
    "rule without peers": sample_with(rules=(allow(peers=()),)),
    "host bits": sample_with(rules=(allow(peers=(Prefix(address=b"\x0a\1\0\1", length=16),)),)),
    "prefix length": sample_with(rules=(allow(peers=(Prefix(address=bytes(4), length=33),)),)),
    "exception": sample_with(rules=(allow(excepted=(Prefix(address=bytes(7), length=3),)),)),
    "ports": sample_with(rules=(allow(port_first=444),)),
    "port": sample_with(rules=(allow(port_last=65536),)),
    "protocol": sample_with(rules=(allow(protocol=256),)),
    "rule id": sample_with(rules=(allow(rule_id=2**32),)),
    "tier": sample_with(rules=(allow(tier=8),)),
    "tiers out of order": sample_with(rules=(allow(1, tier=1), allow(2))),
    "rule twice, once for auditing": sample_with(rules=(allow(3),), audit_rules=(allow(3),)),
    "peering without a network": sample_with(peerings=(b"p" * 16,)),
    "peering in the own network": sample_with(peerings=(BLUE,)),
}  # fmt: skip


@pytest.mark.parametrize("tables", INCONSISTENT.values(), ids=INCONSISTENT.keys())
def test_what_cannot_be_enforced_cannot_be_encoded(tables):
    with pytest.raises(TablesError):
        encode_tables(tables)


def rows():
    return cbor2.loads(encode_tables(sample()))


def test_the_rows_of_the_twin_decode():
    assert decode_tables(cbor2.dumps(rows(), canonical=True)) == sample()


WRONG_ROWS = {
    "not an array": "tables",
    "word": ["ztdpu/v3/tables", *rows()[1:]],
    "arity": [*rows(), 0],
    "map": {0: 1},
    "peers is a map": [*rows()[:4], {}],
    "bool for an integer": [*rows()[:2], [[BLUE, True, "blue", 1, 9, []]], [], []],
    "float for an integer": [*rows()[:2], [[BLUE, 1.0, "blue", 1, 9, []]], [], []],
    "text for octets": [*rows()[:2], [["network-of-blue!", 1, "blue", 1, 9, []]], [], []],
    "octets for text": [rows()[0], b"dpu-0", [], [], []],
    "direction": [*rows()[:3], [[BLUE_0, "blue-0", BLUE, [], 9000, [[1, 2, 1, 6, 1, 1, [bytes(5)], []]]]], []],
    "verdict": [*rows()[:3], [[BLUE_0, "blue-0", BLUE, [], 9000, [[1, 1, 3, 6, 1, 1, [bytes(5)], []]]]], []],
    "prefix": [*rows()[:3], [[BLUE_0, "blue-0", BLUE, [], 9000, [[1, 1, 1, 6, 1, 1, [bytes(4)], []]]]], []],
}


@pytest.mark.parametrize("document", WRONG_ROWS.values(), ids=WRONG_ROWS.keys())
def test_wrong_rows_are_refused(document):
    with pytest.raises(TablesError):
        decode_tables(cbor2.dumps(document))


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"\x9f\xff",
        b"\x81" * 5000,
        encode_tables(sample()) + b"\0",
        encode_tables(sample())[:-1],
        cbor2.dumps(rows()).replace(b"\x19\x22\xe8", b"\x1a\x00\x00\x22\xe8"),
        b"\x9f" + encode_tables(sample())[1:] + b"\xff",
        b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff",
        bytes(16 * 1024 * 1024 + 1),
    ],
    ids=["empty", "indefinite", "deep", "tail", "short", "long integer", "indefinite rows", "huge array", "huge blob"],
)
def test_other_spellings_are_refused(blob):
    with pytest.raises(TablesError):
        decode_tables(blob)


@given(st.data())
def test_every_mutation_is_refused_or_is_exactly_what_it_says(data):
    blob = bytearray(encode_tables(sample()))
    for _ in range(data.draw(st.integers(1, 3))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    try:
        tables = decode_tables(bytes(blob))
    except TablesError:
        return
    assert encode_tables(tables) == blob


def test_every_flipped_bit_is_refused_or_exact():
    blob = encode_tables(sample())
    for bit in range(len(blob) * 8):
        flipped = bytearray(blob)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            tables = decode_tables(bytes(flipped))
        except TablesError:
            continue
        assert tables != sample()
        assert encode_tables(tables) == flipped


@st.composite
def prefixes(draw):
    bits = draw(st.sampled_from((32, 128)))
    length = draw(st.integers(0, bits))
    number = draw(st.integers(0, 2**length - 1)) << (bits - length)
    return Prefix(address=number.to_bytes(bits // 8), length=length)


@st.composite
def rules(draw, rule_id):
    first = draw(st.integers(0, 65535))
    return Rule(
        rule_id=rule_id,
        direction=draw(st.sampled_from(Direction)),
        verdict=draw(st.sampled_from(Verdict)),
        protocol=draw(st.integers(0, 255)),
        port_first=first,
        port_last=draw(st.integers(first, 65535)),
        peers=tuple(draw(st.lists(prefixes(), min_size=1, max_size=3))),
        excepted=tuple(draw(st.lists(prefixes(), max_size=2))),
    )


@given(st.data())
def test_any_rules_survive_the_round_trip(data):
    count = data.draw(st.integers(0, 5))
    tables = sample_with(rules=tuple(data.draw(rules(number)) for number in range(count)))
    assert decode_tables(encode_tables(tables)) == tables
