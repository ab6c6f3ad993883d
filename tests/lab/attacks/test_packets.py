"""The packets of the attacks: what each breaks, and that its twin breaks nothing."""

import pytest

from ztdpu.lab.attacks import bad_offload_header, cross_tenant_tcp, fragment
from ztdpu.lab.attacks.interception import flip, split
from ztdpu.lab.attacks.tenant_packets import Order, make_datagrams
from ztdpu.model.verdict import Reason
from ztdpu.packet import headers, virtio

MARK = bytes(range(100, 112))
FAMILIES = [("10.1.0.10", "10.1.0.11"), ("fd00:1::10", "fd00:1::11")]


def order(source="10.1.0.10", target="10.1.0.11"):
    return Order(source=source, target=target, port=5005, attempts=6, mark=MARK)


def judge(frame):
    """What the device's own stations say about a frame."""
    buffer = (frame.offload or bytes(virtio.VIRTIO_OCTETS)) + frame.packet
    packet = headers.Packet()
    reason = headers.parse(packet, buffer, virtio.VIRTIO_OCTETS, len(frame.packet))
    return reason or virtio.check_offload(packet, buffer, 0, 9000)


@pytest.mark.parametrize(("source", "target"), FAMILIES)
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (make_datagrams, None),
        (cross_tenant_tcp.make_attempts, None),
        (bad_offload_header.make_truths, None),
        (bad_offload_header.make_lies, Reason.BAD_OFFLOAD_HEADER),
        (fragment.make_fragments, Reason.FRAGMENT),
    ],
)
def test_every_packet_is_judged_as_the_attack_says(make, reason, source, target):
    frames = make(order(source, target))
    assert [judge(frame) for frame in frames] == [reason] * 6


@pytest.mark.parametrize("make", [make_datagrams, fragment.make_fragments, bad_offload_header.make_lies])
def test_captures_find_the_mark_once_in_every_packet(make):
    assert all(frame.packet.count(MARK) == 1 for frame in make(order()))


def test_a_connection_attempt_is_known_by_port_and_sequence_number():
    frames = cross_tenant_tcp.make_attempts(order())
    assert all(frame.packet.count(cross_tenant_tcp.mark_of(5005, MARK)) == 1 for frame in frames)
    assert len({frame.packet for frame in frames}) == 6


def sealed(payload, port=1000):
    from scapy.layers.inet import IP, UDP
    from scapy.layers.l2 import Ether
    from scapy.packet import Raw

    return bytes(Ether() / IP(src="10.90.0.10", dst="10.90.0.11") / UDP(sport=5, dport=port, chksum=7) / Raw(payload))


def test_a_run_of_datagrams_is_taken_apart_and_only_the_length_asked_for_is_held():
    one, two = b"header+spi" + b"a" * 50, b"header+spi" + b"b" * 50
    assert len(split(sealed(one + two), 28 + 60)) == 2
    assert split(sealed(one + two), 28 + 60) == split(sealed(one), 28 + 60) + split(sealed(two), 28 + 60)
    assert split(sealed(one), 28 + 61) == []
    assert split(sealed(one, port=53), 28 + 60) == []
    assert split(sealed(one + b"another " + two[8:]), 28 + 60) == []


def test_a_flipped_packet_differs_in_one_bit_of_its_payload():
    frames = split(sealed((b"header+spi" + bytes(190)) * 5), 28 + 200)
    for before, after in zip(frames, flip(frames), strict=True):
        changed = int.from_bytes(before[42:]) ^ int.from_bytes(after[42:])
        assert changed.bit_count() == 1
        assert before[:40] == after[:40]
