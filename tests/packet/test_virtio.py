from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw, raw

from ztdpu.model.verdict import Reason
from ztdpu.packet.headers import Packet, parse
from ztdpu.packet.virtio import DATA_VALID, GSO_TCPV4, GSO_TCPV6, NEEDS_CSUM, check_offload

V4 = IP(src="10.1.0.10", dst="10.1.0.11")
V6 = IPv6(src="fd00:1::10", dst="fd00:1::11")
BAD = Reason.BAD_OFFLOAD_HEADER
MTU = 1500


def judge(layers, *, flags=0, gso_type=0, header=0, gso_size=0, start=0, at=0, mtu=MTU):
    """Return (reason, segment octets, segment count, needs checksum) of one frame."""
    octets = raw(layers)
    frame = struct.pack("<BBHHHH", flags, gso_type, header, gso_size, start, at) + octets
    packet = Packet()
    assert parse(packet, memoryview(frame), 10, len(octets)) is None
    reason = check_offload(packet, memoryview(frame), 0, mtu)
    return reason, packet.segment_octets, packet.segment_count, packet.needs_checksum


def tcp4(octets, flags="A", options=()):
    return V4 / TCP(flags=flags, options=list(options)) / Raw(b"x" * octets)


def tcp6(octets):
    return V6 / TCP(flags="A") / Raw(b"x" * octets)


SEGMENTED_4 = {"flags": NEEDS_CSUM, "gso_type": GSO_TCPV4, "start": 20, "at": 16}
SEGMENTED_6 = {"flags": NEEDS_CSUM, "gso_type": GSO_TCPV6, "start": 40, "at": 16}


@pytest.mark.parametrize(
    ("layers", "claims", "expected"),
    [
        (tcp4(100), {}, (None, 0, 1, False)),
        (tcp4(1460), {}, (None, 0, 1, False)),
        (tcp4(100), {"flags": DATA_VALID}, (None, 0, 1, False)),
        (tcp4(100), {"flags": NEEDS_CSUM, "start": 20, "at": 16}, (None, 0, 1, True)),
        (tcp4(100), {"flags": NEEDS_CSUM, "start": 20, "at": 16, "header": 65535}, (None, 0, 1, True)),
        (tcp6(100), {"flags": NEEDS_CSUM, "start": 40, "at": 16}, (None, 0, 1, True)),
        (V4 / UDP() / b"x", {"flags": NEEDS_CSUM, "start": 20, "at": 6}, (None, 0, 1, True)),
        (V4 / ICMP() / b"x", {}, (None, 0, 1, False)),
        (tcp4(60000), {**SEGMENTED_4, "gso_size": 1460}, (None, 1460, 42, True)),
        (tcp4(60000), {**SEGMENTED_4, "gso_size": 1460, "header": 7}, (None, 1460, 42, True)),
        (tcp6(60000), {**SEGMENTED_6, "gso_size": 1440}, (None, 1440, 42, True)),
        (tcp4(1000), {**SEGMENTED_4, "gso_size": 1460}, (None, 1460, 1, True)),
        (tcp4(128), {**SEGMENTED_4, "gso_size": 1}, (None, 1, 128, True)),
        (tcp4(2920), {**SEGMENTED_4, "gso_size": 1460}, (None, 1460, 2, True)),
        (tcp4(2921), {**SEGMENTED_4, "gso_size": 1460}, (None, 1460, 3, True)),
    ],
)
def test_claims_that_the_packet_bears_out(layers, claims, expected):
    assert judge(layers, **claims) == expected


@pytest.mark.parametrize(
    ("layers", "claims", "reason"),
    [
        (tcp4(1461), {}, Reason.TOO_BIG),
        (V4 / UDP() / Raw(b"x" * 1473), {}, Reason.TOO_BIG),
        (tcp4(60000), {"flags": NEEDS_CSUM, "start": 20, "at": 16}, Reason.TOO_BIG),
        (tcp4(1), {"flags": 3, "start": 20, "at": 16}, BAD),
        (tcp4(1), {"flags": 4}, BAD),
        (tcp4(1), {"flags": 0x80}, BAD),
        (tcp4(1), {"flags": NEEDS_CSUM, "start": 0, "at": 16}, BAD),
        (tcp4(1), {"flags": NEEDS_CSUM, "start": 40, "at": 16}, BAD),
        (tcp4(1), {"flags": NEEDS_CSUM, "start": 20, "at": 6}, BAD),
        (tcp4(1), {"flags": NEEDS_CSUM, "start": 20, "at": 65535}, BAD),
        (V4 / UDP() / b"x", {"flags": NEEDS_CSUM, "start": 20, "at": 16}, BAD),
        (V4 / ICMP() / b"x", {"flags": NEEDS_CSUM, "start": 20, "at": 2}, BAD),
        (tcp4(1), {"gso_size": 1}, BAD),
        (tcp4(60000), {**SEGMENTED_4, "gso_size": 0}, BAD),
        (tcp4(60000), {**SEGMENTED_4, "gso_size": 1}, BAD),
        (tcp4(60000), {**SEGMENTED_4, "gso_size": 468}, BAD),
        (tcp4(60000), {**SEGMENTED_4, "gso_size": 1461}, BAD),
        (tcp4(60000), {**SEGMENTED_4, "gso_size": 65535}, BAD),
        (tcp4(60000, options=[("Timestamp", (1, 2))]), {**SEGMENTED_4, "gso_size": 1460}, BAD),
        (tcp4(60000), {**SEGMENTED_4, "gso_size": 1460, "flags": 0}, BAD),
        (tcp4(60000), {**SEGMENTED_4, "gso_size": 1460, "flags": DATA_VALID}, BAD),
        (tcp4(60000), {**SEGMENTED_4, "gso_size": 1440, "gso_type": GSO_TCPV6}, BAD),
        (tcp6(60000), {**SEGMENTED_6, "gso_size": 1440, "gso_type": GSO_TCPV4}, BAD),
        (tcp4(60000), {**SEGMENTED_4, "gso_size": 1460, "gso_type": 3}, BAD),
        (tcp4(60000), {**SEGMENTED_4, "gso_size": 1460, "gso_type": 5}, BAD),
        (tcp4(60000), {**SEGMENTED_4, "gso_size": 1460, "gso_type": 0x81}, BAD),
        (V4 / UDP() / Raw(b"x" * 3000), {**SEGMENTED_4, "gso_size": 1460, "at": 6}, BAD),
        (tcp4(60000, "S"), {**SEGMENTED_4, "gso_size": 1460}, BAD),
        (tcp4(60000, "RA"), {**SEGMENTED_4, "gso_size": 1460}, BAD),
        (tcp4(0), {**SEGMENTED_4, "gso_size": 1460}, BAD),
    ],
)
def test_claims_that_it_does_not(layers, claims, reason):
    assert judge(layers, **claims)[0] is reason


@given(st.binary(min_size=10, max_size=10), st.integers(0, 3000), st.integers(576, 9000))
def test_whatever_is_claimed_the_work_is_bounded(header, payload_octets, mtu):
    octets = raw(tcp4(payload_octets))
    packet = Packet()
    assert parse(packet, octets, 0, len(octets)) is None
    if check_offload(packet, header, 0, mtu) is None:
        assert 1 <= packet.segment_count <= 128
        wire = packet.payload_offset + packet.segment_octets if packet.segment_octets else packet.octets
        assert wire <= mtu
