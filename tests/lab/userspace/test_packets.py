"""Packets made and answered without a network stack, judged by scapy."""

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6EchoReply, ICMPv6EchoRequest, IPv6
from scapy.packet import Raw

from ztdpu.lab.userspace.packets import answer, echo_request, outer_packet, split, udp_packet

V4, V6 = IP(src="10.1.0.10", dst="10.1.0.11"), IPv6(src="fd00:1::10", dst="fd00:1::11")


def as_seen(packet):
    return (IP if packet[0] >> 4 == 4 else IPv6)(packet)


def assert_sound(packet):
    """Lengths and checksums are those that scapy computes anew."""
    seen = as_seen(packet)
    for layer, fields in ((IP, ("len", "chksum")), (IPv6, ("plen",)), (UDP, ("len", "chksum")), (TCP, ("chksum",))):
        if layer in seen:
            for field in fields:
                seen[layer].delfieldval(field)
    for layer, field in ((ICMP, "chksum"), (ICMPv6EchoReply, "cksum"), (ICMPv6EchoRequest, "cksum")):
        if layer in seen:
            seen[layer].delfieldval(field)
    assert bytes(seen) == packet


@pytest.mark.parametrize("payload", [b"", b"x", b"even", bytes(1400)])
@pytest.mark.parametrize("ends", [("10.1.0.10", "10.1.0.11"), ("fd00:1::10", "fd00:1::11")])
def test_datagrams_are_what_a_kernel_would_send(ends, payload):
    packet = udp_packet(*ends, 4000, 5005, payload)
    assert_sound(packet)
    seen = as_seen(packet)
    assert (seen.src, seen.dst, seen[UDP].sport, seen[UDP].dport) == (*ends, 4000, 5005)
    assert bytes(seen[UDP].payload) == payload


def test_an_outer_packet_is_ipv4_and_leaves_its_udp_checksum_out():
    packet = outer_packet(bytes((127, 77, 0, 1)), bytes((127, 77, 0, 130)), 40_000, 11_000, b"sealed")
    seen = IP(packet)
    assert (seen.src, seen.dst, seen[UDP].dport, seen[UDP].chksum, len(packet)) == (
        "127.77.0.1", "127.77.0.130", 11_000, 0, 34,
    )  # fmt: skip
    del seen.chksum
    assert IP(bytes(seen)).chksum == IP(packet).chksum


def test_an_echo_request_is_answered_with_what_it_carried():
    for request in (V4 / ICMP(id=7, seq=9) / Raw(b"hello"), V6 / ICMPv6EchoRequest(id=7, seq=9, data=b"hello")):
        said = answer(bytes(request))
        assert_sound(said)
        seen = as_seen(said)
        assert (seen.src, seen.dst) == (request.dst, request.src)
        assert b"hello" in said
        assert answer(said) is None, "an answer is not answered"
    source, target = bytes((10, 1, 0, 10)), bytes((10, 1, 0, 11))
    ours = echo_request(source, target, 3, b"hello")
    assert_sound(ours)
    assert b"hello" in answer(ours)


def test_the_echo_port_sends_back_and_no_other_does():
    for layer in (V4, V6):
        said = answer(bytes(layer / UDP(sport=4000, dport=7) / Raw(b"hello")))
        assert_sound(said)
        assert (as_seen(said)[UDP].sport, as_seen(said)[UDP].dport) == (7, 4000)
        assert answer(bytes(layer / UDP(sport=4000, dport=8) / Raw(b"hello"))) is None


@pytest.mark.parametrize(
    ("flags", "said"), [("S", ("RA", 0, 101)), ("SF", ("RA", 0, 102)), ("A", ("R", 500, 0)), ("R", None), ("RA", None)]
)
def test_connections_are_reset_as_a_closed_port_does(flags, said):
    for layer in (V4, V6):
        packet = answer(bytes(layer / TCP(sport=4000, dport=80, flags=flags, seq=100, ack=500)))
        if said is None:
            assert packet is None
            continue
        assert_sound(packet)
        seen = as_seen(packet)[TCP]
        assert (str(seen.flags), seen.seq, seen.ack) == said


@pytest.mark.parametrize(
    "packet",
    [
        b"", b"\x45", bytes(40), b"\x60" + bytes(20),
        bytes(IP(src="10.1.0.10", dst="10.1.0.11", flags="MF") / ICMP()),
        bytes(IP(src="10.1.0.10", dst="10.1.0.11", frag=4) / ICMP()),
        bytes(IP(src="10.1.0.10", dst="10.1.0.11", len=2000) / ICMP()),
        bytes(IPv6(src="fd00:1::10", dst="fd00:1::11", plen=2000) / ICMPv6EchoRequest()),
    ],
)  # fmt: skip
def test_what_is_no_whole_packet_is_not_answered(packet):
    assert split(packet) is None
    assert answer(packet) is None
