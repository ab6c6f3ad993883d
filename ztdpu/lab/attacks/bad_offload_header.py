"""Attack: hand the virtual function packets whose virtio-net header lies about where the checksum belongs.

Runs in an endpoint of the attacking tenant, as its root, to a target that would be allowed:

    python -m ztdpu.lab.attacks.bad_offload_header --source 10.1.0.10 --target 10.1.0.11 --port 5005 --attempts 20

Whoever followed such a header would write into addresses or payload after they were judged. The twin hands over the
same datagrams with a header that says the truth.
"""

from __future__ import annotations

import struct

from ztdpu.lab.attacks.tenant_packets import Frame, Order, make_datagrams, run

NEEDS_CHECKSUM = 1
UDP_CHECKSUM_OFFSET = 6
_HEADERS_OCTETS = {4: 20, 6: 40}


def make_lies(order: Order) -> list[Frame]:
    """Return datagrams whose header puts the checksum into the payload, and into the destination port, by turns."""
    lies = ((8, UDP_CHECKSUM_OFFSET), (0, 2))
    return [_offload(frame, *lies[number % len(lies)]) for number, frame in enumerate(make_datagrams(order))]


def make_truths(order: Order) -> list[Frame]:
    """Return datagrams whose header says where a UDP checksum stands."""
    return [_offload(frame, 0, UDP_CHECKSUM_OFFSET) for frame in make_datagrams(order)]


def _offload(frame: Frame, shift_octets: int, offset_octets: int) -> Frame:
    """Leave the checksum to the device: `shift_octets` behind the transport header, at `offset_octets` from there."""
    start = _HEADERS_OCTETS[frame.packet[0] >> 4]
    field = start + UDP_CHECKSUM_OFFSET
    packet = frame.packet[:field] + _pseudo_checksum(frame.packet, start) + frame.packet[field + 2 :]
    return Frame(packet, struct.pack("<BBHHHH", NEEDS_CHECKSUM, 0, 0, 0, start + shift_octets, offset_octets))


def _pseudo_checksum(packet: bytes, start: int) -> bytes:
    """Return the sum over the pseudo-header that a kernel leaves in the field, not inverted (RFC 1071)."""
    addresses = packet[12:20] if start == 20 else packet[8:40]
    octets = addresses + struct.pack(">HH", 17, len(packet) - start)
    total = sum(struct.unpack(f">{len(octets) // 2}H", octets))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack(">H", total)


if __name__ == "__main__":
    run("Hand over lying offload headers.", make_lies, make_truths)
