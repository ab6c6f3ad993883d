"""The underlay as UDP sockets: one that receives on port 1000, one connected socket per peer that sends.

Runs of datagrams cross the kernel in one call each way (UDP_SEGMENT, UDP_GRO). Outer packets are never
fragmented and ICMP is not believed about path MTUs (anybody can forge it): IP_PMTUDISC_PROBE. The source port
is the kernel's choice per peer, so it says nothing about the flows inside. IPv4 or IPv6 by the own address.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Final

from ztdpu.agent.worker.links.link import Received
from ztdpu.psp import UDP_PORT

SOL_UDP: Final = 17
UDP_SEGMENT: Final = 103
UDP_GRO: Final = 104
SO_RCVBUFFORCE: Final = 33
SO_SNDBUFFORCE: Final = 32
IP_MTU_DISCOVER: Final = 10
IPV6_MTU_DISCOVER: Final = 23
PMTUDISC_PROBE: Final = 3
_BUFFER_OCTETS: Final = 8 * 1024 * 1024
_ANCILLARY_OCTETS: Final = socket.CMSG_SPACE(4)
_segment_size: Final = struct.Struct("=H")
_gro_size: Final = struct.Struct("=i")


class UdpUnderlay:
    """Owns the sockets of one device."""

    def __init__(self, address: str, *, port: int = UDP_PORT) -> None:
        """Bind `address` (IPv4 or IPv6). Raises OSError when it is not ours or the port is taken."""
        self._family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._address = address
        self._port = port
        self._peers: dict[bytes, socket.socket] = {}
        self._receiver = self._open()
        self._receiver.setsockopt(SOL_UDP, UDP_GRO, 1)
        _grow(self._receiver, SO_RCVBUFFORCE, socket.SO_RCVBUF)
        self._receiver.bind((address, port))

    def fileno(self) -> int:
        """Descriptor of the receiving socket."""
        return self._receiver.fileno()

    def receive_into(self, buffer: memoryview) -> Received | None:
        """Read a datagram or a run of equal ones; None when there is none."""
        try:
            octets, ancillary, _, source = self._receiver.recvmsg_into([buffer], _ANCILLARY_OCTETS)
        except OSError:
            # EAGAIN, or an ICMP error that belongs to nothing we sent from here.
            return None
        segment_octets = 0
        for level, kind, data in ancillary:
            if level == SOL_UDP and kind == UDP_GRO and len(data) == _gro_size.size:
                segment_octets = _gro_size.unpack(data)[0]
        return Received(octets, segment_octets, self._packed(source[0]))

    def send(self, destination: bytes, datagrams: memoryview, segment_octets: int) -> bool:
        """Send a run of datagrams of `segment_octets` (the last may be shorter); say whether the kernel took it."""
        try:
            peer = self._peers.get(destination) or self._connect(destination)
        except OSError:
            return False
        ancillary = []
        if len(datagrams) > segment_octets:
            ancillary = [(SOL_UDP, UDP_SEGMENT, _segment_size.pack(segment_octets))]
        try:
            peer.sendmsg([datagrams], ancillary)
        except ConnectionRefusedError:
            # The answer to an earlier datagram: its receiver was not up. Clears itself by being read; try once more.
            with contextlib.suppress(OSError):
                peer.sendmsg([datagrams], ancillary)
                return True
            return False
        except OSError:
            return False
        return True

    def forget_peers(self) -> None:
        """Tables changed: close the sending sockets; the next send to a peer opens a new one."""
        for peer in self._peers.values():
            peer.close()
        self._peers = {}

    def close(self) -> None:
        """Close all sockets."""
        self.forget_peers()
        self._receiver.close()

    def _connect(self, destination: bytes) -> socket.socket:
        peer = self._open()
        _grow(peer, SO_SNDBUFFORCE, socket.SO_SNDBUF)
        try:
            peer.bind((self._address, 0))
            peer.connect((socket.inet_ntop(self._family, destination), self._port))
        except (OSError, ValueError):
            peer.close()
            raise
        self._peers[destination] = peer
        return peer

    def _open(self) -> socket.socket:
        opened = socket.socket(self._family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        if self._family == socket.AF_INET:
            opened.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, PMTUDISC_PROBE)
        else:
            opened.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, PMTUDISC_PROBE)
        return opened

    def _packed(self, host: str) -> bytes:
        try:
            return socket.inet_pton(self._family, host)
        except OSError:
            return b""


def _grow(opened: socket.socket, forced: int, plain: int) -> None:
    """Ask for large buffers; without the privilege the kernel's own limit applies."""
    try:
        opened.setsockopt(socket.SOL_SOCKET, forced, _BUFFER_OCTETS)
    except PermissionError:
        opened.setsockopt(socket.SOL_SOCKET, plain, _BUFFER_OCTETS)
