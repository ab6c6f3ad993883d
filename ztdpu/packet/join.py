"""Opened inner packets become as few writes to an endpoint as possible.

The inverse of `packet.segment`: a run of TCP segments of one flow, each header exactly what `HeaderTemplate`
would have written for it, is handed over as one GSO packet whose payload is gathered from the segments (no
copy). A run ends at the first segment whose flags, window, options or length differ; FIN, SYN, RST and URG
never join one; a short or pushed segment is its last. Called by `packet.inbound` after the tag was verified;
never decides whether a packet is allowed.

Checksums tell their own form: a field that equals the pseudo-header sum is unfinished (the sender's kernel
left it to offload) and the packet is written with NEEDS_CSUM; anything else is a finished checksum, which the
endpoint's kernel verifies. A finished one that happens to equal that sum is right as well, so nothing is lost.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from ztdpu.packet.checksum import MODULUS, pseudo_header
from ztdpu.packet.segment import HeaderTemplate
from ztdpu.packet.virtio import GSO_NONE, GSO_TCPV4, GSO_TCPV6, MAX_SEGMENTS, NEEDS_CSUM, VIRTIO_OCTETS

_virtio: Final = struct.Struct("=BBHHHH")
_PLAIN_VIRTIO: Final = bytes(VIRTIO_OCTETS)
_MAX_PACKET_OCTETS: Final = 65535
_ACK: Final = 0x10
_PSH: Final = 0x08
_TCP: Final = 6
_UDP: Final = 17
_CHECKSUM_OFFSETS: Final = {_TCP: 16, _UDP: 6}


class Joined(NamedTuple):
    """What to write to an endpoint in one go, and how many packets it stands for."""

    buffers: list[bytes | bytearray | memoryview]
    """A virtio-net header, then the IP packet in pieces."""
    packets: int
    octets: int
    """Of the IP packets that were joined."""


def join_run(packets: Sequence[memoryview], first: int) -> Joined:
    """Return the longest write that starts with `packets[first]`, at least that packet alone."""
    packet = packets[first]
    header_octets = _joinable_header(packet)
    if not header_octets or first + 1 == len(packets):
        return single(packet)
    ip_octets = 20 if packet[0] >> 4 == 4 else 40
    size = len(packet) - header_octets
    template = HeaderTemplate(packet[:header_octets], ip_octets)
    template.set_length(size)
    payloads: list[bytes | bytearray | memoryview] = [packet[header_octets:]]
    total, pushed = size, False
    limit = _MAX_PACKET_OCTETS - header_octets
    sequence = first_sequence = template.sequence
    for candidate in packets[first + 1 : first + MAX_SEGMENTS]:
        payload_octets = len(candidate) - header_octets
        if not 0 < payload_octets <= size or total + payload_octets > limit:
            break
        sequence += size
        template.set_sequence(sequence)
        is_full = payload_octets == size and candidate[:header_octets] == template.octets
        if not is_full:
            flags = _last_flags(template, candidate, payload_octets)
            if flags is None:
                break
            pushed = bool(flags & _PSH)
        payloads.append(candidate[header_octets:])
        total += payload_octets
        if not is_full:
            break
    if len(payloads) == 1:
        return single(packet)
    template.set_sequence(first_sequence)
    if pushed:
        template.flags |= _PSH
    template.set_length(total)
    gso_type = GSO_TCPV4 if ip_octets == 20 else GSO_TCPV6
    virtio = _virtio.pack(NEEDS_CSUM, gso_type, header_octets, size, ip_octets, _CHECKSUM_OFFSETS[_TCP])
    count = len(payloads)
    return Joined([virtio + template.octets, *payloads], count, count * header_octets + total)


def single(packet: memoryview) -> Joined:
    """Return the write for one packet as it is."""
    ip_octets, protocol = (20, packet[9]) if packet[0] >> 4 == 4 else (40, packet[6])
    virtio = _PLAIN_VIRTIO
    offset = _CHECKSUM_OFFSETS.get(protocol)
    if offset is not None and _is_unfinished(packet, ip_octets, protocol):
        virtio = _virtio.pack(NEEDS_CSUM, GSO_NONE, ip_octets + offset, 0, ip_octets, offset)
    return Joined([virtio, packet], 1, len(packet))


def offload_header(
    *, is_ipv4: bool, protocol: int, is_unfinished: bool, header_octets: int, segment_octets: int
) -> bytes:
    """Return a virtio-net header made anew for a (super-)packet that goes straight to an endpoint of this device.

    `segment_octets` is 0 for a packet that is no super-packet.
    """
    ip_octets = 20 if is_ipv4 else 40
    offset = _CHECKSUM_OFFSETS.get(protocol)
    if offset is None or not (is_unfinished or segment_octets):
        return _PLAIN_VIRTIO
    gso_type = GSO_NONE if not segment_octets else GSO_TCPV4 if is_ipv4 else GSO_TCPV6
    return _virtio.pack(NEEDS_CSUM, gso_type, header_octets, segment_octets, ip_octets, offset)


def _joinable_header(packet: memoryview) -> int:
    """Return the octets of IP and TCP header if this segment may start a run, else 0."""
    if len(packet) <= 40:
        return 0
    if packet[0] == 0x45 and packet[9] == _TCP and packet[6] == 0x40 and packet[7] == 0:
        ip_octets = 20
    elif packet[0] >> 4 == 6 and packet[6] == _TCP and len(packet) > 60:
        ip_octets = 40
    else:
        return 0
    header_octets = ip_octets + (packet[ip_octets + 12] >> 4) * 4
    if not ip_octets + 20 <= header_octets < len(packet) or packet[ip_octets + 13] != _ACK:
        return 0
    return header_octets if _is_unfinished(packet, ip_octets, _TCP) else 0


def _last_flags(template: HeaderTemplate, candidate: memoryview, payload_octets: int) -> int | None:
    """Return the TCP flags of `candidate` if it may end the run: shorter, pushed or both. Spoils the template."""
    template.set_length(payload_octets)
    header_octets = len(template.octets)
    for flags in (_ACK | _PSH, _ACK):
        template.flags = flags
        if candidate[:header_octets] == template.octets:
            return flags
    template.flags = _ACK
    return None


def _is_unfinished(packet: memoryview, ip_octets: int, protocol: int) -> bool:
    at = ip_octets + _CHECKSUM_OFFSETS[protocol]
    if len(packet) < at + 2:
        return False
    field = packet[at] << 8 | packet[at + 1]
    addresses = packet[12:20] if ip_octets == 20 else packet[8:40]
    # Zero in a UDP header says that there is no checksum (RFC 768).
    return field != 0 and field % MODULUS == pseudo_header(addresses, protocol, len(packet) - ip_octets)
