"""IP packets made and answered without a network stack: UDP datagrams, the outer header of the wire, echo.

An endpoint in memory has no kernel behind it. It answers echo requests (RFC 792, RFC 4443), sends datagrams to UDP
port 7 back (RFC 862), and resets TCP connections, because nobody listens (RFC 9293 section 3.10.7.1). Nothing else.
Pure.
"""

from __future__ import annotations

import struct
from ipaddress import ip_address
from typing import Final

ICMP, TCP, UDP, ICMPV6 = 1, 6, 17, 58
ECHO_PORT: Final = 7
_IPV4: Final = struct.Struct(">BBHHHBBH4s4s")
_IPV6: Final = struct.Struct(">IHBB16s16s")
_UDP: Final = struct.Struct(">HHHH")
_TCP: Final = struct.Struct(">HHIIBBHHH")
_HOPS: Final = 64
_ACK, _RST, _SYN, _FIN = 0x10, 0x04, 0x02, 0x01
_REPLIES: Final = {(ICMP, 8): 0, (ICMPV6, 128): 129}


def checksum(octets: bytes) -> int:
    """Return the Internet checksum (RFC 1071)."""
    total: int = sum(struct.unpack(f">{len(octets) // 2}H", octets[: len(octets) & ~1]))
    total += octets[-1] << 8 if len(octets) % 2 else 0
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ip_packet(source: bytes, destination: bytes, protocol: int, body: bytes) -> bytes:
    """Return an IPv4 or IPv6 packet (by the length of the addresses) around a finished body."""
    if len(source) == 4:
        fields = (0x45, 0, 20 + len(body), 0, 0x4000, _HOPS, protocol)
        bare = _IPV4.pack(*fields, 0, source, destination)
        return _IPV4.pack(*fields, checksum(bare), source, destination) + body
    return _IPV6.pack(6 << 28, len(body), protocol, _HOPS, source, destination) + body


def udp_packet(source: str, destination: str, source_port: int, destination_port: int, payload: bytes) -> bytes:
    """Return a UDP datagram between two addresses of one version."""
    ends = ip_address(source).packed, ip_address(destination).packed
    return _udp(*ends, source_port, destination_port, payload)


def outer_packet(source: bytes, destination: bytes, source_port: int, destination_port: int, payload: bytes) -> bytes:
    """Return a datagram as it is on an IPv4 underlay: the UDP checksum is left out, as PSP allows."""
    length = 8 + len(payload)
    return ip_packet(source, destination, UDP, _UDP.pack(source_port, destination_port, length, 0) + payload)


def _udp(source: bytes, destination: bytes, source_port: int, destination_port: int, payload: bytes) -> bytes:
    length = _UDP.size + len(payload)
    bare = _UDP.pack(source_port, destination_port, length, 0) + payload
    value = _transport_checksum(source, destination, UDP, bare) or 0xFFFF
    return ip_packet(source, destination, UDP, bare[:6] + value.to_bytes(2, "big") + payload)


def _transport_checksum(source: bytes, destination: bytes, protocol: int, body: bytes) -> int:
    return checksum(source + destination + struct.pack(">II", len(body), protocol) + body)


def split(packet: bytes) -> tuple[bytes, bytes, int, bytes] | None:
    """Return source, destination, protocol and body of an IP packet; None for a fragment and what is none."""
    if len(packet) >= 20 and packet[0] >> 4 == 4:
        start = (packet[0] & 0x0F) * 4
        length = int.from_bytes(packet[2:4], "big")
        if packet[6] & 0x3F or packet[7] or not 20 <= start <= length <= len(packet):
            return None
        return packet[12:16], packet[16:20], packet[9], packet[start:length]
    if len(packet) >= 40 and packet[0] >> 4 == 6:
        length = 40 + int.from_bytes(packet[4:6], "big")
        return (packet[8:24], packet[24:40], packet[6], packet[40:length]) if length <= len(packet) else None
    return None


def answer(packet: bytes) -> bytes | None:
    """Return what an endpoint in memory says to a packet that was for it; None when it says nothing."""
    parts = split(packet)
    if parts is None:
        return None
    source, destination, protocol, body = parts
    if len(body) >= 8 and (protocol, body[0]) in _REPLIES:
        return _echo(destination, source, protocol, body)
    if protocol == UDP and len(body) >= _UDP.size:
        theirs, ours, length, _ = _UDP.unpack_from(body)
        return _udp(destination, source, ours, theirs, body[_UDP.size : length]) if ours == ECHO_PORT else None
    if protocol == TCP and len(body) >= _TCP.size:
        return _reset(destination, source, body)
    return None


def _echo(source: bytes, destination: bytes, protocol: int, body: bytes) -> bytes:
    bare = bytes((_REPLIES[protocol, body[0]], 0, 0, 0)) + body[4:]
    value = checksum(bare) if protocol == ICMP else _transport_checksum(source, destination, protocol, bare)
    return ip_packet(source, destination, protocol, bare[:2] + value.to_bytes(2, "big") + bare[4:])


def _reset(source: bytes, destination: bytes, body: bytes) -> bytes | None:
    theirs, ours, sequence, acknowledgement, offset, flags, *_ = _TCP.unpack_from(body)
    if flags & _RST:
        return None
    if flags & _ACK:
        number, confirmed, bits = acknowledgement, 0, _RST
    else:
        taken = len(body) - (offset >> 4) * 4 + bool(flags & _SYN) + bool(flags & _FIN)
        number, confirmed, bits = 0, (sequence + taken) & 0xFFFF_FFFF, _RST | _ACK
    fields = (ours, theirs, number, confirmed, 5 << 4, bits, 0)
    value = _transport_checksum(source, destination, TCP, _TCP.pack(*fields, 0, 0))
    return ip_packet(source, destination, TCP, _TCP.pack(*fields, value, 0))


def echo_request(source: bytes, destination: bytes, number: int, payload: bytes) -> bytes:
    """Return an echo request of IPv4 or IPv6."""
    protocol, kind = (ICMP, 8) if len(source) == 4 else (ICMPV6, 128)
    bare = struct.pack(">BBHHH", kind, 0, 0, 1, number) + payload
    value = checksum(bare) if protocol == ICMP else _transport_checksum(source, destination, protocol, bare)
    return ip_packet(source, destination, protocol, bare[:2] + value.to_bytes(2, "big") + bare[4:])
