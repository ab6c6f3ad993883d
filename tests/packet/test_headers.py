from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption_LSRR, IPOption_Router_Alert, IPOption_RR, fragment
from scapy.layers.inet6 import (
    ICMPv6EchoReply,
    ICMPv6EchoRequest,
    ICMPv6MLReport2,
    ICMPv6ND_NA,
    ICMPv6ND_RS,
    ICMPv6PacketTooBig,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
)
from scapy.packet import Raw, raw

from ztdpu.model.verdict import Reason
from ztdpu.packet.headers import Packet, check_transport, parse

V4 = {"src": "10.1.0.10", "dst": "10.1.0.11"}
V6 = {"src": "fd00:1::10", "dst": "fd00:1::11"}
A4, B4 = bytes((10, 1, 0, 10)), bytes((10, 1, 0, 11))
A6, B6 = bytes.fromhex("fd000001" + "00" * 11 + "10"), bytes.fromhex("fd000001" + "00" * 11 + "11")


def judge(octets, packet=None):
    """Parse at an odd place of a larger buffer, as the pipeline does."""
    buffer = memoryview(bytearray(b"\xa5" * 10 + octets + b"\x5a" * 7))
    return parse(packet or Packet(), buffer, 10, len(octets))


def parsed(layers):
    packet = Packet()
    assert judge(raw(layers), packet) is None
    return packet


# --- what passes, field by field ---------------------------------------------------------------


@pytest.mark.parametrize("payload", [b"", b"x", b"x" * 8000])
@pytest.mark.parametrize("options", [[], [("MSS", 1460)], [("NOP", None), ("NOP", None), ("Timestamp", (1, 2))]])
@pytest.mark.parametrize("family", [4, 6])
def test_tcp(family, options, payload):
    ip = IP(**V4) if family == 4 else IPv6(**V6)
    layers = ip / TCP(sport=5000, dport=80, flags="PA", seq=7, ack=9, options=options) / Raw(payload)
    packet = parsed(layers)
    a, b = (A4, B4) if family == 4 else (A6, B6)
    assert (packet.version, packet.protocol, packet.ip_octets) == (family, 6, 20 if family == 4 else 40)
    assert (packet.source, packet.destination) == (a, b)
    assert (packet.source_port, packet.destination_port) == (5000, 80)
    assert packet.key == a + b + struct.pack(">HH", 5000, 80)
    assert (packet.flags, packet.sequence, packet.acknowledgement) == (0x18, 7, 9)
    assert packet.octets == len(raw(layers))
    assert packet.payload_offset == packet.octets - len(payload)
    assert bytes(packet.buffer[packet.offset :][: packet.octets]) == raw(layers)
    assert check_transport(packet) is None


@pytest.mark.parametrize("payload", [b"", b"odd", b"x" * 8000])
@pytest.mark.parametrize(("ip", "a", "b"), [(IP(**V4), A4, B4), (IPv6(**V6), A6, B6)], ids=["v4", "v6"])
def test_udp(ip, a, b, payload):
    packet = parsed(ip / UDP(sport=5000, dport=53) / Raw(payload))
    assert (packet.protocol, packet.flags) == (17, 0)
    assert (packet.source_port, packet.destination_port) == (5000, 53)
    assert packet.key == a + b + struct.pack(">HH", 5000, 53) + b"\x11"
    assert packet.octets - packet.payload_offset == len(payload)
    assert not packet.is_echo_request
    assert check_transport(packet) is None


ECHOES = [
    (IP(**V4) / ICMP(type=8, id=0x1234) / b"ping", 1, True),
    (IP(**V4) / ICMP(type=0, id=0x1234) / b"ping", 1, False),
    (IPv6(**V6) / ICMPv6EchoRequest(id=0x1234, data=b"ping"), 58, True),
    (IPv6(**V6) / ICMPv6EchoReply(id=0x1234, data=b"ping"), 58, False),
]


@pytest.mark.parametrize(("layers", "protocol", "is_request"), ECHOES)
def test_echo(layers, protocol, is_request):
    packet = parsed(layers)
    assert packet.protocol == protocol
    assert packet.is_echo_request is is_request
    assert packet.source_port == 0x1234
    assert packet.destination_port == 0
    assert len(packet.key) == (14 if protocol == 1 else 38)
    assert check_transport(packet) is None


def test_other_icmp_has_addresses_alone_as_key():
    error = parsed(IP(**V4) / ICMP(type=3, code=3) / IP(src="10.1.0.11", dst="10.1.0.10") / UDP())
    assert (error.icmp_type, error.icmp_code, error.key) == (3, 3, A4 + B4)
    assert parsed(IPv6(**V6) / ICMPv6PacketTooBig(mtu=1400) / IPv6(**V6)).key == A6 + B6
    assert parsed(IP(**V4) / ICMP(type=8, code=1)).key == A4 + B4


def test_an_address_is_never_taken_for_an_echo_mark():
    packet = parsed(IP(src="10.1.0.10", dst="8.0.1.1") / ICMP(type=13))
    assert not packet.is_echo_request


def test_keys_of_different_protocols_have_different_lengths():
    layers = [ip / transport for ip in (IP(**V4), IPv6(**V6)) for transport in (TCP(), UDP())] + [e[0] for e in ECHOES]
    keys = [parsed(one).key for one in layers]
    assert sorted({len(key) for key in keys}) == [12, 13, 14, 36, 37, 38]
    assert len(set(keys)) == len(keys)


def test_one_packet_object_serves_many():
    packet = Packet()
    for layers in (IP(**V4) / TCP(flags="S"), IPv6(**V6) / UDP(), IP(**V4) / ICMP(), IPv6(**V6) / TCP(flags="A")):
        fresh = parsed(layers)
        assert judge(raw(layers), packet) is None
        assert (packet.key, packet.protocol, packet.flags, packet.octets) == (
            fresh.key, fresh.protocol, fresh.flags, fresh.octets,
        )  # fmt: skip


# --- what is refused, by reason -----------------------------------------------------------------

TCP4 = raw(IP(**V4) / TCP(flags="S") / b"payload")
TCP6 = raw(IPv6(**V6) / TCP(flags="S") / b"payload")


def patched(octets, at, value):
    return octets[:at] + value + octets[at + len(value) :]


def summed(octets):
    """The IPv4 packet with its header checksum put right."""
    header = patched(octets[:20], 10, b"\0\0")
    total = sum(struct.unpack(">10H", header)) % 0xFFFF
    return patched(octets, 10, struct.pack(">H", 0xFFFF - (total or 0xFFFF)))


def test_the_twins_of_the_patched_packets_pass():
    assert judge(TCP4) is None
    assert judge(summed(TCP4)) is None
    assert judge(TCP6) is None


REFUSED = {
    "nothing": (b"", Reason.MALFORMED),
    "one octet": (b"\x45", Reason.MALFORMED),
    "19 octets": (TCP4[:19], Reason.MALFORMED),
    "v6 of 39 octets": (TCP6[:39], Reason.MALFORMED),
    "version 0": (patched(TCP4, 0, b"\x05"), Reason.MALFORMED),
    "version 5": (patched(TCP4, 0, b"\x55"), Reason.MALFORMED),
    "header of 16 octets": (patched(TCP4, 0, b"\x44"), Reason.MALFORMED),
    "total length short": (summed(patched(TCP4, 2, struct.pack(">H", len(TCP4) - 1))), Reason.MALFORMED),
    "total length long": (summed(patched(TCP4, 2, struct.pack(">H", len(TCP4) + 1))), Reason.MALFORMED),
    "total length zero": (summed(patched(TCP4, 2, b"\0\0")), Reason.MALFORMED),
    "trailing octets": (TCP4 + b"canary", Reason.MALFORMED),
    "v6 payload length": (patched(TCP6, 4, struct.pack(">H", len(TCP6) - 41)), Reason.MALFORMED),
    "jumbogram": (patched(TCP6, 4, b"\0\0"), Reason.MALFORMED),
    "reserved flag": (summed(patched(TCP4, 6, b"\x80\0")), Reason.MALFORMED),
    "header checksum": (patched(TCP4, 10, b"\x12\x34"), Reason.BAD_CHECKSUM),
    "header checksum zero": (patched(TCP4, 10, b"\0\0"), Reason.BAD_CHECKSUM),
    "tcp header below 20": (patched(TCP4, 32, b"\x40"), Reason.MALFORMED),
    "tcp header beyond the packet": (patched(TCP4, 32, b"\xf0"), Reason.MALFORMED),
    "tcp cut": (raw(IP(**V4, proto=6) / Raw(b"x" * 19)), Reason.MALFORMED),
    "v6 tcp header below 20": (patched(TCP6, 52, b"\x40"), Reason.MALFORMED),
    "v6 tcp header beyond": (patched(TCP6, 52, b"\xf0"), Reason.MALFORMED),
    "v6 tcp cut": (raw(IPv6(**V6, nh=6) / Raw(b"x" * 19)), Reason.MALFORMED),
    "udp cut": (raw(IP(**V4, proto=17) / Raw(b"x" * 7)), Reason.MALFORMED),
    "udp length short": (raw(IP(**V4) / UDP(len=9) / b"four"), Reason.MALFORMED),
    "udp length long": (raw(IP(**V4) / UDP(len=13) / b"four"), Reason.MALFORMED),
    "udp length zero": (raw(IPv6(**V6) / UDP(len=0) / b"four"), Reason.MALFORMED),
    "icmp cut": (raw(IP(**V4, proto=1) / Raw(b"\x08\0\0\0")), Reason.MALFORMED),
    "icmpv6 cut": (raw(IPv6(**V6, nh=58) / Raw(b"\x80\0\0\0")), Reason.MALFORMED),
    "ttl": (raw(IP(**V4, ttl=0) / TCP()), Reason.TTL_EXPIRED),
    "hop limit": (raw(IPv6(**V6, hlim=0) / TCP()), Reason.TTL_EXPIRED),
    "record route": (raw(IP(**V4, options=[IPOption_RR()]) / TCP()), Reason.IP_OPTIONS),
    "source route": (raw(IP(**V4, options=[IPOption_LSRR()]) / TCP()), Reason.IP_OPTIONS),
    "router alert": (raw(IP(**V4, options=[IPOption_Router_Alert()]) / UDP()), Reason.IP_OPTIONS),
    "hop by hop": (raw(IPv6(**V6) / IPv6ExtHdrHopByHop() / TCP()), Reason.EXTENSION_HEADER),
    "routing": (raw(IPv6(**V6) / IPv6ExtHdrRouting(addresses=["fd00::9"]) / TCP()), Reason.EXTENSION_HEADER),
    "destination options": (raw(IPv6(**V6) / IPv6ExtHdrDestOpt() / TCP()), Reason.EXTENSION_HEADER),
    "authentication header": (raw(IPv6(**V6, nh=51) / Raw(bytes(24))), Reason.EXTENSION_HEADER),
    "esp": (raw(IPv6(**V6, nh=50) / Raw(bytes(24))), Reason.EXTENSION_HEADER),
    "multicast listener report": (
        raw(IPv6(src="fe80::1", dst="ff02::16") / IPv6ExtHdrHopByHop() / ICMPv6MLReport2()), Reason.EXTENSION_HEADER,
    ),
    "v6 fragment": (raw(IPv6(**V6) / IPv6ExtHdrFragment(m=1) / TCP()), Reason.FRAGMENT),
    "v6 atomic fragment": (raw(IPv6(**V6) / IPv6ExtHdrFragment() / TCP()), Reason.FRAGMENT),
    "tiny fragment": (raw(IP(**V4, flags="MF", proto=6) / Raw(b"x" * 8)), Reason.FRAGMENT),
    "trailing fragment": (raw(IP(**V4, frag=9, proto=6) / Raw(b"x")), Reason.FRAGMENT),
    "fragment of ttl 0": (raw(IP(**V4, frag=9, proto=6, ttl=0) / Raw(b"x")), Reason.FRAGMENT),
    "sctp": (raw(IP(**V4, proto=132) / Raw(bytes(24))), Reason.UNKNOWN_PROTOCOL),
    "gre": (raw(IPv6(**V6, nh=47) / Raw(bytes(24))), Reason.UNKNOWN_PROTOCOL),
    "no next header": (raw(IPv6(**V6, nh=59)), Reason.UNKNOWN_PROTOCOL),
    "ip in ip": (raw(IP(**V4) / IP(**V4) / TCP()), Reason.UNKNOWN_PROTOCOL),
    "icmpv6 over v4": (raw(IP(**V4, proto=58) / Raw(b"\x80" + bytes(7))), Reason.UNKNOWN_PROTOCOL),
    "icmp over v6": (raw(IPv6(**V6, nh=1) / Raw(b"\x08" + bytes(7))), Reason.UNKNOWN_PROTOCOL),
    "router solicitation": (raw(IPv6(src="fe80::1", dst="ff02::2") / ICMPv6ND_RS()), Reason.MULTICAST),
    "neighbour advertisement": (raw(IPv6(src="fe80::1", dst="fd00::1") / ICMPv6ND_NA()), Reason.MARTIAN),
}  # fmt: skip


@pytest.mark.parametrize(("octets", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(octets, reason):
    assert judge(octets) is reason


@pytest.mark.parametrize("size", [8, 16, 1400])
def test_every_fragment_of_a_datagram_is_refused(size):
    pieces = fragment(IP(**V4) / UDP() / Raw(b"x" * 3000), fragsize=size)
    assert {judge(raw(piece)) for piece in pieces} == {Reason.FRAGMENT}


@pytest.mark.parametrize("protocol", sorted(set(range(256)) - {1, 6, 17}))
def test_every_other_protocol_is_refused_over_v4(protocol):
    assert judge(raw(IP(**V4, proto=protocol) / Raw(bytes(40)))) is Reason.UNKNOWN_PROTOCOL


@pytest.mark.parametrize("protocol", sorted(set(range(256)) - {6, 17, 58}))
def test_every_other_next_header_is_refused_over_v6(protocol):
    assert judge(raw(IPv6(**V6, nh=protocol) / Raw(bytes(40)))) in {
        Reason.UNKNOWN_PROTOCOL, Reason.EXTENSION_HEADER, Reason.FRAGMENT,
    }  # fmt: skip


MARTIANS_4 = ["0.0.0.0", "0.1.2.3", "127.0.0.1", "127.255.255.254", "169.254.1.1", "240.0.0.1", "255.255.255.254"]
MARTIANS_6 = ["::", "::1", "::10.1.0.10", "::ffff:10.1.0.10", "fe80::1", "febf::1", "fec0::1"]
ORDINARY_4 = ["1.1.1.1", "10.0.0.1", "100.64.0.1", "169.253.0.1", "169.255.0.1", "192.168.0.1", "223.255.255.254"]
ORDINARY_6 = ["2001:db8::1", "fd00::1", "fc00::1", "100::1", "fe00::1"]


@pytest.mark.parametrize("address", MARTIANS_4)
def test_martian_v4(address):
    assert judge(raw(IP(src=address, dst=V4["dst"]) / TCP())) is Reason.MARTIAN
    assert judge(raw(IP(src=V4["src"], dst=address) / TCP())) is Reason.MARTIAN


@pytest.mark.parametrize("address", MARTIANS_6)
def test_martian_v6(address):
    assert judge(raw(IPv6(src=address, dst=V6["dst"]) / TCP())) is Reason.MARTIAN
    assert judge(raw(IPv6(src=V6["src"], dst=address) / TCP())) is Reason.MARTIAN


@pytest.mark.parametrize("address", ORDINARY_4)
def test_ordinary_v4(address):
    assert judge(raw(IP(src=address, dst=V4["dst"]) / TCP())) is None
    assert judge(raw(IP(src=V4["src"], dst=address) / TCP())) is None


@pytest.mark.parametrize("address", ORDINARY_6)
def test_ordinary_v6(address):
    assert judge(raw(IPv6(src=address, dst=V6["dst"]) / TCP())) is None
    assert judge(raw(IPv6(src=V6["src"], dst=address) / TCP())) is None


@pytest.mark.parametrize("address", ["224.0.0.1", "239.255.255.255", "255.255.255.255"])
def test_multicast_v4(address):
    assert judge(raw(IP(src=V4["src"], dst=address) / UDP())) is Reason.MULTICAST
    assert judge(raw(IP(src=address, dst=V4["dst"]) / UDP())) is Reason.MARTIAN


def test_multicast_v6():
    assert judge(raw(IPv6(src=V6["src"], dst="ff0e::1") / UDP())) is Reason.MULTICAST
    assert judge(raw(IPv6(src="ff0e::1", dst=V6["dst"]) / UDP())) is Reason.MARTIAN


# --- transport checksums -------------------------------------------------------------------------

FULL = [
    ip / transport / Raw(b"odd" * n) for ip in (IP(**V4), IPv6(**V6)) for transport in (TCP(), UDP()) for n in (1, 2)
]


@pytest.mark.parametrize("layers", [*FULL, *(echo[0] for echo in ECHOES)])
def test_transport_checksum(layers):
    octets = bytearray(raw(layers))
    assert check_transport(parsed(layers)) is None
    octets[-1] ^= 1
    packet = Packet()
    assert judge(bytes(octets), packet) is None
    assert check_transport(packet) is Reason.BAD_CHECKSUM


def test_udp_without_checksum():
    assert check_transport(parsed(IP(**V4) / UDP(chksum=0) / b"x")) is None
    assert check_transport(parsed(IPv6(**V6) / UDP(chksum=0) / b"x")) is Reason.BAD_CHECKSUM


def test_icmp_of_zeros_has_no_valid_checksum():
    assert check_transport(parsed(IP(**V4) / ICMP(type=0, id=0, seq=0, chksum=0))) is Reason.BAD_CHECKSUM


# --- anything at all -----------------------------------------------------------------------------


@given(st.binary(max_size=120), st.sampled_from((None, 0x45, 0x60)))
def test_any_octets_are_parsed_or_refused(octets, first):
    if first is not None and octets:
        octets = bytes((first,)) + octets[1:]
    assert isinstance(judge(octets), Reason | None)


@given(st.sampled_from((TCP4, TCP6, *map(raw, FULL))), st.data())
def test_a_mutated_packet_is_refused_or_consistent(octets, data):
    mutated = bytearray(octets)
    for _ in range(data.draw(st.integers(1, 4))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()) and mutated[0] == 0x45:
        mutated = summed(bytes(mutated))
    packet = Packet()
    if judge(bytes(mutated), packet) is None:
        assert packet.octets == len(mutated)
        assert packet.ip_octets + 8 <= packet.payload_offset <= packet.octets
        assert packet.protocol in {1, 6, 17, 58}
        assert len(packet.source) == len(packet.destination) == (4 if packet.version == 4 else 16)
