"""A tenant's super-packet becomes PSP packets, back to back in one send buffer.

    read buffer   virtio header 10 | IP + TCP header H | payload, up to 64 KiB
    send buffer   PSP header 16 | ciphertext H + S | ICV 16 | PSP header 16 | ...        (S = segment payload)

Called by `packet.outbound` after every check has passed; `sa.next_iv` is the only state it moves. The flow:

 1. `split` writes one header template for all full segments; only the sequence number changes between them
    (with Don't Fragment set the IPv4 id may repeat, RFC 6864 section 4.1). FIN and PSH stay for the last one.
 2. Each segment's header is written *in the read buffer* right in front of its payload, over the tail of
    the segment sealed before: header and payload lie together without a copy.
 3. `encrypt_into` reads there and writes into the send buffer. The slices of every segment are cut once
    per (H, S) and kept (a *plan*); the loop writes sequence numbers and IVs only.

Inner TCP checksums: by default the pseudo-header sum stays in the field, as with any checksum offload, and
the receiver recognises that form (see `packet.join`). With `full_checksums` each segment gets the finished
checksum, for a peer that is no ztdpu device. Never looks at policy, never sends.
"""

from __future__ import annotations

import struct
from typing import Final

from ztdpu.packet.checksum import MODULUS, checksum, pseudo_header, residue
from ztdpu.packet.sa_table import SendSa
from ztdpu.packet.virtio import MAX_SEGMENTS, VIRTIO_OCTETS
from ztdpu.psp import HEADER_OCTETS, ICV_OCTETS, NEXT_HEADER_IPV4, NEXT_HEADER_IPV6

READ_BUFFER_OCTETS: Final = VIRTIO_OCTETS + 65536
OVERHEAD_OCTETS: Final = HEADER_OCTETS + ICV_OCTETS
MAX_DATAGRAM_OCTETS: Final = 65507
"""Largest UDP payload over IPv4, also for all segments of one GSO send together."""
SEND_BUFFER_OCTETS: Final = 65536 + MAX_SEGMENTS * 160
"""A super-packet and the headers (at most 120 octets) and overhead of its segments."""

_TCP: Final = 6
_FIN: Final = 0x01
_PSH: Final = 0x08
_CWR: Final = 0x80
_FLAGS_OFFSET: Final = 13
_CHECKSUM_OFFSET: Final = 16
_PLAN_LIMIT: Final = 32
"""Tenants choose header and segment sizes; plans of old ones are dropped."""

_pack_sequence: Final = struct.Struct("!I").pack_into
_pack_short: Final = struct.Struct("!H").pack_into
_pack_psp: Final = struct.Struct("!4sIQ").pack_into

Views = tuple[memoryview, memoryview, memoryview, memoryview, memoryview]
"""Of one segment: place of its header, nonce, clear part, plaintext, room for ciphertext and ICV."""


class HeaderTemplate:
    """IP and TCP header of a run of segments; `set_sequence` and `set_length` make it the header of each.

    What does not change between segments is summed once, so a new length costs no pass over the header.
    """

    __slots__ = ("_ip", "_ip_sum", "_pseudo_sum", "is_ipv4", "octets")

    def __init__(self, header: bytes | bytearray | memoryview, ip_octets: int) -> None:
        """`header` is the IP header of `ip_octets` without options and the whole TCP header behind it."""
        self.octets = bytearray(header)
        self._ip = ip_octets
        self.is_ipv4 = ip_octets == 20
        if self.is_ipv4:
            self._ip_sum = residue(header[:2]) + residue(header[4:10]) + residue(header[12:20])
            self._pseudo_sum = pseudo_header(header[12:20], _TCP, 0)
        else:
            self._ip_sum = 0
            self._pseudo_sum = pseudo_header(header[8:40], _TCP, 0)

    @property
    def sequence(self) -> int:
        """TCP sequence number."""
        return int.from_bytes(self.octets[self._ip + 4 : self._ip + 8], "big")

    @property
    def flags(self) -> int:
        """TCP flags octet."""
        return self.octets[self._ip + _FLAGS_OFFSET]

    @flags.setter
    def flags(self, value: int) -> None:
        self.octets[self._ip + _FLAGS_OFFSET] = value

    def set_sequence(self, sequence: int) -> None:
        """Write the TCP sequence number."""
        _pack_sequence(self.octets, self._ip + 4, sequence & 0xFFFFFFFF)

    def advance_id(self) -> None:
        """Give an IPv4 packet that may be fragmented the next id; `set_length` mends the checksum."""
        if self.is_ipv4 and not self.octets[6] & 0x40:
            _pack_short(self.octets, 4, (int.from_bytes(self.octets[4:6], "big") + 1) & 0xFFFF)
            self._ip_sum = residue(self.octets[:2]) + residue(self.octets[4:10]) + residue(self.octets[12:20])

    def set_length(self, payload_octets: int) -> None:
        """Write lengths, the IPv4 header checksum, and the pseudo-header sum into the TCP checksum field."""
        octets, ip_octets = self.octets, self._ip
        total = len(octets) + payload_octets
        if self.is_ipv4:
            _pack_short(octets, 2, total)
            _pack_short(octets, 10, checksum(self._ip_sum + total))
        else:
            _pack_short(octets, 4, total - ip_octets)
        _pack_short(octets, ip_octets + _CHECKSUM_OFFSET, (self._pseudo_sum + total - ip_octets) % MODULUS)


class Segmenter:
    """Owns the send buffer and the plans over one read buffer."""

    def __init__(self, read_buffer: memoryview, *, full_checksums: bool = False) -> None:
        """`read_buffer` has READ_BUFFER_OCTETS: a virtio-net header, then one IP packet."""
        self.send_buffer = memoryview(bytearray(SEND_BUFFER_OCTETS))
        self._read = read_buffer
        self._full_checksums = full_checksums
        self._plans: dict[tuple[int, int], list[Views]] = {}

    def split(self, packet_octets: int, ip_octets: int, header_octets: int, segment_octets: int, sa: SendSa) -> int:
        """Seal the super-packet in the read buffer; return how many octets of the send buffer are filled.

        `header_octets` is IP and TCP header together, `segment_octets` the payload per segment (1 or more); the
        caller has checked that there are at most MAX_SEGMENTS and that `sa` has room. Every sealed packet has
        `OVERHEAD_OCTETS + header_octets + segment_octets` octets, the last may be shorter.
        """
        read = self._read
        template = HeaderTemplate(read[VIRTIO_OCTETS : VIRTIO_OCTETS + header_octets], ip_octets)
        flags = template.flags
        rest = packet_octets - header_octets
        full = (rest - 1) // segment_octets
        template.flags = flags & ~(_FIN | _PSH)
        template.set_length(segment_octets)
        if self._full_checksums or flags & _CWR or (template.is_ipv4 and not template.octets[6] & 0x40):
            filled = self._seal_one_by_one(template, full, header_octets, segment_octets, sa)
        else:
            filled = self._seal_plan(template, full, ip_octets, header_octets, segment_octets, sa)
        template.flags = flags if full == 0 else flags & ~_CWR
        template.set_length(rest - full * segment_octets)
        return self._seal_segment(
            template, full, header_octets, segment_octets, rest - full * segment_octets, sa, filled
        )

    def _seal_plan(
        self, template: HeaderTemplate, full: int, ip_octets: int, header_octets: int, segment_octets: int, sa: SendSa
    ) -> int:
        """Seal `full` equal segments: the hot loop. Leaves the next sequence number in the template."""
        header, sequence, iv = template.octets, template.sequence, sa.next_iv
        send, encrypt_into = self.send_buffer, sa.key.aead.encrypt_into
        fixed, spi, sequence_at = fixed_word(sa, is_ipv4=template.is_ipv4), sa.key.spi, ip_octets + 4
        stride = OVERHEAD_OCTETS + header_octets + segment_octets
        at = 0
        # From here on these IVs are spent, whatever happens below.
        sa.next_iv = iv + full
        for place, nonce, clear, plain, out in self._plan(header_octets, segment_octets, full)[:full]:
            _pack_sequence(header, sequence_at, sequence & 0xFFFFFFFF)
            place[:] = header
            _pack_psp(send, at, fixed, spi, iv)
            encrypt_into(nonce, plain, clear, out)
            sequence += segment_octets
            iv += 1
            at += stride
        template.set_sequence(sequence)
        return at

    def _seal_one_by_one(
        self, template: HeaderTemplate, full: int, header_octets: int, segment_octets: int, sa: SendSa
    ) -> int:
        at = 0
        for index in range(full):
            at = self._seal_segment(template, index, header_octets, segment_octets, segment_octets, sa, at)
            template.set_sequence(template.sequence + segment_octets)
            template.advance_id()
            template.flags &= ~_CWR
            template.set_length(segment_octets)
        return at

    def _seal_segment(
        self,
        template: HeaderTemplate,
        index: int,
        header_octets: int,
        segment_octets: int,
        payload_octets: int,
        sa: SendSa,
        at: int,
    ) -> int:
        start = VIRTIO_OCTETS + index * segment_octets
        self._read[start : start + header_octets] = template.octets
        plain = self._read[start : start + header_octets + payload_octets]
        if self._full_checksums:
            finish_checksum(plain, 20 if template.is_ipv4 else 40, _CHECKSUM_OFFSET)
        return seal_into(self.send_buffer, at, plain, sa)

    def _plan(self, header_octets: int, segment_octets: int, count: int) -> list[Views]:
        key = (header_octets, segment_octets)
        plan = self._plans.get(key)
        if plan is not None and len(plan) >= count:
            return plan
        if len(self._plans) >= _PLAN_LIMIT:
            del self._plans[next(iter(self._plans))]
        read, send = self._read, self.send_buffer
        stride = OVERHEAD_OCTETS + header_octets + segment_octets
        plan = []
        for index in range(count):
            start, at = VIRTIO_OCTETS + index * segment_octets, index * stride
            plan.append(
                (
                    read[start : start + header_octets],
                    send[at + 4 : at + HEADER_OCTETS],
                    send[at : at + HEADER_OCTETS],
                    read[start : start + header_octets + segment_octets],
                    send[at + HEADER_OCTETS : at + stride],
                )
            )
        self._plans[key] = plan
        return plan


def fixed_word(sa: SendSa, *, is_ipv4: bool) -> bytes:
    """Return the first four octets of the PSP header."""
    flags = 1 | sa.key.version << 2
    return bytes((NEXT_HEADER_IPV4 if is_ipv4 else NEXT_HEADER_IPV6, 1, 0, flags))


def seal_into(send: memoryview, at: int, plain: memoryview, sa: SendSa) -> int:
    """Seal one IP packet at offset `at` of a send buffer; return the offset behind it. Spends one IV."""
    iv = sa.next_iv
    sa.next_iv = iv + 1
    end = at + OVERHEAD_OCTETS + len(plain)
    _pack_psp(send, at, fixed_word(sa, is_ipv4=plain[0] >> 4 == 4), sa.key.spi, iv)
    sa.key.aead.encrypt_into(
        send[at + 4 : at + HEADER_OCTETS], plain, send[at : at + HEADER_OCTETS], send[at + HEADER_OCTETS : end]
    )
    return end


def finish_checksum(packet: memoryview, ip_octets: int, offset_octets: int) -> None:
    """Turn the pseudo-header sum in a TCP or UDP checksum field into the finished checksum, in place.

    `offset_octets` is where the field lies behind the IP header: 16 for TCP, 6 for UDP. A UDP result of zero is
    written as 0xFFFF (RFC 768), since zero says that there is none.
    """
    value = checksum(residue(packet[ip_octets:]))
    _pack_short(packet, ip_octets + offset_octets, value or 0xFFFF)
