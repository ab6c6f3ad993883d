"""A packet socket whose packets wait in memory of ours (PACKET_RX_RING, packet_mmap), not in a socket buffer.

Used by `capture` on br0 where it may not have a large buffer: root of a user namespace gets no more than
net.core.rmem_max, 208 KiB on most machines, which a few super-packets fill. A ring has no such limit.
Reads like the socket that it is: `recvmsg`, select, PACKET_STATISTICS. Standard library only.
"""

from __future__ import annotations

import mmap
import socket
import struct
from typing import Any, Final

_SOL_PACKET: Final = 263
_PACKET_RX_RING: Final = 5
_PACKET_VERSION: Final = 10
_TPACKET_V2: Final = 1
_HEADER: Final = struct.Struct("=IIIHHII")
"""tpacket2_hdr (linux/if_packet.h): status, length, octets kept, where link and network layer begin, s, ns."""
_ADDRESS_OFFSET: Final = 32
_ADDRESS: Final = struct.Struct("=H2siHBB")
"""sockaddr_ll: family, EtherType (big endian), interface, hardware, kind, length of an address that nobody asks for."""
_STATUS: Final = struct.Struct("=I")
_STATUS_USER: Final = 1
_SLOT_OCTETS: Final = 17 * 4096
"""A super-packet of 64 KiB and its header."""
_SLOTS_PER_BLOCK: Final = 15
_BLOCK_OCTETS: Final = _SLOT_OCTETS * _SLOTS_PER_BLOCK
"""Whole pages, a little under 1 MiB."""
_SO_TIMESTAMPNS: Final = 35


class PacketRing(socket.socket):
    """AF_PACKET, SOCK_DGRAM; not bound yet."""

    def __init__(self, *, blocks: int = 64) -> None:
        """About 1 MiB of memory per block. Raises OSError when the kernel has no such memory."""
        super().__init__(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
        try:
            self.setsockopt(_SOL_PACKET, _PACKET_VERSION, _TPACKET_V2)
            request = struct.pack("=IIII", _BLOCK_OCTETS, blocks, _SLOT_OCTETS, blocks * _SLOTS_PER_BLOCK)
            self.setsockopt(_SOL_PACKET, _PACKET_RX_RING, request)
            self._memory = mmap.mmap(self.fileno(), _BLOCK_OCTETS * blocks)
        except BaseException:
            super().close()
            raise
        self._octets = _BLOCK_OCTETS * blocks
        self._slot = 0

    def close(self) -> None:
        """Give memory and socket back."""
        self._memory.close()
        super().close()

    def recvmsg(self, bufsize: int, ancbufsize: int = 0, flags: int = 0) -> Any:  # noqa: ARG002 - the base's signature
        """Return the next packet as a socket with SO_TIMESTAMPNS would. BlockingIOError when there is none."""
        at = self._slot
        status, _, kept, begin, _, seconds, nanoseconds = _HEADER.unpack_from(self._memory, at)
        if not status & _STATUS_USER:
            raise BlockingIOError
        packet = self._memory[at + begin : at + begin + kept]
        _, ethertype, _, hardware, kind, _ = _ADDRESS.unpack_from(self._memory, at + _ADDRESS_OFFSET)
        _STATUS.pack_into(self._memory, at, 0)  # the kernel's again
        self._slot = (at + _SLOT_OCTETS) % self._octets
        stamp = (socket.SOL_SOCKET, _SO_TIMESTAMPNS, struct.pack("qq", seconds, nanoseconds))
        address = ("", int.from_bytes(ethertype, "big"), kind, hardware, b"")
        return packet[:bufsize], [stamp], 0, address
