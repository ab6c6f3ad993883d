"""From the underlay to an endpoint.

Functions below stand in the order in which a datagram meets them:

 1. `inbound`     gate -> tables -> a whole run of one SA with consecutive IVs at once, else packet by packet
 2. `_open_run`   the same checks as `_open_one`, made once for the run; any oddity: back to packet by packet,
                  so that one bad packet never costs its neighbours
 3. `_open_one`   fixed fields -> SPI table -> outer source -> window look -> open -> window update
 4. `_hand_over`  parse -> inner source belongs to the peer -> inner destination is an own endpoint -> firewall -> TUN

Nothing is derived for an SPI that is not in the table, and the window moves only after the tag was verified.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Final

from cryptography.exceptions import InvalidTag

from ztdpu.errors import ReplayError
from ztdpu.model.sa import SaUse
from ztdpu.model.verdict import Reason, Verdict
from ztdpu.packet.headers import Packet, parse
from ztdpu.packet.join import Joined, join_run
from ztdpu.packet.sa_table import ReceiveSa, SaState
from ztdpu.packet.segment import OVERHEAD_OCTETS
from ztdpu.packet.station import Station
from ztdpu.psp import HEADER_OCTETS, NEXT_HEADER_IPV4, NEXT_HEADER_IPV6

RECEIVE_BUFFER_OCTETS: Final = 65536
_FIXED_MASK: Final = 0xFFFF3F3F
"""Reserved bits, S and D may be anything (they are authenticated); all else of the first four octets is fixed."""
_LEAST_OCTETS: Final = OVERHEAD_OCTETS + 20
_PLAN_LIMIT: Final = 32
"""Anybody may choose the size of datagrams; plans of old sizes are dropped."""

_psp: Final = struct.Struct("!IIQ")


class _Plan:
    """Slices for opening a run of datagrams of one size, cut once; and the structs that read all their headers."""

    __slots__ = ("ciphertexts", "clears", "headers", "nonces", "outs", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.nonces: list[memoryview] = []
        self.ciphertexts: list[memoryview] = []
        self.clears: list[memoryview] = []
        self.outs: list[memoryview] = []
        self.headers: dict[int, struct.Struct] = {}

    def grow(self, count: int, source: memoryview, plain: memoryview) -> struct.Struct:
        """Make room for `count` datagrams; return the struct that reads their headers."""
        inner = self.size - OVERHEAD_OCTETS
        for index in range(len(self.outs), count):
            at = index * self.size
            self.nonces.append(source[at + 4 : at + HEADER_OCTETS])
            self.clears.append(source[at : at + HEADER_OCTETS])
            self.ciphertexts.append(source[at + HEADER_OCTETS : at + self.size])
            self.outs.append(plain[index * inner : (index + 1) * inner])
        headers = self.headers.get(count)
        if headers is None:
            headers = self.headers[count] = struct.Struct("!" + f"IIQ{self.size - HEADER_OCTETS}x" * count)
        return headers


class Inbound:
    """Owns the receive buffer and the buffer of opened packets."""

    def __init__(self, station: Station) -> None:
        self.receive_buffer = memoryview(bytearray(RECEIVE_BUFFER_OCTETS))
        """The shell receives a datagram or a run of equal ones into it and calls `inbound`."""
        self.last_accepted_ns: dict[str, int] = {}
        """CLOCK_REALTIME of the last packet accepted, by peer."""
        self._station = station
        self._plain = memoryview(bytearray(RECEIVE_BUFFER_OCTETS))
        self._plans: dict[int, _Plan] = {}
        self._packet = Packet()

    def inbound(self, octets: int, segment_octets: int, source: bytes) -> None:
        """Take the datagrams in the first `octets` of `receive_buffer` to their outcomes.

        Each has `segment_octets` (the last may be shorter; 0: there is only one); all came from the underlay
        address `source` (packed).
        """
        station = self._station
        size = segment_octets if 0 < segment_octets < octets else octets
        refusal = station.gate.refusal
        if refusal is None and station.firewall is None:
            refusal = Reason.NO_TABLES
        if refusal is not None:
            station.counters.count(refusal, octets, -(-octets // size) if size else 1)
            return
        if octets < _LEAST_OCTETS:
            station.counters.count(Reason.PSP_MALFORMED, octets)
            return
        at, sa, opened = 0, None, list[memoryview]()
        full = octets // size if size >= _LEAST_OCTETS else 0
        if full > 1:
            sa = self._open_run(size, full, source)
            if sa is not None:
                opened = self._plans[size].outs[:full]
                at = full * size
        while at < octets:
            end = min(at + size, octets)
            result = self._open_one(at, end, source)
            if isinstance(result, Reason):
                station.counters.count(result, end - at)
            else:
                if opened and sa is not None and result[0] is not sa:
                    self._hand_over(sa, opened)
                    opened = []
                sa = result[0]
                opened.append(result[1])
            at = end
        if opened and sa is not None:
            self._hand_over(sa, opened)

    def _open_run(self, size: int, count: int, source: bytes) -> ReceiveSa | None:
        """Open `count` datagrams of `size` at once if they are one SA's and consecutive; None to go one by one."""
        plan = self._plans.get(size)
        if plan is None:
            if len(self._plans) >= _PLAN_LIMIT:
                del self._plans[next(iter(self._plans))]
            plan = self._plans[size] = _Plan(size)
        fields = plan.grow(count, self.receive_buffer, self._plain).unpack_from(self.receive_buffer)
        word, spi, iv = fields[:3]
        if fields[::3].count(word) != count or fields[1::3].count(spi) != count:
            return None
        if fields[2::3] != tuple(range(iv, iv + count)):
            return None
        sa = self._station.sas.receive.get(spi)
        if sa is None or not self._fits(sa, word) or self._station.forwarding.peers.get(sa.line.peer) != source:
            return None
        try:
            sa.window.look_run(iv, count)
            opening = map(sa.key.aead.decrypt_into, plan.nonces[:count], plan.ciphertexts, plan.clears, plan.outs)
            deque(opening, maxlen=0)
        except (ReplayError, InvalidTag):
            return None
        nibble = 4 if word >> 24 == NEXT_HEADER_IPV4 else 6
        if any(out[0] >> 4 != nibble for out in plan.outs[:count]):
            return None
        sa.window.update_run(iv, count)
        self._accepted(sa, count, count * (size - OVERHEAD_OCTETS))
        return sa

    def _open_one(self, at: int, end: int, source: bytes) -> tuple[ReceiveSa, memoryview] | Reason:
        """Open the datagram at `at`..`end` of the receive buffer; return its SA and inner packet, or why not."""
        if end - at < _LEAST_OCTETS:
            return Reason.PSP_MALFORMED
        word, spi, iv = _psp.unpack_from(self.receive_buffer, at)
        if not word & 1 or word >> 2 & 0x0F > 1 or not word >> 16 & 0xFF:
            return Reason.PSP_MALFORMED
        sa = self._station.sas.receive.get(spi)
        if sa is None:
            return Reason.UNKNOWN_SPI
        if not self._fits(sa, word):
            return Reason.SA_MISMATCH
        if self._station.forwarding.peers.get(sa.line.peer) != source:
            return Reason.WRONG_OUTER_SOURCE
        try:
            sa.window.look(iv)
        except ReplayError as error:
            return Reason.REPLAY_TOO_OLD if error.too_old else Reason.REPLAY_DUPLICATE
        clear = self.receive_buffer[at : at + HEADER_OCTETS]
        plain = self._plain[at : at + end - at - OVERHEAD_OCTETS]
        try:
            sa.key.aead.decrypt_into(clear[4:], self.receive_buffer[at + HEADER_OCTETS : end], clear, plain)
        except InvalidTag:
            return Reason.BAD_TAG
        sa.window.update(iv)
        self._accepted(sa, 1, len(plain))
        if plain[0] >> 4 != (4 if word >> 24 == NEXT_HEADER_IPV4 else 6):
            return Reason.SA_MISMATCH
        return sa, plain

    @staticmethod
    def _fits(sa: ReceiveSa, word: int) -> bool:
        """Whether next header, extension length, offset, version and cookie bit are those the SA fixes."""
        fixed = word & _FIXED_MASK
        rest = 1 << 16 | sa.key.version << 2 | 1
        return sa.line.use is SaUse.DATAGRAM and fixed in {NEXT_HEADER_IPV4 << 24 | rest, NEXT_HEADER_IPV6 << 24 | rest}

    def _accepted(self, sa: ReceiveSa, packets: int, octets: int) -> None:
        station = self._station
        sa.packets += packets
        sa.octets += octets
        station.counters.opened_packets += packets
        station.counters.opened_octets += octets
        if sa.state is SaState.OFFERED:
            station.sas.activate(sa, station.gate.now_s)

    def _hand_over(self, sa: ReceiveSa, packets: list[memoryview]) -> None:
        """Judge opened packets of one SA and write them, runs of one flow as one."""
        index = 0
        while index < len(packets):
            joined = join_run(packets, index)
            index += joined.packets
            reason = self._judge(sa, packets[index - joined.packets], joined)
            self._station.counters.count(reason, joined.octets, joined.packets)

    def _judge(self, sa: ReceiveSa, first: memoryview, joined: Joined) -> Reason:
        """Return how a run ended that starts with the packet `first`; its other headers differ in sequence only."""
        station, packet, network_id = self._station, self._packet, sa.line.network_id
        firewall = station.firewall
        if firewall is None:
            return Reason.NO_TABLES
        reason = parse(packet, first, 0, len(first))
        if reason is not None:
            return reason
        # As one packet: what the firewall follows are sequence numbers.
        packet.octets = joined.octets - (joined.packets - 1) * packet.payload_offset
        target = firewall.admit(network_id, packet, sa.line.peer)
        if isinstance(target, Reason):
            return target
        outcome = firewall.ingress(target.endpoint_id, packet, station.gate.now_s)
        if outcome.verdict is Verdict.DROP:
            return outcome.reason
        refused = station.sink.deliver(target.endpoint_id, joined.buffers)
        if refused is not None:
            return refused
        self.last_accepted_ns[sa.line.peer] = station.gate.realtime_ns
        return outcome.reason
