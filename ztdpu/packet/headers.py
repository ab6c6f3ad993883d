"""Inner packets as fields: one IP packet of a tenant in, a filled `Packet` or a `Reason` to drop it out.

`packet.outbound` and `packet.inbound` call `parse` once per (super-)packet, before anything else looks at it.
This module never decides who may talk to whom and never changes a packet.

One `Packet` per lane is reused: `parse` overwrites every field it owns, so nothing is allocated but the
flow key. Refusals are returned, not raised: a flood of bad packets must not cost an exception each.

What passes: IPv4 without options (RFC 791) and IPv6 without extension headers (RFC 8200), unfragmented,
carrying TCP (RFC 9293), UDP (RFC 768), ICMP (RFC 792) or ICMPv6 (RFC 4443). TCP options are normal.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, TypeAlias

from ztdpu.model.verdict import Reason

if TYPE_CHECKING:
    from ztdpu.packet.flows import Flow
    from ztdpu.packet.ways import Way

Buffer: TypeAlias = bytes | bytearray | memoryview

ICMP: Final = 1
TCP: Final = 6
UDP: Final = 17
ICMPV6: Final = 58

FIN: Final = 0x01
SYN: Final = 0x02
RST: Final = 0x04
ACK: Final = 0x10

UDP_MARK: Final = b"\x11"
ECHO_REQUEST_MARK: Final = b"\x08\x00"
ECHO_REPLY_MARK: Final = b"\x00\x00"

_IPV4: Final = Struct(">BxHxxHBBxx12sIIBB")
"""First octet, total length, flags and fragment offset, TTL, protocol, key; then what TCP has there: sequence,
acknowledgement, data offset, flags. UDP keeps length and checksum in the first of these words, ICMP its identifier."""
_IPV6: Final = Struct(">IHBB36sIIBB")
"""First word, payload length, next header, hop limit, key; then as above."""
_IPV4_LEAST_OCTETS: Final = 40
"""IP and TCP header. What is shorter is padded for the one `Struct`, then held against its real length."""
_IPV6_LEAST_OCTETS: Final = 60

_FRAGMENTED: Final = 0x3FFF
"""More-fragments flag and offset."""
_FRAGMENT_HEADER: Final = 44
_EXTENSION_HEADERS: Final = frozenset({0, 43, 50, 51, 60, 135, 139, 140, 253, 254})
"""IANA "IPv6 Extension Header Types" but for Fragment, which has a reason of its own."""

_IPV4_SUSPECT: Final = frozenset({0, 127, 169, *range(224, 256)})
"""First octets behind which a multicast or martian address may stand: a cheap test on every packet."""
_IPV6_SUSPECT: Final = frozenset({0x00, 0xFE, 0xFF})
_IPV4_BROADCAST: Final = b"\xff\xff\xff\xff"

_ECHO_MARKS: Final = {
    (ICMP, 8, 0): ECHO_REQUEST_MARK,
    (ICMP, 0, 0): ECHO_REPLY_MARK,
    (ICMPV6, 128, 0): ECHO_REQUEST_MARK,
    (ICMPV6, 129, 0): ECHO_REPLY_MARK,
}
"""By protocol, type and code."""


class Packet:
    """One parsed inner packet; reused, so copy what must outlive the next `parse`.

    `parse` fills the fields up to `icmp_code`, `firewall` the two behind, `virtio.check_offload` the last three.
    """

    __slots__ = (
        "acknowledgement", "buffer", "flags", "flow", "icmp_code", "icmp_type", "ip_octets", "key", "needs_checksum",
        "octets", "offset", "payload_offset", "protocol", "route", "segment_count", "segment_octets", "sequence",
        "version",
    )  # fmt: skip

    buffer: Buffer
    """Where the packet lies."""
    offset: int
    """First octet of its IP header in `buffer`."""
    octets: int
    """Length of the whole IP packet."""
    version: int
    """4 or 6."""
    ip_octets: int
    """Length of the IP header: 20 or 40."""
    protocol: int
    """1, 6, 17 or 58."""
    key: bytes
    """Flow key: source address, destination address, then by protocol: TCP both ports; UDP both ports and
    `UDP_MARK`; ICMP echo the identifier and a mark for request or reply, padded by one octet. Other ICMP: addresses
    alone. So the length of a key tells protocol and family apart, and one dict serves all of them."""
    payload_offset: int
    """Octets of IP and transport header together: the payload starts at `offset + payload_offset`."""
    flags: int
    """TCP flags octet; meaningful for TCP only, as are the next two."""
    sequence: int
    acknowledgement: int
    icmp_type: int
    """Meaningful for ICMP and ICMPv6 only, as is the next."""
    icmp_code: int
    flow: Flow | None
    """The live flow it belongs to. Set when the firewall lets the packet pass; stale otherwise."""
    route: Way | None
    """Where its remote address lives: the destination of egress, the source of ingress. Set as `flow` is."""
    segment_octets: int
    """TCP payload octets per segment on the wire; 0 when the packet is no super-packet."""
    segment_count: int
    """Packets it becomes on the wire; 1 when it is no super-packet."""
    needs_checksum: bool
    """The transport checksum holds only the pseudo-header sum and must be completed."""

    def __init__(self) -> None:
        self.buffer = b""
        self.offset = self.octets = self.ip_octets = self.payload_offset = 0
        self.version = self.protocol = 0
        self.key = b""
        self.flags = self.sequence = self.acknowledgement = 0
        self.icmp_type = self.icmp_code = 0
        self.flow = self.route = None
        self.segment_octets = 0
        self.segment_count = 1
        self.needs_checksum = False

    @property
    def source(self) -> bytes:
        """Packed source address, 4 or 16 octets."""
        return self.key[:4] if self.version == 4 else self.key[:16]

    @property
    def destination(self) -> bytes:
        """Packed destination address, 4 or 16 octets."""
        return self.key[4:8] if self.version == 4 else self.key[16:32]

    @property
    def source_port(self) -> int:
        """Source port of TCP and UDP, identifier of ICMP echo, else 0."""
        start = 8 if self.version == 4 else 32
        return int.from_bytes(self.key[start : start + 2])

    @property
    def destination_port(self) -> int:
        """Destination port of TCP and UDP, else 0: what rules are matched against."""
        if self.protocol not in {TCP, UDP}:
            return 0
        start = 10 if self.version == 4 else 34
        return int.from_bytes(self.key[start : start + 2])

    @property
    def is_echo_request(self) -> bool:
        """Whether it is an ICMP or ICMPv6 echo request: the only ICMP that begins a flow."""
        octets = 14 if self.version == 4 else 38
        return len(self.key) == octets and self.key[-4:-2] == ECHO_REQUEST_MARK


def parse(packet: Packet, buffer: Buffer, offset: int, octets: int) -> Reason | None:
    """Fill `packet` from the IP packet of `octets` at `buffer[offset:]`; None when it may go on, else why not.

    The packet must fill `octets` exactly. Verified: version, all lengths, the IPv4 header checksum, addresses that
    no tenant may use; not verified: the transport checksum, which offloading leaves incomplete (`check_transport`).
    After a refusal the fields are undefined. `offset + octets` must lie inside `buffer`.
    """
    if octets < 20:
        return Reason.MALFORMED
    first = buffer[offset]
    if first != 0x45:
        return _parse_ipv6(packet, buffer, offset, octets) if first >> 4 == 6 else _refuse_ipv4(first)
    if octets >= _IPV4_LEAST_OCTETS:
        fields = _IPV4.unpack_from(buffer, offset)
    else:
        fields = _IPV4.unpack_from(bytes(buffer[offset : offset + octets]).ljust(_IPV4.size, b"\0"))
    _, total, fragment, ttl, protocol, key, word, acknowledgement, data_offset, flags = fields
    if total != octets:
        return Reason.MALFORMED
    # RFC 1071 in one step: 2^16 is 1 modulo 0xFFFF, so the big integer is congruent to the sum of its words.
    if int.from_bytes(buffer[offset : offset + 20]) % 0xFFFF:
        return Reason.BAD_CHECKSUM
    if fragment & 0xBFFF:
        return Reason.FRAGMENT if fragment & _FRAGMENTED else Reason.MALFORMED
    if key[4] in _IPV4_SUSPECT or key[0] in _IPV4_SUSPECT:
        reason = _judge_ipv4(key[:4], key[4:8])
        if reason:
            return reason
    if not ttl:
        return Reason.TTL_EXPIRED
    packet.buffer = buffer
    packet.offset = offset
    packet.octets = octets
    packet.version = 4
    packet.ip_octets = 20
    packet.protocol = protocol
    if protocol != TCP:
        return Reason.UNKNOWN_PROTOCOL if protocol == ICMPV6 else _parse_datagram(packet, key, word)
    payload_offset = 20 + (data_offset >> 4 << 2)
    if not 40 <= payload_offset <= octets:
        return Reason.MALFORMED
    packet.key = key
    packet.payload_offset = payload_offset
    packet.flags = flags
    packet.sequence = word
    packet.acknowledgement = acknowledgement
    return None


def _refuse_ipv4(first: int) -> Reason:
    return Reason.IP_OPTIONS if first >> 4 == 4 and first & 0x0F > 5 else Reason.MALFORMED


def _parse_ipv6(packet: Packet, buffer: Buffer, offset: int, octets: int) -> Reason | None:
    """As `parse`, for RFC 8200. A payload length of 0 (jumbograms, RFC 2675) never fits and is malformed."""
    if octets < 40:
        return Reason.MALFORMED
    if octets >= _IPV6_LEAST_OCTETS:
        fields = _IPV6.unpack_from(buffer, offset)
    else:
        fields = _IPV6.unpack_from(bytes(buffer[offset : offset + octets]).ljust(_IPV6.size, b"\0"))
    _, payload_octets, protocol, hop_limit, key, word, acknowledgement, data_offset, flags = fields
    if payload_octets + 40 != octets:
        return Reason.MALFORMED
    if protocol == _FRAGMENT_HEADER:
        return Reason.FRAGMENT
    if protocol in _EXTENSION_HEADERS:
        return Reason.EXTENSION_HEADER
    if key[16] in _IPV6_SUSPECT or key[0] in _IPV6_SUSPECT:
        reason = _judge_ipv6(key[:16], key[16:32])
        if reason:
            return reason
    if not hop_limit:
        return Reason.TTL_EXPIRED
    packet.buffer = buffer
    packet.offset = offset
    packet.octets = octets
    packet.version = 6
    packet.ip_octets = 40
    packet.protocol = protocol
    if protocol != TCP:
        return Reason.UNKNOWN_PROTOCOL if protocol == ICMP else _parse_datagram(packet, key, word)
    payload_offset = 40 + (data_offset >> 4 << 2)
    if not 60 <= payload_offset <= octets:
        return Reason.MALFORMED
    packet.key = key
    packet.payload_offset = payload_offset
    packet.flags = flags
    packet.sequence = word
    packet.acknowledgement = acknowledgement
    return None


def _parse_datagram(packet: Packet, key: bytes, word: int) -> Reason | None:
    """UDP, ICMP and ICMPv6: a header of eight octets, of which four were read as ports and four as `word`."""
    protocol = packet.protocol
    if protocol not in {UDP, ICMP, ICMPV6}:
        return Reason.UNKNOWN_PROTOCOL
    ip_octets = packet.ip_octets
    if packet.octets < ip_octets + 8:
        return Reason.MALFORMED
    packet.payload_offset = ip_octets + 8
    packet.flags = 0
    # A datagram shorter than its IP payload hides octets behind it (RFC 9868 uses them); nothing may hide here.
    if protocol == UDP and word >> 16 != packet.octets - ip_octets:
        return Reason.MALFORMED
    packet.icmp_type = key[-4]
    packet.icmp_code = key[-3]
    packet.key = datagram_key(protocol, key, word)
    return None


def datagram_key(protocol: int, key: bytes, word: int) -> bytes:
    """Return the flow key of UDP, ICMP or ICMPv6 from what stands where TCP has its ports and sequence number."""
    if protocol == UDP:
        return key + UDP_MARK
    mark = _ECHO_MARKS.get((protocol, key[-4], key[-3]))
    return b"".join((key[:-4], word.to_bytes(4)[:2], mark, b"\0\0")) if mark else key[:-4]


def _judge_ipv4(source: bytes, destination: bytes) -> Reason | None:
    """RFC 6890 and RFC 1112: what may not stand in a tenant's packet."""
    if 224 <= destination[0] < 240 or destination == _IPV4_BROADCAST:
        return Reason.MULTICAST
    for address in (source, destination):
        first = address[0]
        if first in {0, 127} or first >= 224 or address[:2] == b"\xa9\xfe":
            return Reason.MARTIAN
    return None


def _judge_ipv6(source: bytes, destination: bytes) -> Reason | None:
    """RFC 4291: multicast; unspecified, loopback, mapped and all of ::/8; link-local and site-local."""
    if destination[0] == 0xFF:
        return Reason.MULTICAST
    for address in (source, destination):
        if address[0] in {0x00, 0xFF} or (address[0] == 0xFE and address[1] >= 0x80):
            return Reason.MARTIAN
    return None


def check_transport(packet: Packet) -> Reason | None:
    """Verify the full transport checksum of a parsed packet; None or BAD_CHECKSUM. Reads the whole packet.

    Not for packets whose checksum is left to hardware. UDP over IPv4 may carry none (RFC 768), over IPv6 it must
    (RFC 8200 section 8.1); ICMP has no pseudo-header (RFC 792), ICMPv6 has (RFC 4443 section 2.3).
    """
    start = packet.offset + packet.ip_octets
    octets = packet.octets - packet.ip_octets
    transport = bytes(packet.buffer[start : start + octets])
    if packet.protocol == UDP and transport[6:8] == b"\0\0":
        return None if packet.version == 4 else Reason.BAD_CHECKSUM
    addresses = b"" if packet.protocol == ICMP else packet.source + packet.destination
    total = int.from_bytes(addresses) + (packet.protocol + octets if addresses else 0)
    padded = transport if octets % 2 == 0 else transport + b"\0"
    total += int.from_bytes(padded)
    return None if total and total % 0xFFFF == 0 else Reason.BAD_CHECKSUM
