"""The virtual function factory of a lab without privilege, and the holder of its endpoints.

    agent   -> ["make", endpoint name, endpoint id]
    factory -> ["made", endpoint id, ""] with one end of a SOCK_SEQPACKET pair where a TUN would be

The other end stays here: it is the tenant's side. What comes out of it is shown to the taps that watch, and answered
as far as `packets` can; programs put frames in through their tap. When this process ends, all virtual functions do.
Devices are told apart by their sockets alone: to the kernel all are one user.
"""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from ztdpu.errors import StateError
from ztdpu.lab.factory import INTERFACE, Factory
from ztdpu.lab.layout import EndpointPlan, LabPlan
from ztdpu.lab.record import require_record
from ztdpu.lab.userspace.packets import answer
from ztdpu.lab.userspace.places import endpoint_tap
from ztdpu.lab.userspace.tap import VNET_HEADER_OCTETS, Kind
from ztdpu.lab.userspace.tap_server import Program, TapServer

_READS_PER_WAKE_UP: Final = 64
_LONGEST: Final = 70_000
_QUEUE_OCTETS: Final = 4 * 1024 * 1024


class MemoryFactory(Factory):
    """Serves all devices of one lab and holds all its endpoints."""

    def __init__(self, plan: LabPlan) -> None:
        super().__init__(plan)
        self._links: dict[str, socket.socket] = {}
        self._taps = TapServer(
            endpoint_tap(plan), self.selector, handle=self._take, gone=lambda _: None, lost=lambda: 0
        )

    def make(self, endpoint: EndpointPlan) -> int:
        """Make a pair, keep one end, return the other; an earlier one is closed."""
        self._lose(endpoint.name)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _QUEUE_OCTETS)
        ours.setblocking(False)
        self._links[endpoint.name] = ours
        self.watch(ours, lambda: self._read(endpoint.name, ours))
        return theirs.detach()

    def _lose(self, name: str) -> None:
        link = self._links.pop(name, None)
        if link is not None:
            self.selector.unregister(link)
            link.close()

    def _read(self, name: str, link: socket.socket) -> None:
        """Take what the worker delivers; at the end of file the worker is gone."""
        for _ in range(_READS_PER_WAKE_UP):
            if self._links.get(name) is not link:
                return  # lost since it was ready
            try:
                frame = link.recv(_LONGEST)
            except BlockingIOError:
                return
            except OSError:
                frame = b""
            if not frame:
                self._lose(name)
                return
            packet = frame[VNET_HEADER_OCTETS:]
            self._taps.see(name, INTERFACE, packet, sent_here=False)
            said = answer(packet)
            if said is not None:
                self._send(name, bytes(VNET_HEADER_OCTETS) + said)

    def _take(self, program: Program, kind: Kind, body: bytes) -> None:
        """A program puts a frame on the virtual function of the endpoint that it runs in."""
        if kind is not Kind.FRAME or len(body) <= VNET_HEADER_OCTETS:
            raise ValueError(kind)
        program.taken += self._send(program.place, body)

    def _send(self, name: str, frame: bytes) -> bool:
        """Hand a frame to the worker; False, and nobody sees it, where there is none or its queue is full."""
        link = self._links.get(name)
        if link is None:
            return False
        with suppress(OSError):
            link.send(frame)
            self._taps.see(name, INTERFACE, frame[VNET_HEADER_OCTETS:], sent_here=True)
            return True
        return False


def main() -> None:
    """`python -m ztdpu.lab.userspace.factory STATE`."""
    if len(sys.argv) != 2:
        raise StateError("usage: python -m ztdpu.lab.userspace.factory STATE")
    MemoryFactory(require_record(Path(sys.argv[1])).plan).serve()


if __name__ == "__main__":
    main()
