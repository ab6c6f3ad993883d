"""Classes of packets as the capture sees them, and one real capture over a veth."""

import os
import socket
import subprocess
import sys

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6EchoRequest, ICMPv6ND_NS, IPv6
from scapy.packet import Raw

from ztdpu.lab.capture import Counts, Wanted, count_packet

IPV4, IPV6, ARP = 0x0800, 0x86DD, 0x0806
SEALED = bytes((4, 1, 0, 5)) + bytes(12 + 16)
"""As a PSP packet begins, header and ICV."""
CANARY = bytes(range(200, 232))
MLD_REPORT = bytes.fromhex(
    "6000000000240001" + "00" * 16 + "ff02" + "00" * 13 + "16" + "3a00050200000100" + "8f00" + "00" * 26
)
"""As a Linux kernel sends it when an address is new."""


def count(*packets, **wanted):
    counts = Counts()
    for number, (ethertype, packet) in enumerate(packets, start=1):
        count_packet(counts, Wanted(**wanted), ethertype, bytes(packet), number)
    return counts


def v4(payload):
    return IPV4, IP(src="10.0.0.1", dst="10.0.0.2") / payload


def v6(payload):
    return IPV6, IPv6(src="fd00::1", dst="fd00::2") / payload


@pytest.mark.parametrize(
    ("packet", "kind"),
    [
        (v4(UDP(sport=4000, dport=1000) / Raw(SEALED)), "psp_packets"),
        (v6(UDP(sport=4000, dport=1000) / Raw(b"\x29" + SEALED[1:])), "psp_packets"),
        (v4(UDP(sport=4000, dport=1000) / Raw(b"\x45" + SEALED[1:])), "clear_packets"),
        (v4(UDP(sport=4000, dport=1000) / Raw(SEALED[:-1])), "clear_packets"),
        (v4(UDP(sport=4000, dport=1000) / Raw(SEALED[:3] + b"\0" + SEALED[4:])), "clear_packets"),
        ((ARP, bytes(28)), "arp_packets"),
        (v6(ICMPv6ND_NS(tgt="fd00::2")), "nd_packets"),
        (v6(ICMPv6EchoRequest()), "clear_packets"),
        ((IPV6, MLD_REPORT), "nd_packets"),
        ((IPV6, MLD_REPORT[:48] + b"\x80" + MLD_REPORT[49:]), "clear_packets"),
        ((IPV6, MLD_REPORT[:24] + b"\xfd" + MLD_REPORT[25:]), "clear_packets"),
        (v4(ICMP()), "clear_packets"),
        (v4(TCP(dport=1000)), "clear_packets"),
        (v4(UDP(sport=1000, dport=53)), "clear_packets"),
        ((IPV4, IP(frag=5, proto=17, src="10.0.0.1", dst="10.0.0.2") / Raw(b"\x10\x00\x03\xe8" * 4)), "clear_packets"),
        ((IPV4, b"\x45"), "clear_packets"),
        ((0x88CC, bytes(40)), "clear_packets"),
    ],
)
def test_every_packet_has_one_class(packet, kind):
    counts = count(packet)
    kinds = ("psp_packets", "arp_packets", "nd_packets", "clear_packets")
    assert {name: getattr(counts, name) for name in kinds} == {name: int(name == kind) for name in kinds}


def test_the_canary_is_found_in_any_class():
    counts = count(
        v4(UDP(dport=1000) / Raw(b"x" + CANARY)), v4(UDP(dport=9) / Raw(CANARY)), v4(UDP(dport=9)), canary=CANARY
    )
    assert counts.canary_hits == 2


def test_only_connection_attempts_to_the_port_match():
    packets = [v4(TCP(dport=22, flags=flags)) for flags in ("S", "SA", "A", "R")] + [v4(TCP(dport=23, flags="S"))]
    assert count(*packets, protocol=6, port=22).matched == 1


def test_times_are_kept_when_asked_for():
    packets = [v4(UDP(dport=7)), v4(UDP(dport=8)), v4(UDP(dport=7))]
    assert count(*packets, protocol=17, port=7, stamps=True).stamps_unix_ns == [1, 3]
    assert count(*packets, protocol=17, port=7).stamps_unix_ns == []


def test_marks_are_counted_by_direction_and_one_packet_is_kept():
    counts = Counts(marks={"a": [0, 0], "b": [0, 0]})
    wanted = Wanted(marks=(("a", b"first mark"), ("b", b"other mark")), keep_octets=28 + len(SEALED) + 10)
    packets = [
        bytes(v4(UDP(dport=1000) / Raw(SEALED + octets))[1]) for octets in (b"first mark", b"other mark", b"no mark")
    ]
    late = bytes(v4(UDP(dport=1000) / Raw(SEALED + bytes(300) + b"first mark"))[1])
    for number, packet in enumerate([*packets, packets[0], late]):
        count_packet(counts, wanted, IPV4, packet, number, sent_here=number == 3)
    assert counts.marks == {"a": [1, 1], "b": [1, 0]}
    assert counts.kept == packets[0].hex()
    assert (counts.psp_packets, counts.psp_sent_here) == (5, 1)


@pytest.mark.netns
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_real_capture_counts_what_passes():
    code = "import sys; from ztdpu.lab.capture import main; sys.argv = ['x', '--interface', 'lo', '--udp', '47123', '--direction', 'in', '--canary', '{}']; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code.format(CANARY.hex())], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert "capturing" in process.stdout.readline()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
            for _ in range(10):
                handle.sendto(CANARY, ("127.0.0.1", 47123))
        said, _ = process.communicate(timeout=10)
    assert '"matched": 10' in said
