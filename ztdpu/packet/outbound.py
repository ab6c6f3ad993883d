"""From an endpoint to the underlay (or to another endpoint of this device).

Functions below stand in the order in which a packet meets them:

 1. `outbound`: gate (lease, doubt, fork) -> tables -> parse -> offload header
 2.             firewall (the source is the endpoint's own, flow or rule) -> route
 3. `_local`    same device: the other endpoint's rules, then its TUN
 4. `_seal`     SA -> hard limit -> super-packet: segment, seal, one send
 5. `_append`   single packet: seal into the batch; equal ones to one peer share a send

A packet that cannot be sealed is dropped and counted; no path leads to the underlay in clear.
"""

from __future__ import annotations

import struct
from typing import Final

from ztdpu.model.sa import SaUse
from ztdpu.model.verdict import Reason, Verdict
from ztdpu.packet.checksum import pseudo_header
from ztdpu.packet.headers import TCP, Packet, parse
from ztdpu.packet.join import offload_header
from ztdpu.packet.sa_table import Line, SendSa
from ztdpu.packet.segment import (
    MAX_DATAGRAM_OCTETS,
    OVERHEAD_OCTETS,
    READ_BUFFER_OCTETS,
    HeaderTemplate,
    Segmenter,
    finish_checksum,
    seal_into,
)
from ztdpu.packet.station import Station
from ztdpu.packet.virtio import MAX_SEGMENTS, VIRTIO_OCTETS, check_offload
from ztdpu.packet.ways import Way

_MAX_PLAIN_OCTETS: Final = MAX_DATAGRAM_OCTETS - OVERHEAD_OCTETS
_pack_short: Final = struct.Struct("!H").pack_into


class Outbound:
    """Owns the read buffer, the send buffer and the batch of single packets that wait for `flush`."""

    def __init__(self, station: Station, *, full_checksums: bool = False) -> None:
        self.read_buffer = memoryview(bytearray(READ_BUFFER_OCTETS))
        """The shell reads a frame (virtio-net header, IP packet) into it and calls `outbound`."""
        self._station = station
        self._packet = Packet()
        self._segmenter = Segmenter(self.read_buffer, full_checksums=full_checksums)
        self._full_checksums = full_checksums
        self._batch = memoryview(bytearray(MAX_DATAGRAM_OCTETS + 1))
        self._batch_end = 0
        self._batch_size = 0
        """Octets of each packet in the batch; the last may be shorter and then ends it."""
        self._batch_destination = b""
        self._batch_entries: list[tuple[Reason, int]] = []

    def outbound(self, endpoint_id: bytes, frame_octets: int) -> None:
        """Take the frame of `frame_octets` in `read_buffer`, sent by `endpoint_id`, to its one outcome."""
        station, packet = self._station, self._packet
        octets = max(frame_octets - VIRTIO_OCTETS, 0)
        firewall = station.firewall
        endpoint = firewall.endpoint(endpoint_id) if firewall is not None else None
        reason = station.gate.refusal
        if reason is None and (firewall is None or endpoint is None):
            reason = Reason.NO_TABLES
        if reason is not None or firewall is None or endpoint is None:
            station.counters.count(reason or Reason.NO_TABLES, octets)
            return
        reason = parse(packet, self.read_buffer, VIRTIO_OCTETS, octets) or check_offload(
            packet, self.read_buffer, 0, endpoint.mtu_octets
        )
        if reason is None:
            outcome = firewall.egress(endpoint_id, packet, station.gate.now_s)
            if outcome.verdict is Verdict.DROP:
                reason = outcome.reason
            elif packet.route is None:
                reason = Reason.NO_ROUTE
            elif packet.route.device == station.device:
                reason = self._local(packet.route, octets, outcome.reason)
            else:
                reason = self._seal(packet.route.device, packet.route.network_id, outcome.reason)
                if reason is None:
                    return
        station.counters.count(reason, octets)

    def flush(self) -> None:
        """Send the batch. Called before anything is sent past it and at the end of every wake-up."""
        if not self._batch_entries:
            return
        datagrams = self._batch[: self._batch_end]
        is_sent = self._station.sink.transmit(self._batch_destination, datagrams, self._batch_size)
        for reason, octets in self._batch_entries:
            self._station.counters.count(reason if is_sent else Reason.SEND_FAILED, octets)
        self._batch_entries.clear()
        self._batch_end = 0

    def _local(self, way: Way, octets: int, allowed: Reason) -> Reason:
        """Through the other endpoint's rules to its TUN; returns how it ended. `allowed`: why it left."""
        station, packet = self._station, self._packet
        firewall = station.firewall
        if firewall is None:
            return Reason.NO_TABLES
        if way.network_id in station.withheld:
            return Reason.NO_LEASE
        target = firewall.admit(way.network_id, packet, station.device)
        if isinstance(target, Reason):
            return target
        outcome = firewall.ingress(target.endpoint_id, packet, station.gate.now_s)
        if outcome.verdict is Verdict.DROP:
            return outcome.reason
        self._write_pseudo_sum(packet)
        virtio = offload_header(
            is_ipv4=packet.version == 4,
            protocol=packet.protocol,
            is_unfinished=packet.needs_checksum,
            header_octets=packet.payload_offset,
            segment_octets=packet.segment_octets,
        )
        frame = self.read_buffer[VIRTIO_OCTETS : VIRTIO_OCTETS + octets]
        # It passed twice and ends once: what audit mode found on the way out must not get lost.
        passed = allowed if allowed is Reason.AUDIT_WOULD_DROP else outcome.reason
        return station.sink.deliver(target.endpoint_id, [virtio, frame]) or passed

    def _seal(self, device: str, network_id: bytes, allowed: Reason) -> Reason | None:
        """Seal for `device`; returns how it ended, None when `flush` will count it."""
        station, packet = self._station, self._packet
        destination = station.forwarding.peers.get(device)
        if destination is None:
            return Reason.NO_ROUTE
        count, header_octets = packet.segment_count, packet.payload_offset
        if (packet.octets if count == 1 else header_octets + packet.segment_octets) > _MAX_PLAIN_OCTETS:
            return Reason.TOO_BIG
        sa = station.sas.datagram_senders.get((device, network_id))
        if sa is None:
            station.want(Line(device, network_id, SaUse.DATAGRAM, 0))
            return Reason.NO_SA
        if sa.is_worn(station.gate.now_s):
            station.want(sa.line)
        octets = packet.octets + (count - 1) * header_octets
        if sa.is_exhausted(count, octets):
            return Reason.SA_EXHAUSTED
        sa.octets += octets
        station.counters.sealed_packets += count
        station.counters.sealed_octets += octets
        if count == 1:
            self._append(destination, sa, allowed)
            return None
        self.flush()
        return allowed if self._send_segments(destination, sa) else Reason.SEND_FAILED

    def _send_segments(self, destination: bytes, sa: SendSa) -> bool:
        packet, segmenter = self._packet, self._segmenter
        header_octets, segment_octets = packet.payload_offset, packet.segment_octets
        filled = segmenter.split(packet.octets, packet.ip_octets, header_octets, segment_octets, sa)
        stride = OVERHEAD_OCTETS + header_octets + segment_octets
        step = min(MAX_SEGMENTS, MAX_DATAGRAM_OCTETS // stride) * stride
        is_sent = True
        for start in range(0, filled, step):
            datagrams = segmenter.send_buffer[start : min(start + step, filled)]
            is_sent &= self._station.sink.transmit(destination, datagrams, stride)
        return is_sent

    def _append(self, destination: bytes, sa: SendSa, allowed: Reason) -> None:
        packet = self._packet
        self._write_pseudo_sum(packet)
        plain = self.read_buffer[VIRTIO_OCTETS : VIRTIO_OCTETS + packet.octets]
        if self._full_checksums and packet.needs_checksum:
            finish_checksum(plain, packet.ip_octets, 16 if packet.protocol == TCP else 6)
        size = OVERHEAD_OCTETS + packet.octets
        if self._batch_entries and (
            destination != self._batch_destination
            or size > self._batch_size
            or self._batch_end + size > MAX_DATAGRAM_OCTETS
            or len(self._batch_entries) >= MAX_SEGMENTS
        ):
            self.flush()
        if not self._batch_entries:
            self._batch_destination = destination
            self._batch_size = size
        self._batch_end = seal_into(self._batch, self._batch_end, plain, sa)
        self._batch_entries.append((allowed, packet.octets))
        if size < self._batch_size:
            self.flush()

    def _write_pseudo_sum(self, packet: Packet) -> None:
        """What NEEDS_CSUM promises to be in the checksum field: a tenant may have put anything there."""
        if not packet.needs_checksum and not packet.segment_octets:
            return
        start = VIRTIO_OCTETS
        if packet.protocol == TCP and packet.segment_octets:
            template = HeaderTemplate(self.read_buffer[start : start + packet.payload_offset], packet.ip_octets)
            template.set_length(packet.octets - packet.payload_offset)
            self.read_buffer[start : start + packet.payload_offset] = template.octets
            return
        transport_octets = packet.octets - packet.ip_octets
        total = pseudo_header(packet.source + packet.destination, packet.protocol, transport_octets)
        _pack_short(self.read_buffer, start + packet.ip_octets + (16 if packet.protocol == TCP else 6), total)
