"""The sixteen octets: every field, every refusal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztdpu.errors import PspFormatError
from ztdpu.model.sa import PspVersion
from ztdpu.psp import (
    HEADER_OCTETS,
    ICV_OCTETS,
    NEXT_HEADER_IPV4,
    NEXT_HEADER_IPV6,
    RECORD,
    UDP_PORT,
    PspHeader,
    fixed_octets,
)

GOOD = bytes.fromhex("04010005000000010000000000000001") + bytes(32)


@st.composite
def headers(draw):
    extension = draw(st.integers(0, 254)) * 8
    return PspHeader(
        next_header=draw(st.integers(0, 255)),
        version=draw(st.sampled_from(PspVersion)),
        spi=draw(st.integers(0, 1) | st.just(0)) << 31 | draw(st.integers(1, 0x7FFFFFFF)),
        iv=draw(st.integers(0, (1 << 64) - 1)),
        crypt_offset_words=draw(st.integers(0, 63)),
        extension_octets=extension,
        has_cookie=draw(st.booleans()) and extension > 0,
        sample=draw(st.booleans()),
        drop=draw(st.booleans()),
        reserved=draw(st.integers(0, 3)),
    )


@given(headers())
def test_round_trip(header):
    octets = header.encode()
    assert len(octets) == HEADER_OCTETS
    assert PspHeader.decode(octets + bytes(2032 + 252 + ICV_OCTETS)) == header


def test_constants():
    assert (UDP_PORT, NEXT_HEADER_IPV4, NEXT_HEADER_IPV6, RECORD) == (1000, 4, 41, 253)


@pytest.mark.parametrize(
    ("next_header", "version", "octets"),
    [(4, 1, "04010005"), (41, 1, "29010005"), (253, 1, "fd010005"), (4, 0, "04010001"), (41, 0, "29010001")],
)
def test_fixed_octets(next_header, version, octets):
    assert fixed_octets(next_header, PspVersion(version)).hex() == octets


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({0: 41}, "next_header", 41),
        ({1: 2}, "extension_octets", 8),
        ({1: 2, 3: 0x07}, "has_cookie", True),
        ({2: 0xC0}, "reserved", 3),
        ({2: 4}, "crypt_offset_words", 4),
        ({3: 0x01}, "version", PspVersion.AES_GCM_128),
        ({3: 0x85}, "sample", True),
        ({3: 0x45}, "drop", True),
        ({4: 0x80}, "spi", 0x80000001),
        ({8: 0xFF}, "iv", 0xFF00000000000001),
    ],
)
def test_each_field_is_read_from_its_place(changes, field, value):
    packet = bytearray(GOOD)
    for octet, content in changes.items():
        packet[octet] = content
    assert getattr(PspHeader.decode(packet), field) == value
    assert PspHeader.decode(packet).encode() == packet[:16]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({3: 0x04}, "always-one"),
        *[({3: version << 2 | 1}, "version") for version in range(2, 16)],
        ({1: 0}, "extension length 0"),
        ({3: 0x07}, "cookie announced"),
        ({1: 4}, "extension ends behind"),
        ({2: 5}, "points behind"),
        ({2: 63}, "points behind"),
        ({7: 0}, "SPI"),
        ({4: 0x80, 7: 0}, "SPI"),
    ],
)
def test_refused_before_any_key_is_touched(changes, message):
    # 16 octets lie between IV and ICV: two extension units or four words fit, no more.
    assert PspHeader.decode(GOOD)
    packet = bytearray(GOOD)
    for octet, content in changes.items():
        packet[octet] = content
    with pytest.raises(PspFormatError, match=message):
        PspHeader.decode(packet)


def test_every_length_below_the_least_is_refused():
    least = HEADER_OCTETS + ICV_OCTETS
    PspHeader.decode(GOOD[:least])
    for octets in range(least):
        with pytest.raises(PspFormatError, match="too short"):
            PspHeader.decode(GOOD[:octets])


@pytest.mark.parametrize(
    "wrong",
    [
        {"next_header": 256},
        {"next_header": -1},
        {"version": 2},
        {"spi": 0},
        {"spi": 1 << 32},
        {"iv": 1 << 64},
        {"iv": -1},
        {"crypt_offset_words": 64},
        {"crypt_offset_words": -1},
        {"extension_octets": 7},
        {"extension_octets": 2040},
        {"has_cookie": True},
        {"reserved": 4},
    ],
)
def test_what_does_not_fit_is_not_encoded(wrong):
    right = {"next_header": 4, "version": PspVersion.AES_GCM_256, "spi": 1, "iv": 1}
    assert len(PspHeader(**right).encode()) == 16
    with pytest.raises(PspFormatError):
        PspHeader(**{**right, **wrong}).encode()
