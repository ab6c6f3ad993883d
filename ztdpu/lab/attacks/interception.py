"""A man in the middle of the fabric: holds sealed packets back and puts packets on the wire.

Used by `flipped_packet` and `replayed_packet`, which run as root of the fabric. What the sender sends while packets
are held does not go on; the way opens again whatever happens. On a bridge the sender's port is closed and packets are
read where they enter; where a process is the wire (`userspace.wire`) it is asked.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from ztdpu.errors import MachineError
from ztdpu.lab.capture import grow_buffer
from ztdpu.lab.userspace.tap import Kind, Tap, is_tapped, open_own_tap

PSP_PORT: Final = 1000
_ETH_P_ALL: Final = 0x0003
_ETHERNET_OCTETS: Final = 14
_SAME_OCTETS: Final = 8
_PACKET_OUTGOING: Final = 4
_CLOSED: Final = "0"
_FORWARDING: Final = "3"
_BUFFER_OCTETS: Final = 16 * 1024 * 1024
_PATIENCE_S: Final = 5.0
_PAUSE_S: Final = 0.002

Change = Callable[[Sequence[bytes]], Sequence[bytes]]


class Middle(Protocol):
    """A place in the middle. Frames end with the packet's last octet; what stands before it is the place's own."""

    def hold(self, *, octets: int, count: int) -> list[bytes]:
        """Return so many frames with PSP packets of `octets`, outer IP and all. MachineError after 5 s."""

    def put(self, frames: Sequence[bytes]) -> int:
        """Put frames on the wire; returns how many it took."""


class BridgeMiddle:
    """On a Linux bridge."""

    def __init__(self, bridge: str, handle: socket.socket) -> None:
        self._bridge = bridge
        self._handle = handle

    def hold(self, *, octets: int, count: int) -> list[bytes]:
        """See `Middle`."""
        return hold(self._handle, octets=octets, count=count)

    def put(self, frames: Sequence[bytes]) -> int:
        """See `Middle`."""
        from scapy.layers.l2 import Ether

        return put(self._bridge, [_finished(Ether(frame)) for frame in frames])


class WireMiddle:
    """Where a process is the wire."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap

    def hold(self, *, octets: int, count: int) -> list[bytes]:
        """See `Middle`; which packets, the wire was told before."""
        del octets
        frames = [self._receive() for _ in range(count)]
        self._tap.read_answer()
        return frames

    def _receive(self) -> bytes:
        kind, frame = self._tap.receive(timeout_s=_PATIENCE_S)
        if kind != Kind.FRAME:
            raise MachineError("the wire says something else than what it held")
        return frame

    def put(self, frames: Sequence[bytes]) -> int:
        """See `Middle`."""
        taken = 0
        for frame in frames:
            taken += int(self._tap.ask(Kind.PUT, frame)["taken"])
            time.sleep(_PAUSE_S)
        return taken


@contextmanager
def standing_on_bridge(bridge: str, port: str) -> Iterator[tuple[Middle, Callable[[], Any]]]:
    """Close a bridge port; returns the middle, and how to open the port before the end of the block."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as handle:
        grow_buffer(handle, _BUFFER_OCTETS)
        handle.bind((port, _ETH_P_ALL))
        _set_port(port, _CLOSED)
        try:
            yield BridgeMiddle(bridge, handle), lambda: _set_port(port, _FORWARDING)
        finally:
            _set_port(port, _FORWARDING)


@contextmanager
def standing_in_wire(port: str, *, octets: int, count: int) -> Iterator[tuple[Middle, Callable[[], Any]]]:
    """The same where a process is the wire, which lets go when we do."""
    with open_own_tap() as tap:
        tap.ask(Kind.HOLD, {"port": port, "octets": octets, "count": count})
        yield WireMiddle(tap), lambda: tap.ask(Kind.RELEASE)


def _set_port(port: str, state: str) -> None:
    ended = subprocess.run(
        ["bridge", "link", "set", "dev", port, "state", state], capture_output=True, text=True, check=False
    )
    if ended.returncode != 0:
        raise MachineError(f"bridge port {port}: {ended.stderr.strip()}")


def hold(handle: socket.socket, *, octets: int, count: int) -> list[bytes]:
    """Return so many frames with PSP packets of `octets` (outer IP and all) that enter. MachineError after 5 s."""
    frames: list[bytes] = []
    deadline = time.monotonic() + _PATIENCE_S
    while len(frames) < count:
        handle.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            frame, address = handle.recvfrom(70_000)
        except TimeoutError as error:
            raise MachineError(f"only {len(frames)} of {count} packets came by") from error
        if address[2] != _PACKET_OUTGOING:
            frames += split(frame, octets)
    return frames[:count]


def split(frame: bytes, octets: int) -> list[bytes]:
    """Return frames with one PSP packet of `octets` each; empty when the frame carries anything else.

    A sender hands its kernel several datagrams of one length at once, and a virtual cable never takes them apart.
    """
    from scapy.layers.inet import UDP
    from scapy.layers.l2 import Ether
    from scapy.packet import Raw

    packet = Ether(frame)
    if UDP not in packet or packet[UDP].dport != PSP_PORT:
        return []
    payload = bytes(packet[UDP].payload)
    size = octets - (len(frame) - _ETHERNET_OCTETS - len(payload))
    pieces = [payload[start : start + size] for start in range(0, len(payload), size)]
    # All have one length, and the fixed fields and SPI of one security association.
    if any(len(piece) != size or piece[:_SAME_OCTETS] != payload[:_SAME_OCTETS] for piece in pieces):
        return []
    frames = []
    for piece in pieces:
        packet[UDP].payload = Raw(piece)
        frames.append(_finished(packet))
    return frames


def _finished(packet: Any) -> bytes:
    """Return the octets with lengths and checksums as they belong: a virtual cable leaves the latter to nobody."""
    for layer, fields in (("IP", ("len", "chksum")), ("IPv6", ("plen",)), ("UDP", ("len", "chksum"))):
        if layer in packet:
            for field in fields:
                packet[layer].delfieldval(field)
    return bytes(packet)


def unchanged(frames: Sequence[bytes]) -> Sequence[bytes]:
    """Return the frames as they were."""
    return frames


def flip(frames: Sequence[bytes]) -> list[bytes]:
    """Return the frames with one bit of each changed, another octet of the sealed part in each."""
    flipped = []
    for number, frame in enumerate(frames):
        octets = bytearray(frame)
        octets[-1 - 7 * number] ^= 1 << (number % 8)
        flipped.append(bytes(octets))
    return flipped


def put(bridge: str, frames: Sequence[bytes]) -> int:
    """Put frames on the bridge; returns how many it took."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as handle:
        handle.bind((bridge, 0))
        taken = 0
        for frame in frames:
            taken += handle.send(frame) == len(frame)
            time.sleep(_PAUSE_S)
    return taken


def run(description: str, first: Change, second: Change) -> None:
    """Hold packets; at a line on standard input put `first` of them on the bridge, at the next `second` of the same.

    Prints `{"holding": true}`, `{"held": N}` when there are enough, then `{"sent": N}` twice. What comes by between
    enough and the first line is lost: the sender has to end by then.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--bridge", default="br0")
    parser.add_argument("--port", required=True, help="bridge port of the device that sends")
    parser.add_argument("--octets", type=int, required=True, help="length of the packets to hold, outer IP and all")
    parser.add_argument("--attempts", type=int, default=20)
    given = parser.parse_args()
    split(bytes(64), 0)  # scapy takes its time: before anything is held
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    standing = (
        standing_in_wire(given.port, octets=given.octets, count=given.attempts)
        if is_tapped()
        else standing_on_bridge(given.bridge, given.port)
    )
    try:
        with standing as (middle, let_go):
            _say({"holding": True})
            frames = middle.hold(octets=given.octets, count=given.attempts)
            _say({"held": len(frames)})
            os.read(0, 1)
            let_go()
            _say({"sent": middle.put(first(frames))})
            os.read(0, 1)
            _say({"sent": middle.put(second(frames))})
    except MachineError as error:
        sys.exit(error.message)


def _say(document: dict[str, int]) -> None:
    print(json.dumps(document), flush=True)
