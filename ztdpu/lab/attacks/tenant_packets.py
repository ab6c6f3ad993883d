"""What all attacks from a tenant's endpoint share: options, and sending packets of one's own making.

Used by the programs beside it. A program makes the packets of the attack, and with --twin-target those of its
positive twin: the same again where it is allowed. They leave on the virtual function itself, past the tenant's own
kernel and whatever it would refuse; its root may do that.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ztdpu.lab.userspace.tap import is_tapped, open_own_tap

INTERFACE: Final = "ztdpu0"
_LOWEST_PORT, _PORTS = 20_000, 40_000
_ETHERTYPES: Final = {4: 0x0800, 6: 0x86DD}
_SOL_PACKET: Final = 263
_PACKET_VNET_HDR: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to make. Every packet carries `mark`, so that captures know it again."""

    source: str
    target: str
    port: int
    attempts: int
    mark: bytes

    @property
    def first_port(self) -> int:
        """Where the source ports begin: elsewhere for every mark, so that no flow of an earlier run is in the way."""
        return _LOWEST_PORT + int.from_bytes(self.mark[-4:], "big") % _PORTS


@dataclass(frozen=True, slots=True)
class Frame:
    """One IP packet and the virtio-net header in front of it; empty: the kernel's own."""

    packet: bytes
    offload: bytes = b""


Make = Callable[[Order], Sequence[Frame]]


def send_frames(frames: Sequence[Frame], *, pause_s: float) -> int:
    """Put frames on the virtual function; returns how many it took."""
    if is_tapped():
        return _send_by_tap(frames, pause_s=pause_s)
    taken = 0
    plain = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
    with plain, socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as offloading:
        offloading.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
        for frame in frames:
            handle = offloading if frame.offload else plain
            octets = frame.offload + frame.packet
            taken += handle.sendto(octets, (INTERFACE, _ETHERTYPES[frame.packet[0] >> 4])) == len(octets)
            time.sleep(pause_s)
    return taken


def _send_by_tap(frames: Sequence[Frame], *, pause_s: float) -> int:
    """The same where the virtual function is in memory."""
    with open_own_tap() as tap:
        for frame in frames:
            tap.send_packet(frame.packet, frame.offload)
            time.sleep(pause_s)
        return tap.synchronize()


def run(description: str, make_attack: Make, make_twin: Make, *, forges_source: bool = False) -> None:
    """Read the command line, send the attack, then its twin, and say how many packets left."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--source", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--attempts", type=int, default=20)
    parser.add_argument("--mark", type=bytes.fromhex, default=bytes(8), help="hexadecimal")
    parser.add_argument("--twin-target", default="", help="where the same is allowed")
    parser.add_argument("--twin-mark", type=bytes.fromhex, default=bytes(8), help="hexadecimal")
    parser.add_argument("--pause", type=float, default=0.005, help="seconds between two packets")
    if forges_source:
        parser.add_argument("--forged-source", required=True)
    given = parser.parse_args()
    source = given.forged_source if forges_source else given.source
    order = Order(source=source, target=given.target, port=given.port, attempts=given.attempts, mark=given.mark)
    report = {"attempts": given.attempts, "sent": send_frames(make_attack(order), pause_s=given.pause)}
    if given.twin_target:
        twin = Order(
            source=given.source,
            target=given.twin_target,
            port=given.port,
            attempts=given.attempts,
            mark=given.twin_mark,
        )
        report["twins_sent"] = send_frames(make_twin(twin), pause_s=given.pause)
    json.dump(report, sys.stdout)
    print()


def make_datagrams(order: Order, *, octets: int = 64) -> list[Frame]:
    """Return UDP datagrams with `octets` of payload, each from a port of its own."""
    from scapy.layers.inet import UDP
    from scapy.packet import Raw

    network = network_layer(order)
    payload = Raw(order.mark.ljust(octets, b"."))
    return [
        Frame(bytes(network / UDP(sport=order.first_port + number, dport=order.port) / payload))
        for number in range(order.attempts)
    ]


def network_layer(order: Order):  # type: ignore[no-untyped-def]  # noqa: ANN201 - scapy has no types
    """Return scapy's IP or IPv6 layer between the two ends."""
    from scapy.layers.inet import IP
    from scapy.layers.inet6 import IPv6

    layer = IPv6 if ":" in order.target else IP
    return layer(src=order.source, dst=order.target)
