"""The virtio-net header in front of each frame from a TUN: what a tenant's kernel, or its root, claims about offload.

`packet.outbound` calls `check_offload` right after `headers.parse`. The header is tenant input
(root can inject any through a packet socket), so nothing in it is used that the packet does not confirm: hdr_len
is ignored (kernels put the linear part there), the checksum fields must point where the parsed headers say,
and the segment size is bounded, because one frame of 60 KiB with a size of 1 would cost 60,000 seals.

Virtio 1.2 section 5.1.6; in the little-endian form that TUN uses on the machines we run on.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from ztdpu.model.verdict import Reason
from ztdpu.packet.headers import RST, SYN, TCP, UDP, Buffer, Packet

VIRTIO_OCTETS: Final = 10
MAX_SEGMENTS: Final = 128
"""Set as `gso_max_segs` on the TUN too, so that honest kernels never exceed it."""

NEEDS_CSUM: Final = 1
DATA_VALID: Final = 2
GSO_NONE: Final = 0
GSO_TCPV4: Final = 1
GSO_TCPV6: Final = 4

_HEADER: Final = Struct("<BBHHHH")
_CHECKSUM_OFFSETS: Final = {TCP: 16, UDP: 6}
_GSO_VERSIONS: Final = {GSO_TCPV4: 4, GSO_TCPV6: 6}


def check_offload(packet: Packet, buffer: Buffer, offset: int, mtu_octets: int) -> Reason | None:
    """Hold the header at `buffer[offset:]` against the parsed packet behind it; None when it may go on.

    Sets `segment_octets`, `segment_count` and `needs_checksum`. BAD_OFFLOAD_HEADER for a claim that the packet does
    not bear out or more than MAX_SEGMENTS; TOO_BIG for a packet above the MTU that is not to be cut.
    """
    flags, gso_type, _, gso_size, checksum_start, checksum_offset = _HEADER.unpack_from(buffer, offset)
    if flags == NEEDS_CSUM:
        if checksum_start != packet.ip_octets or checksum_offset != _CHECKSUM_OFFSETS.get(packet.protocol):
            return Reason.BAD_OFFLOAD_HEADER
        packet.needs_checksum = True
    elif flags in {0, DATA_VALID}:  # DATA_VALID is a claim; the receiver's kernel sees for itself
        packet.needs_checksum = False
    else:
        return Reason.BAD_OFFLOAD_HEADER
    if gso_type == GSO_NONE:
        packet.segment_octets = 0
        packet.segment_count = 1
        if gso_size:
            return Reason.BAD_OFFLOAD_HEADER
        return Reason.TOO_BIG if packet.octets > mtu_octets else None
    return _check_segments(packet, gso_type, gso_size, mtu_octets)


def _check_segments(packet: Packet, gso_type: int, gso_size: int, mtu_octets: int) -> Reason | None:
    """TCP segmentation only; SYN and RST are never cut, and what is cut leaves its checksum to us."""
    if _GSO_VERSIONS.get(gso_type) != packet.version or packet.protocol != TCP or packet.flags & (SYN | RST):
        return Reason.BAD_OFFLOAD_HEADER
    payload_octets = packet.octets - packet.payload_offset
    if not gso_size or not payload_octets or not packet.needs_checksum:
        return Reason.BAD_OFFLOAD_HEADER
    if gso_size > mtu_octets - packet.payload_offset:
        return Reason.BAD_OFFLOAD_HEADER
    count = -(-payload_octets // gso_size)
    if count > MAX_SEGMENTS:
        return Reason.BAD_OFFLOAD_HEADER
    packet.segment_octets = gso_size
    packet.segment_count = count
    return None
