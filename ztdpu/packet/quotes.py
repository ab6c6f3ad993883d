"""ICMP errors: which flow they speak of, by the packet they quote (RFC 792, RFC 4443 section 2.4).

`packet.firewall` lets an error pass only when its quote belongs to a live flow of the endpoint, in the
direction that the error answers. An overlay has no routers of the tenant, so only the host that got the
quoted packet may complain about it, and only to the host that sent it. Redirects and all else are no errors here.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from ztdpu.packet.headers import ICMP, ICMPV6, TCP, UDP, Packet, datagram_key

ERROR_TYPES: Final = {ICMP: frozenset({3, 11, 12}), ICMPV6: frozenset({1, 2, 3, 4})}
"""Unreachable, too big, time exceeded, parameter problem. Not source quench (RFC 6633) and redirect."""
LEAST_MTU_OCTETS: Final = {4: 576, 6: 1280}
"""A smaller next-hop MTU only makes a peer send needlessly small packets (RFC 1191 section 3, RFC 8201 section 4)."""

_IPV4_QUOTE: Final = Struct(">B5xHxB2x12sI")
_IPV6_QUOTE: Final = Struct(">B5xBx36sI")
_FRAGMENTED: Final = 0x3FFF


def is_error(packet: Packet) -> bool:
    """Whether an ICMP or ICMPv6 packet reports an error about another packet."""
    return packet.icmp_type in ERROR_TYPES.get(packet.protocol, ())


def quoted_key(packet: Packet) -> bytes | None:
    """Return the flow key of the packet that an error quotes; None when the error is not to be believed.

    Refused: a quote too short for ports, of another IP version, a fragment, with options, about another ICMP error
    (RFC 1122 section 3.2.2), sent by or to anybody but the two ends, or an MTU below what every host must take.
    """
    key: bytes
    start = packet.offset + packet.payload_offset
    octets = packet.octets - packet.payload_offset
    if packet.version == 4:
        if octets < _IPV4_QUOTE.size:
            return None
        first, fragment, protocol, key, word = _IPV4_QUOTE.unpack_from(packet.buffer, start)
        if first != 0x45 or fragment & _FRAGMENTED or protocol == ICMPV6:
            return None
        address_octets = 4
    else:
        if octets < _IPV6_QUOTE.size:
            return None
        first, protocol, key, word = _IPV6_QUOTE.unpack_from(packet.buffer, start)
        if first >> 4 != 6 or protocol == ICMP:
            return None
        address_octets = 16
    if key[:address_octets] != packet.destination or key[address_octets : 2 * address_octets] != packet.source:
        return None
    if _shrinks_mtu(packet):
        return None
    if protocol == TCP:
        return key
    return datagram_key(protocol, key, word) if protocol in {UDP, ICMP, ICMPV6} else None


def _shrinks_mtu(packet: Packet) -> bool:
    """Whether it is a "packet too big" with an MTU that no path has."""
    at = packet.offset + packet.ip_octets + 4
    if packet.version == 4 and (packet.icmp_type, packet.icmp_code) == (3, 4):
        return int.from_bytes(packet.buffer[at + 2 : at + 4]) < LEAST_MTU_OCTETS[4]
    if packet.version == 6 and packet.icmp_type == 2:
        return int.from_bytes(packet.buffer[at : at + 4]) < LEAST_MTU_OCTETS[6]
    return False
