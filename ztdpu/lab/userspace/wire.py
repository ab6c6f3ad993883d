"""The untrusted network of a lab without privilege: a process between the devices, in place of br0 and oob0.

    device 0 -> face of device 1:PSP_PORT   [wire]   face of device 0 -> device 1:PSP_PORT

Policy names the faces, so outer addresses mean what they mean everywhere: a device believes a datagram to be from
the device whose face it came from. Each passing datagram is shown to the taps as the IP packet that it is; a program
may have those of one device held back and put others in their place. Enrolment with control passes here too, a TCP
connection at a time, so that attempts can be counted where they enter; nobody looks into it.

Relays what it is given and decides nothing. What somebody sends past the faces it does not see.
"""

from __future__ import annotations

import json
import selectors
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ztdpu.errors import StateError
from ztdpu.lab.layout import ENROLMENT_PORT, DevicePlan, LabPlan, port_name
from ztdpu.lab.record import require_record
from ztdpu.lab.userspace.ground import PSP_PORT
from ztdpu.lab.userspace.packets import outer_packet, split
from ztdpu.lab.userspace.places import wire_tap
from ztdpu.lab.userspace.tap import Kind
from ztdpu.lab.userspace.tap_server import Program, TapServer

BRIDGE: Final = "br0"
OUT_OF_BAND: Final = "oob0"
FABRIC: Final = "fabric"
_READS_PER_WAKE_UP: Final = 64
_LONGEST: Final = 65_535
_BUFFER_OCTETS: Final = 8 * 1024 * 1024
_SO_RXQ_OVFL: Final = 40
_overflow: Final = struct.Struct("=I")
_COPY_OCTETS: Final = 64 * 1024
_CONNECT_S: Final = 5.0
_OUTER_OCTETS: Final = 28


@dataclass(slots=True)
class Hold:
    """Datagrams of one device that do not go on, on behalf of a program."""

    program: Program
    octets: int
    """Length of those to keep, outer headers and all; others are lost."""
    count: int
    frames: list[bytes] = field(default_factory=list)
    is_full: bool = False


class Wire:
    """Relays between all devices of one lab."""

    def __init__(self, plan: LabPlan) -> None:
        """OSError when a face is taken."""
        self._devices = plan.devices
        self._selector = selectors.DefaultSelector()
        self._names = {port_name(index, one.name): one for index, one in enumerate(plan.devices)}
        self._by_address = {one.oob_address: one for one in plan.devices}
        self._by_face = {socket.inet_aton(one.underlay_address): one for one in plan.devices}
        self._faces = {one.name: self._open_face(one) for one in plan.devices}
        self._dropped: dict[str, int] = {}
        self._holds: dict[str, Hold] = {}
        self.taps = TapServer(
            wire_tap(plan), self._selector, handle=self._obey, gone=self._release, lost=self._lost, psp_port=PSP_PORT
        )

    def _open_face(self, device: DevicePlan) -> socket.socket:
        face = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        face.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_OCTETS)
        face.setsockopt(socket.SOL_SOCKET, _SO_RXQ_OVFL, 1)
        face.bind((device.underlay_address, PSP_PORT))
        self._selector.register(face, selectors.EVENT_READ, lambda: self._read(device, face))
        return face

    def open_enrolment(self, control: str) -> None:
        """Take connections at each face and lead them to control, from the device's own address."""
        for device in self._devices:
            listening = socket.create_server((device.underlay_address, ENROLMENT_PORT))
            listening.setblocking(False)
            accept = self._acceptor(device, listening, (control, ENROLMENT_PORT))
            self._selector.register(listening, selectors.EVENT_READ, accept)

    def _acceptor(self, device: DevicePlan, listening: socket.socket, control: tuple[str, int]) -> Callable[[], None]:
        def accept() -> None:
            with suppress(OSError):
                near, _ = listening.accept()
                self.taps.see_connection(device.name, OUT_OF_BAND)
                threading.Thread(target=lead, args=(near, device.oob_address, control), daemon=True).start()

        return accept

    def serve(self) -> None:
        """Relay until killed."""
        while True:
            self.serve_once()

    def serve_once(self, timeout_s: float | None = None) -> None:
        """Do what there is to do, waiting for it at most so long."""
        for key, _ in self._selector.select(timeout_s):
            key.data()

    def close(self) -> None:
        """Close all sockets. Call it when nobody serves any more."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()

    # --- datagrams ---

    def _read(self, receiver: DevicePlan, face: socket.socket) -> None:
        for _ in range(_READS_PER_WAKE_UP):
            try:
                payload, ancillary, _, (host, port) = face.recvmsg(_LONGEST, 64)
            except OSError:
                return  # nothing there, or an ICMP error that belongs to nothing we sent
            for level, kind, data in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, _SO_RXQ_OVFL):
                    self._dropped[receiver.name] = _overflow.unpack(data)[0]
            sender = self._by_address.get(host)
            outer = sender.underlay_address if sender is not None else host
            packet = outer_packet(
                socket.inet_aton(outer), socket.inet_aton(receiver.underlay_address), port, PSP_PORT, payload
            )
            if sender is None:  # no device: it is seen, and leads nowhere
                self.taps.see(FABRIC, BRIDGE, packet, sent_here=False)
            elif (hold := self._holds.get(sender.name)) is not None:
                self._keep(hold, packet)
            else:
                self.taps.see(FABRIC, BRIDGE, packet, sent_here=False)
                self._pass_on(sender, receiver, payload)

    def _pass_on(self, sender: DevicePlan, receiver: DevicePlan, payload: bytes) -> None:
        """Send what came from `sender` out of its face; a receiver that is not there is none of our business."""
        with suppress(OSError):
            self._faces[sender.name].sendto(payload, (receiver.oob_address, PSP_PORT))

    def _lost(self) -> int:
        """Datagrams that the kernel dropped before we saw them."""
        return sum(self._dropped.values())

    # --- what programs may do ---

    def _obey(self, program: Program, kind: Kind, body: bytes) -> None:
        if kind is Kind.HOLD:
            order = json.loads(body)
            device = self._names[str(order["port"])]
            self._holds[device.name] = Hold(program, int(order["octets"]), int(order["count"]))
            program.answer({"holding": True})
        elif kind is Kind.RELEASE:
            self._release(program)
            program.answer({"holding": False})
        elif kind is Kind.PUT:
            program.answer({"taken": self._put(body)})
        else:
            raise ValueError(kind)

    def _keep(self, hold: Hold, packet: bytes) -> None:
        if hold.is_full or len(packet) != hold.octets:
            return
        hold.frames.append(packet)
        if len(hold.frames) == hold.count:
            hold.is_full = True
            with suppress(OSError):  # its connection says so, too
                for frame in hold.frames:
                    hold.program.send(Kind.FRAME, frame)
                hold.program.answer({"held": hold.count})

    def _release(self, program: Program) -> None:
        self._holds = {name: hold for name, hold in self._holds.items() if hold.program is not program}

    def _put(self, packet: bytes) -> int:
        """Let a packet of somebody's making go on as if it had come by; 1 when it did."""
        parts = split(packet)
        if parts is None or len(packet) < _OUTER_OCTETS:
            return 0
        sender, receiver = self._by_face.get(parts[0]), self._by_face.get(parts[1])
        if sender is None or receiver is None:
            return 0
        self.taps.see(FABRIC, BRIDGE, packet, sent_here=True)
        self._pass_on(sender, receiver, packet[_OUTER_OCTETS:])
        return 1


def lead(near: socket.socket, source: str, target: tuple[str, int]) -> None:
    """Copy both ways between a connection and a new one to `target`, until both have ended."""
    try:
        far = socket.create_connection(target, timeout=_CONNECT_S, source_address=(source, 0))
    except OSError:
        near.close()
        return
    far.settimeout(None)
    back = threading.Thread(target=_copy, args=(far, near), daemon=True)
    back.start()
    _copy(near, far)
    back.join()
    near.close()
    far.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while part := source.recv(_COPY_OCTETS):
            target.sendall(part)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def main() -> None:
    """`python -m ztdpu.lab.userspace.wire STATE CONTROL`."""
    if len(sys.argv) != 3:
        raise StateError("usage: python -m ztdpu.lab.userspace.wire STATE CONTROL")
    wire = Wire(require_record(Path(sys.argv[1])).plan)
    wire.open_enrolment(sys.argv[2])
    wire.serve()


if __name__ == "__main__":
    main()
