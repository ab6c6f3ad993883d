from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import (
    ICMPv6DestUnreach,
    ICMPv6EchoRequest,
    ICMPv6ND_Redirect,
    ICMPv6PacketTooBig,
    ICMPv6TimeExceeded,
    IPv6,
    IPv6ExtHdrFragment,
)
from scapy.packet import Raw, raw

from ztdpu.packet.headers import Packet, parse
from ztdpu.packet.quotes import is_error, quoted_key

HERE, THERE = IP(src="10.1.0.10", dst="10.1.0.11"), IP(src="10.1.0.11", dst="10.1.0.10")
HERE6, THERE6 = IPv6(src="fd00::10", dst="fd00::11"), IPv6(src="fd00::11", dst="fd00::10")
STRANGER = IP(src="10.1.0.12", dst="10.1.0.10")


def parsed(octets):
    packet = Packet()
    assert parse(packet, octets, 0, len(octets)) is None
    return packet


def quoted(layers):
    return quoted_key(parsed(raw(layers)))


def key(layers):
    return parsed(raw(layers)).key


UNREACHABLE = ICMP(type=3, code=3)
SENT = [
    (THERE / UNREACHABLE, HERE / TCP(sport=5, dport=80, flags="S")),
    (THERE / UNREACHABLE, HERE / UDP(sport=5, dport=80) / b"payload"),
    (THERE / UNREACHABLE, HERE / ICMP(type=8, id=7)),
    (THERE / ICMP(type=11, code=0), HERE / UDP(sport=5, dport=80)),
    (THERE / ICMP(type=3, code=4, nexthopmtu=1400), HERE / TCP(sport=5, dport=80)),
    (THERE6 / ICMPv6DestUnreach(code=4), HERE6 / UDP(sport=5, dport=80)),
    (THERE6 / ICMPv6PacketTooBig(mtu=1280), HERE6 / TCP(sport=5, dport=80)),
    (THERE6 / ICMPv6TimeExceeded(), HERE6 / ICMPv6EchoRequest(id=7)),
]


@pytest.mark.parametrize(("error", "about"), SENT)
def test_an_error_names_the_flow_of_the_packet_it_quotes(error, about):
    packet = parsed(raw(error / about))
    assert is_error(packet)
    assert quoted_key(packet) == key(about)


def test_eight_octets_behind_the_header_are_enough():
    about = raw(HERE / TCP(sport=5, dport=80) / Raw(b"x" * 1000))
    assert quoted(THERE / UNREACHABLE / Raw(about[:28])) == key(HERE / TCP(sport=5, dport=80))
    assert quoted(THERE / UNREACHABLE / Raw(about[:27])) is None


@pytest.mark.parametrize(
    "layers",
    [
        THERE / UNREACHABLE,
        THERE / UNREACHABLE / THERE / UDP(),
        STRANGER / UNREACHABLE / HERE / UDP(),
        THERE / UNREACHABLE / IP(src="10.1.0.12", dst="10.1.0.11") / UDP(),
        THERE / UNREACHABLE / IP(src="10.1.0.10", dst="10.1.0.11", flags="MF") / UDP(),
        THERE / UNREACHABLE / IP(src="10.1.0.10", dst="10.1.0.11", frag=3) / UDP(),
        THERE / UNREACHABLE / Raw(b"\x46" + raw(HERE / UDP())[1:] + bytes(8)),
        THERE / UNREACHABLE / Raw(b"\x65" + raw(HERE / UDP())[1:] + bytes(40)),
        THERE / UNREACHABLE / IP(src="10.1.0.10", dst="10.1.0.11", proto=132) / Raw(bytes(8)),
        THERE / UNREACHABLE / IP(src="10.1.0.10", dst="10.1.0.11", proto=58) / Raw(b"\x80" + bytes(7)),
        THERE / ICMP(type=3, code=4, nexthopmtu=575) / HERE / TCP(),
        THERE / ICMP(type=3, code=4, nexthopmtu=68) / HERE / TCP(),
        THERE / ICMP(type=3, code=4, nexthopmtu=0) / HERE / TCP(),
        THERE6 / ICMPv6PacketTooBig(mtu=1279) / HERE6 / TCP(),
        THERE6 / ICMPv6PacketTooBig(mtu=0) / HERE6 / TCP(),
        THERE6 / ICMPv6DestUnreach() / Raw(raw(HERE6 / UDP())[:47]),
        THERE6 / ICMPv6DestUnreach() / HERE6 / IPv6ExtHdrFragment() / UDP(),
    ],
)
def test_an_error_not_to_be_believed(layers):
    assert quoted(layers) is None


def test_an_error_about_an_error_names_no_flow():
    about = HERE / UNREACHABLE / THERE / UDP()
    assert quoted(THERE / UNREACHABLE / about) == key(about)
    assert len(key(about)) == 8  # addresses alone: no flow has such a key


@pytest.mark.parametrize(
    "layers",
    [
        THERE / ICMP(type=5, code=1) / HERE / UDP(),
        THERE / ICMP(type=4) / HERE / UDP(),
        THERE / ICMP(type=8),
        THERE / ICMP(type=13),
        THERE6 / ICMPv6ND_Redirect(),
        THERE / UDP() / b"x",
    ],
)
def test_what_is_no_error(layers):
    assert not is_error(parsed(raw(layers)))


@given(st.sampled_from(SENT), st.data())
def test_a_mutated_quote_names_some_key_or_none(pair, data):
    octets = bytearray(raw(pair[0] / pair[1]))
    header = 20 if octets[0] == 0x45 else 40
    for _ in range(data.draw(st.integers(1, 4))):
        octets[data.draw(st.integers(header, len(octets) - 1))] = data.draw(st.integers(0, 255))
    packet = Packet()
    if parse(packet, bytes(octets), 0, len(octets)) is None and is_error(packet):
        found = quoted_key(packet)
        addresses = packet.destination + packet.source
        assert found is None or found.startswith(addresses)
