"""Splitting a super-packet into sealed segments, and joining opened segments again."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ztdpu.model.sa import PspVersion, SaUse
from ztdpu.packet.checksum import checksum, pseudo_header, residue
from ztdpu.packet.join import join_run
from ztdpu.packet.sa_table import Line, SendSa
from ztdpu.packet.segment import OVERHEAD_OCTETS, READ_BUFFER_OCTETS, Segmenter, finish_checksum
from ztdpu.packet.virtio import VIRTIO_OCTETS
from ztdpu.psp import SaKey, unseal

ACK, PSH, FIN, SYN = 0x10, 0x08, 0x01, 0x02


def send_sa() -> SendSa:
    line = Line("dpu-1", bytes(16), SaUse.DATAGRAM, 0)
    return SendSa(
        line=line,
        key=SaKey(bytes(range(32)), 7, PspVersion.AES_GCM_256),
        installed_s=0,
        soft_limit_s=3600,
        soft_limit_octets=1 << 38,
        fingerprint=b"",
    )


def tcp_packet(*, version=4, payload=b"", sequence=1000, flags=ACK, options=b"", dont_fragment=True, finished=False):
    """A TCP packet as a kernel with checksum offload hands it over: pseudo-header sum in the field."""
    tcp = bytearray(
        struct.pack("!HHIIBBHHH", 40000, 5001, sequence & 0xFFFFFFFF, 77, (20 + len(options)) << 2, flags, 512, 0, 0)
    )
    tcp += options
    length = len(tcp) + len(payload)
    if version == 4:
        ip = bytearray(
            struct.pack(
                "!BBHHHBBH4s4s",
                0x45,
                0,
                20 + length,
                9,
                0x4000 if dont_fragment else 0,
                64,
                6,
                0,
                b"\x0a\x01\0\x0a",
                b"\x0a\x01\0\x0b",
            )
        )
        ip[10:12] = checksum(residue(ip)).to_bytes(2, "big")
        addresses = ip[12:20]
    else:
        ip = bytearray(
            struct.pack("!IHBB16s16s", 6 << 28, length, 6, 64, b"\xfd" + bytes(14) + b"\1", b"\xfd" + bytes(14) + b"\2")
        )
        addresses = ip[8:40]
    tcp[16:18] = pseudo_header(addresses, 6, length).to_bytes(2, "big")
    packet = bytearray(ip + tcp + payload)
    if finished:
        finish_checksum(memoryview(packet), len(ip), 16)
    return bytes(packet)


def split(packet: bytes, segment_octets: int, *, full_checksums=False) -> tuple[list[bytes], SendSa]:
    buffer = memoryview(bytearray(READ_BUFFER_OCTETS))
    buffer[VIRTIO_OCTETS : VIRTIO_OCTETS + len(packet)] = packet
    segmenter = Segmenter(buffer, full_checksums=full_checksums)
    sa = send_sa()
    ip_octets = 20 if packet[0] >> 4 == 4 else 40
    header_octets = ip_octets + (packet[ip_octets + 12] >> 4) * 4
    filled = segmenter.split(len(packet), ip_octets, header_octets, segment_octets, sa)
    stride = OVERHEAD_OCTETS + header_octets + segment_octets
    sealed = [bytes(segmenter.send_buffer[at : min(at + stride, filled)]) for at in range(0, filled, stride)]
    return sealed, sa


def opened(sealed: list[bytes], sa: SendSa) -> list[bytes]:
    contents = [unseal(sa.key, packet) for packet in sealed]
    assert [one.header.iv for one in contents] == list(range(1, len(sealed) + 1))
    return [one.payload for one in contents]


def is_finished(packet: bytes) -> bool:
    ip = 20 if packet[0] >> 4 == 4 else 40
    addresses = packet[12:20] if ip == 20 else packet[8:40]
    return (pseudo_header(addresses, 6, len(packet) - ip) + residue(packet[ip:])) % 0xFFFF == 0


sizes = st.integers(1, 9000)


@settings(max_examples=120, deadline=None)
@given(
    version=st.sampled_from([4, 6]),
    segment=sizes,
    segments=st.integers(1, 128),
    short=st.integers(0, 8999),
    flags=st.sampled_from([ACK, ACK | PSH]),
    words=st.integers(0, 10),
    sequence=st.integers(0, 0xFFFFFFFF),
)
def test_joining_what_was_split_gives_the_super_packet_back(version, segment, segments, short, flags, words, sequence):
    header = (20 if version == 4 else 40) + 20 + 4 * words
    total = min(max(segment * segments - short % segment, 1), 65535 - header)
    payload = bytes(i * 7 & 0xFF for i in range(total))
    packet = tcp_packet(version=version, payload=payload, sequence=sequence, flags=flags, options=b"\1" * 4 * words)

    sealed, sa = split(packet, segment)
    parts = [memoryview(part) for part in opened(sealed, sa)]

    assert len(parts) == -(-total // segment)
    joined = join_run(parts, 0)
    assert joined.packets == len(parts)
    written = b"".join(joined.buffers)
    assert written[VIRTIO_OCTETS:] == packet
    assert joined.octets == sum(map(len, parts))
    if len(parts) > 1:
        kind = 1 if version == 4 else 4
        assert struct.unpack("=BBHHHH", written[:10]) == (1, kind, header, segment, 20 if version == 4 else 40, 16)


@pytest.mark.parametrize("version", [4, 6])
def test_every_segment_is_a_valid_packet_of_its_own(version):
    packet = tcp_packet(version=version, payload=bytes(range(256)) * 20, flags=ACK | PSH | FIN)
    sealed, sa = split(packet, 1001, full_checksums=True)
    parts = opened(sealed, sa)
    assert [len(part) for part in parts[:-1]] == [len(packet) - 5120 + 1001] * 5
    for index, part in enumerate(parts):
        ip = 20 if version == 4 else 40
        assert is_finished(part)
        assert int.from_bytes(part[ip + 4 : ip + 8], "big") == 1000 + 1001 * index
        assert part[ip + 13] == (ACK | PSH | FIN if index == 5 else ACK)
        if version == 4:
            assert int.from_bytes(part[2:4], "big") == len(part)
            assert residue(part[:20]) == 0
        else:
            assert int.from_bytes(part[4:6], "big") == len(part) - 40


def test_the_ipv4_id_rises_when_the_packet_may_be_fragmented():
    packet = tcp_packet(payload=bytes(3000), dont_fragment=False)
    parts = opened(*split(packet, 1000))
    assert [int.from_bytes(part[4:6], "big") for part in parts] == [9, 10, 11]
    assert all(residue(part[:20]) == 0 for part in parts)


def test_sequence_numbers_wrap():
    parts = opened(*split(tcp_packet(payload=bytes(3000), sequence=0xFFFFFFFF - 999), 1000))
    assert [int.from_bytes(part[24:28], "big") for part in parts] == [0xFFFFFFFF - 999, 0, 1000]


def run_of(*packets: bytes) -> int:
    return join_run([memoryview(packet) for packet in packets], 0).packets


def test_a_run_ends_where_a_segment_differs():
    def segment(index, **changes):
        return tcp_packet(**{"payload": bytes(100), "sequence": 1000 + 100 * index, **changes})

    assert run_of(segment(0), segment(1), segment(2)) == 3
    assert run_of(segment(0), segment(2)) == 1, "a gap"
    assert run_of(segment(0), segment(1, flags=ACK | FIN)) == 1
    assert run_of(segment(0, flags=ACK | FIN), segment(1)) == 1
    assert run_of(segment(0, flags=ACK | SYN), segment(1)) == 1
    assert run_of(segment(0, flags=ACK | PSH), segment(1)) == 1, "pushed data is not held back"
    assert run_of(segment(0), segment(1, flags=ACK | PSH), segment(2)) == 2
    assert run_of(segment(0), segment(1, payload=bytes(50)), segment(2)) == 2
    assert run_of(segment(0), segment(1, payload=bytes(101))) == 1
    assert run_of(segment(0), segment(1, options=b"\1\1\1\1")) == 1
    assert run_of(segment(0), segment(1, version=6)) == 1
    assert run_of(segment(0, finished=True), segment(1, finished=True)) == 1, "the kernel verifies each"
    assert run_of(*(segment(i) for i in range(200))) == 128


def test_a_finished_checksum_is_left_to_the_kernel_and_an_unfinished_one_marked():
    finished = join_run([memoryview(tcp_packet(payload=b"x", finished=True))], 0)
    unfinished = join_run([memoryview(tcp_packet(payload=b"x"))], 0)
    assert finished.buffers[0] == bytes(10)
    assert struct.unpack("=BBHHHH", unfinished.buffers[0]) == (1, 0, 36, 0, 20, 16)
