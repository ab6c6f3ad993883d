"""Count what passes an interface: PSP, ARP and ND (with MLD), anything else in clear, a canary, one attack's packets.

The demo starts one process per place and reads what it counted; nothing is kept but numbers. Standard
library only, because several start at once:

    python -m ztdpu.lab.capture --interface br0 --canary 0011..ff
    python -m ztdpu.lab.capture --interface ztdpu0 --direction in --udp 5001
    python -m ztdpu.lab.capture --interface ztdpu0 --mark attack=a1b2c3d4 --mark twin=e5f6a7b8

It says `{"capturing": true}` when it counts, the numbers so far for each line on its standard input, and the
last ones when that closes. Timestamps are the kernel's, CLOCK_REALTIME. `lost` packets (the kernel's own count)
are said, never hidden. In a lab without packet sockets the counting is done where packets pass (`userspace.tap`),
and this program asks for it.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from ztdpu.lab.namespaces.packet_ring import PacketRing

PSP_PORT: Final = 1000
TAP_VARIABLE: Final = "ZTDPU_LAB_TAP"
"""In the environment of programs in a lab without packet sockets; see `userspace.tap`."""
_ETH_P_ALL: Final = 0x0003
_ETH_P_IP: Final = 0x0800
_ETH_P_ARP: Final = 0x0806
_ETH_P_IPV6: Final = 0x86DD
_PACKET_OUTGOING: Final = 4
_SOL_PACKET: Final = 263
_PACKET_ADD_MEMBERSHIP: Final = 1
_PACKET_STATISTICS: Final = 6
_PACKET_MR_PROMISC: Final = 1
_SO_RCVBUFFORCE: Final = 33
_SO_TIMESTAMPNS: Final = 35
_BUFFER_OCTETS: Final = 64 * 1024 * 1024
_ICMPV6: Final = 58
_ND_TYPES: Final = range(133, 138)
_MLD_TYPES: Final = (130, 131, 132, 143)
_MLD_ROUTER_ALERT: Final = bytes((_ICMPV6, 0, 5, 2, 0, 0, 1, 0))
"""Hop-by-hop header of every MLD message (RFC 3810 section 5): ICMPv6 follows, router alert, padding."""
_TCP: Final = 6
_UDP: Final = 17
_UDP_OCTETS: Final = 8
_PSP_OCTETS: Final = 16 + 16
"""Header and ICV: no PSP packet is shorter."""
_PSP_INNER: Final = (4, 41, 253)
_SYN_OF_SYN_ACK: Final = (0x02, 0x12)
MARK_WITHIN_OCTETS: Final = 256
_LONGEST: Final = 70_000
_READ_AT_ONCE: Final = 256


@dataclass(slots=True)
class Counts:
    """What was seen."""

    packets: int = 0
    psp_packets: int = 0
    arp_packets: int = 0
    nd_packets: int = 0
    clear_packets: int = 0
    """Neither PSP nor ARP nor ND."""
    canary_hits: int = 0
    """Packets with the canary somewhere in them."""
    matched: int = 0
    """Packets of the attack or stream asked for."""
    matched_first_unix_ns: int = 0
    matched_last_unix_ns: int = 0
    stamps_unix_ns: list[int] = field(default_factory=list)
    """When each matched packet passed; kept only when asked for."""
    lost: int = 0
    """Not seen because the capture was too slow."""
    psp_sent_here: int = 0
    """PSP packets that a program in this very namespace put on the interface: on br0, what somebody injected."""
    marks: dict[str, list[int]] = field(default_factory=dict)
    """Name of a mark -> packets with it that came in here, and that went out from here."""
    kept: str = ""
    """The first packet of the length asked for, hexadecimal."""
    clear_samples: list[str] = field(default_factory=list)
    """The first few packets in clear, for the person who has to find out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to look for beside the classes."""

    canary: bytes = b""
    protocol: int = 0
    """6: TCP packets that open a connection; 17: UDP; 0: nothing."""
    port: int = 0
    direction: str = "any"
    """`out`: sent by this namespace, `in`: not."""
    stamps: bool = False
    """Keep the time of every matched packet."""
    marks: tuple[tuple[str, bytes], ...] = ()
    """Names and octets; looked for in the first MARK_WITHIN_OCTETS of each packet."""
    keep_octets: int = 0
    """Length of the one packet to keep; 0: none."""
    psp_port: int = PSP_PORT
    """UDP port of PSP on this fabric."""


def count_packet(
    counts: Counts, wanted: Wanted, ethertype: int, packet: bytes, unix_ns: int, *, sent_here: bool = False
) -> None:
    """Put one network-layer packet into its class."""
    counts.packets += 1
    if wanted.keep_octets == len(packet) and not counts.kept:
        counts.kept = packet.hex()
    for name, octets in wanted.marks:
        if packet.find(octets, 0, MARK_WITHIN_OCTETS) >= 0:
            counts.marks[name][sent_here] += 1
    if wanted.canary and wanted.canary in packet:
        counts.canary_hits += 1
    protocol, offset = locate_transport(ethertype, packet)
    if ethertype == _ETH_P_ARP:
        counts.arp_packets += 1
    elif protocol == _UDP and read_port(packet, offset) == wanted.psp_port and is_psp(packet, offset + _UDP_OCTETS):
        counts.psp_packets += 1
        counts.psp_sent_here += sent_here
    elif (protocol == _ICMPV6 and packet[offset : offset + 1] and packet[offset] in _ND_TYPES) or is_mld(
        protocol, packet
    ):
        counts.nd_packets += 1
    else:
        counts.clear_packets += 1
        if len(counts.clear_samples) < 3:
            counts.clear_samples.append(f"{ethertype:04x} {packet[:48].hex()}")
    if is_wanted(wanted, protocol, packet, offset):
        counts.matched += 1
        counts.matched_first_unix_ns = counts.matched_first_unix_ns or unix_ns
        counts.matched_last_unix_ns = unix_ns
        if wanted.stamps:
            counts.stamps_unix_ns.append(unix_ns)


def is_psp(packet: bytes, offset: int) -> bool:
    """Tell whether a PSP header may stand there: an inner IP packet or a stream record, its version's last bit set."""
    return len(packet) >= offset + _PSP_OCTETS and packet[offset] in _PSP_INNER and packet[offset + 3] & 1 == 1


def is_mld(protocol: int, packet: bytes) -> bool:
    """Tell whether a kernel announces the multicast groups by which ND finds it; part of ND here."""
    if protocol != 0 or len(packet) < 49:
        return False
    return packet[24] == 0xFF and packet[40:48] == _MLD_ROUTER_ALERT and packet[48] in _MLD_TYPES


def locate_transport(ethertype: int, packet: bytes) -> tuple[int, int]:
    """Return IP protocol and offset of its header; (-1, 0) for what is no IP or a later fragment."""
    if ethertype == _ETH_P_IP and len(packet) >= 20:
        if (packet[6] & 0x1F) or packet[7]:
            return -1, 0
        return packet[9], (packet[0] & 0x0F) * 4
    if ethertype == _ETH_P_IPV6 and len(packet) >= 40:
        return packet[6], 40
    return -1, 0


def read_port(packet: bytes, offset: int) -> int:
    """Return the destination port at a TCP or UDP header, -1 when it is cut short."""
    if len(packet) < offset + 4:
        return -1
    return int.from_bytes(packet[offset + 2 : offset + 4], "big")


def is_wanted(wanted: Wanted, protocol: int, packet: bytes, offset: int) -> bool:
    """Tell whether the packet is one of the attack or stream asked for."""
    if not wanted.protocol or protocol != wanted.protocol or read_port(packet, offset) != wanted.port:
        return False
    if protocol == _TCP:
        return len(packet) > offset + 13 and packet[offset + 13] & 0x12 == _SYN_OF_SYN_ACK[0]
    return True


def grow_buffer(handle: socket.socket, octets: int) -> bool:
    """Let the kernel keep so much that was not read yet, or as much as it allows; False when that may be less."""
    try:
        handle.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, octets)
    except PermissionError:  # root of a user namespace only: take what is allowed
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, octets)
        return False
    return True


def open_capture(interface: str) -> socket.socket:
    """Open a promiscuous packet socket (on a bridge only that shows what is forwarded). Needs CAP_NET_RAW."""
    handle = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
    if not grow_buffer(handle, _BUFFER_OCTETS) and interface == "br0":
        handle.close()
        handle = PacketRing()
    handle.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    handle.bind((interface, _ETH_P_ALL))
    membership = struct.pack("iHH8s", socket.if_nametoindex(interface), _PACKET_MR_PROMISC, 0, b"")
    handle.setsockopt(_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, membership)
    handle.setblocking(False)
    return handle


def drain(handle: socket.socket, counts: Counts, wanted: Wanted) -> bool:
    """Count what has arrived; False when nothing was there."""
    for number in range(_READ_AT_ONCE):
        try:
            packet, ancillary, _, address = handle.recvmsg(_LONGEST, 64)
        except BlockingIOError:
            return number > 0
        is_outgoing = address[2] == _PACKET_OUTGOING
        if (wanted.direction == "in" and is_outgoing) or (wanted.direction == "out" and not is_outgoing):
            continue
        count_packet(counts, wanted, address[1], packet, _timestamp(ancillary), sent_here=is_outgoing)
    return True


def _timestamp(ancillary: list[tuple[int, int, bytes]]) -> int:
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
            seconds, nanoseconds = struct.unpack_from("qq", data)
            return int(seconds) * 1_000_000_000 + int(nanoseconds)
    return time.time_ns()


def capture(interface: str, wanted: Wanted) -> Counts:
    """Count until standard input closes; print the numbers so far for every line on it."""
    counts = Counts(marks={name: [0, 0] for name, _ in wanted.marks})
    with open_capture(interface) as handle, selectors.DefaultSelector() as selector:
        selector.register(handle, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        print(json.dumps({"capturing": True}), flush=True)
        while True:
            asked = None
            for key, _ in selector.select():
                if key.fileobj is handle:
                    drain(handle, counts, wanted)
                else:
                    asked = os.read(0, 1)
            if asked is None:
                continue
            while drain(handle, counts, wanted):
                pass
            _, lost = struct.unpack("II", handle.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
            counts.lost += lost  # the kernel forgets what it has said
            if not asked:
                return counts
            print(json.dumps(asdict(counts)), flush=True)


def capture_at_tap(interface: str, wanted: Wanted) -> Counts:
    """Do the same where the lab has no packet sockets. MachineError when nobody serves the tap."""
    from ztdpu.lab.userspace.tap import open_own_tap

    with open_own_tap() as tap:
        tap.watch(interface, wanted)
        print(json.dumps({"capturing": True}), flush=True)
        while os.read(0, 1):
            print(json.dumps(asdict(tap.counts())), flush=True)
        return tap.counts()


def read_arguments(arguments: Sequence[str] | None = None) -> tuple[str, Wanted]:
    """Read the command line, or the same words: interface and what to look for."""
    parser = argparse.ArgumentParser(description="Count what passes an interface.")
    parser.add_argument("--interface", required=True)
    parser.add_argument("--canary", default="", help="hexadecimal")
    parser.add_argument("--direction", choices=("any", "in", "out"), default="any")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--tcp", type=int, default=0, help="count connection attempts to this port")
    kind.add_argument("--udp", type=int, default=0, help="count datagrams to this port")
    parser.add_argument("--stamps", action="store_true", help="say when each of them passed")
    parser.add_argument("--mark", action="append", default=[], help="NAME=HEXADECIMAL: count packets with it")
    parser.add_argument("--keep-octets", type=int, default=0, help="keep the first packet of this length")
    given = parser.parse_args(arguments)
    wanted = Wanted(
        canary=bytes.fromhex(given.canary),
        protocol=_TCP if given.tcp else _UDP if given.udp else 0,
        port=given.tcp or given.udp,
        direction=given.direction,
        stamps=given.stamps,
        marks=tuple((name, bytes.fromhex(octets)) for name, _, octets in (one.partition("=") for one in given.mark)),
        keep_octets=given.keep_octets,
    )
    return given.interface, wanted


def main() -> None:
    """Run from the command line."""
    interface, wanted = read_arguments()
    take = capture_at_tap if TAP_VARIABLE in os.environ else capture
    json.dump(asdict(take(interface, wanted)), sys.stdout)
    print()


if __name__ == "__main__":
    main()
