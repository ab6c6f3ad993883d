"""The Internet checksum against its definition."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from ztdpu.packet.checksum import checksum, pseudo_header, residue


@given(st.binary(max_size=4000))
def test_the_residue_is_the_sum_of_words(data):
    padded = data + b"\0" * (len(data) & 1)
    assert residue(data) == sum(struct.unpack(f"!{len(padded) // 2}H", padded)) % 0xFFFF


def test_checksum_of_a_known_header():
    header = bytes.fromhex("45000073000040004011 0000 c0a80001c0a800c7".replace(" ", ""))
    assert checksum(residue(header)) == 0xB861


def test_zero_has_two_spellings_and_a_sender_writes_this_one():
    assert checksum(0) == 0
    assert checksum(0xFFFF) == 0
    assert checksum(1) == 0xFFFE


def test_a_pseudo_header_is_the_sum_of_its_words():
    addresses = bytes.fromhex("c0a80001c0a800c7")
    assert pseudo_header(addresses, 17, 95) == (0xC0A8 + 0x0001 + 0xC0A8 + 0x00C7 + 17 + 95) % 0xFFFF
