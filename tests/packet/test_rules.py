from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ztdpu.model.flow import Direction
from ztdpu.model.verdict import Verdict
from ztdpu.packet.rules import RuleIndex, _port_prefixes
from ztdpu.packet.tables import Prefix, Rule

PROTOCOLS = {"any": 0, "icmp": 1, "tcp": 6, "udp": 17, "icmpv6": 58}


def prefix(text):
    network = ip_network(text)
    return Prefix(address=network.network_address.packed, length=network.prefixlen)


def rule(text, rule_id=0):
    """`egress ALLOW tcp 80-443 10.0.0.0/8,fd00::/8 except 10.1.0.0/16`."""
    words = text.split()
    direction, verdict, protocol, ports, peers = words[:5]
    first, _, last = ports.partition("-")
    if ports == "*":
        first, last = "0", "65535"
    return Rule(
        rule_id=rule_id,
        direction=Direction(direction),
        verdict=Verdict(verdict),
        protocol=PROTOCOLS[protocol],
        port_first=int(first),
        port_last=int(last or first),
        peers=tuple(map(prefix, peers.split(","))),
        excepted=tuple(map(prefix, words[6].split(","))) if len(words) > 5 else (),
    )


def rules(*texts):
    return tuple(rule(text, number) for number, text in enumerate(texts))


def scan(rows, direction, peer, protocol, port):
    """The definition: the first row that matches, by looking at each."""

    def inside(prefix):
        bits = len(prefix.address) * 8
        if len(prefix.address) != len(peer):
            return False
        shift = bits - prefix.length
        return int.from_bytes(prefix.address) >> shift == int.from_bytes(peer) >> shift

    for row in rows:
        if (
            row.direction == direction
            and row.protocol in (0, protocol)
            and row.port_first <= port <= row.port_last
            and any(map(inside, row.peers))
            and not any(map(inside, row.excepted))
        ):
            return row
    return None


ROWS = rules(
    "egress DROP tcp 22 10.1.0.0/16",
    "egress ALLOW tcp 1-1023 10.0.0.0/8 except 10.1.2.0/24,10.1.3.3/32",
    "egress AUDIT any * 10.1.2.0/24",
    "ingress ALLOW udp 53 0.0.0.0/0,::/0",
    "egress ALLOW icmpv6 * fd00::/8 except fd00:1::/32",
    "egress ALLOW tcp 80 10.1.0.7/32",
)

QUESTIONS = [
    ("egress 10.1.0.9 tcp 22", 0),
    ("egress 10.2.0.9 tcp 22", 1),
    ("egress 10.2.0.9 tcp 1023", 1),
    ("egress 10.2.0.9 tcp 1024", None),
    ("egress 10.2.0.9 udp 80", None),
    ("egress 10.1.2.1 tcp 80", 2),
    ("egress 10.1.2.1 udp 80", 2),
    ("egress 10.1.2.1 icmp 0", 2),
    ("egress 10.1.3.3 tcp 80", None),
    ("egress 10.1.0.7 tcp 80", 1),
    ("ingress 10.1.0.7 tcp 80", None),
    ("ingress 10.1.0.7 udp 53", 3),
    ("ingress fd00::1 udp 53", 3),
    ("egress fd00:2::1 icmpv6 0", 4),
    ("egress fd00:1::1 icmpv6 0", None),
    ("egress fd00:2::1 tcp 80", None),
]


@pytest.mark.parametrize(("question", "row"), QUESTIONS, ids=[question for question, _ in QUESTIONS])
def test_first_match(question, row):
    direction, peer, protocol, port = question.split()
    asked = (Direction(direction), ip_address(peer).packed, PROTOCOLS[protocol], int(port))
    found = RuleIndex(ROWS).match(*asked)
    assert (found and found.rule_id) == row
    assert scan(ROWS, *asked) is found


def test_an_earlier_row_of_one_length_beats_a_later_one_of_another():
    """Each length has a row that is first of all and one that matches: only the latter two compete."""
    index = RuleIndex(
        rules(
            "egress DROP tcp 80 10.2.0.7/32",
            "egress DROP tcp 80 10.2.0.0/24",
            "egress ALLOW tcp 80 10.1.0.7/32",
            "egress DROP tcp 80 10.1.0.0/24",
        )
    )
    assert index.match(Direction.EGRESS, bytes((10, 1, 0, 7)), 6, 80).rule_id == 2
    assert index.match(Direction.EGRESS, bytes((10, 1, 0, 8)), 6, 80).rule_id == 3


def test_no_rules_match_nothing():
    assert RuleIndex(()).match(Direction.EGRESS, bytes(4), 6, 80) is None


def test_one_address_family_never_answers_for_the_other():
    index = RuleIndex(rules("egress ALLOW any * ::/0"))
    assert index.match(Direction.EGRESS, bytes(16), 6, 80)
    assert index.match(Direction.EGRESS, bytes(4), 6, 80) is None


@given(st.integers(0, 65535), st.integers(0, 65535))
def test_port_prefixes_tile_the_range(one, two):
    first, last = sorted((one, two))
    expected = first
    blocks = list(_port_prefixes(first, last))
    for shift, value in blocks:
        assert value << shift == expected
        expected += 1 << shift
    assert expected == last + 1
    assert len(blocks) <= 30


ADDRESSES = st.sampled_from([ip_address(text).packed for text in (
    "10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.1.1", "10.128.0.1", "192.168.0.1", "255.255.255.255",
    "::", "fd00::1", "fd00::2", "fd00:1::1", "fe00::1",
)])  # fmt: skip
PORTS = st.sampled_from((0, 1, 2, 3, 79, 80, 81, 443, 32767, 32768, 65534, 65535))


@st.composite
def drawn_prefixes(draw):
    address = draw(ADDRESSES)
    bits = len(address) * 8
    length = draw(st.sampled_from((0, 1, 8, 9, 24, 30, 31, 32, bits - 1, bits)))
    number = int.from_bytes(address) >> (bits - length) << (bits - length)
    return Prefix(address=number.to_bytes(bits // 8), length=length)


@st.composite
def drawn_rules(draw):
    first, last = sorted((draw(PORTS), draw(PORTS)))
    if draw(st.booleans()):
        first, last = 0, 65535
    return Rule(
        rule_id=draw(st.integers(0, 9)),
        direction=draw(st.sampled_from(Direction)),
        verdict=draw(st.sampled_from(Verdict)),
        protocol=draw(st.sampled_from((0, 6, 17))),
        port_first=first,
        port_last=last,
        peers=tuple(draw(st.lists(drawn_prefixes(), min_size=1, max_size=3))),
        excepted=tuple(draw(st.lists(drawn_prefixes(), max_size=2))),
    )


@settings(max_examples=400)
@given(
    st.lists(drawn_rules(), max_size=12),
    st.lists(st.tuples(st.sampled_from(Direction), ADDRESSES, st.sampled_from((0, 6, 17, 47)), PORTS), min_size=1),
)
def test_the_index_says_what_a_scan_says(rows, questions):
    index = RuleIndex(rows)
    for question in questions:
        assert index.match(*question) is scan(rows, *question)
