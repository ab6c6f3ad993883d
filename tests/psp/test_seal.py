"""Seal and unseal: round trips, every flip and cut refused, a second implementation as the peer."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.contrib.psp import PSP, PSPIntegrityError

from ztdpu.errors import PspAuthenticationError, PspError, PspFormatError
from ztdpu.model.sa import PspVersion
from ztdpu.psp import SaKey, fixed_octets, seal, seal_with_header, sealed_octets, unseal
from ztdpu.psp.header import PspHeader

KEYS = {0: bytes(range(16)), 1: bytes(range(32))}
SPI = 0x12345678


@st.composite
def sealed(draw):
    version = draw(st.sampled_from([0, 1]))
    cookie = draw(st.none() | st.binary(min_size=8, max_size=8))
    payload = draw(st.binary(max_size=400))
    room = min(63, (len(payload) + (0 if cookie is None else 8)) // 4)
    arguments = {
        "next_header": draw(st.sampled_from([4, 6, 17, 41, 253])),
        "version": version,
        "crypt_offset_words": draw(st.integers(0, room)),
        "cookie": cookie,
    }
    iv = draw(st.integers(0, (1 << 64) - 1))
    return KEYS[version], iv, payload, arguments


@given(sealed())
def test_round_trip(case):
    key, iv, payload, arguments = case
    packet = seal(key, SPI, iv, payload, **arguments)
    opened = unseal(key, packet)
    assert (opened.payload, opened.cookie, opened.extension) == (payload, arguments["cookie"], b"")
    assert (opened.header.spi, opened.header.iv) == (SPI, iv)
    assert opened.header.crypt_offset_words == arguments["crypt_offset_words"]
    assert opened.header.next_header == arguments["next_header"]
    assert opened.header.version == arguments["version"]
    assert unseal(SaKey(key, SPI, PspVersion(arguments["version"])), memoryview(packet)) == opened


@given(sealed())
def test_what_is_clear_is_clear_and_the_rest_is_not(case):
    key, iv, payload, arguments = case
    packet = seal(key, SPI, iv, payload, **arguments)
    body = (arguments["cookie"] or b"") + payload
    clear = arguments["crypt_offset_words"] * 4
    assert packet[16 : 16 + clear] == body[:clear]
    assert len(packet) == 32 + len(body)
    secret = body[clear:]
    if len(secret) >= 8:
        assert packet[16 + clear : -16] != secret


@settings(max_examples=15, deadline=None)
@given(sealed())
def test_every_single_bit_flip_is_refused(case):
    key, iv, payload, arguments = case
    packet = seal(key, SPI, iv, payload[:60], **{**arguments, "crypt_offset_words": 0})
    for bit in range(len(packet) * 8):
        flipped = bytearray(packet)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(PspError):
            unseal(key, flipped)


@settings(max_examples=25, deadline=None)
@given(sealed())
def test_every_truncation_is_refused(case):
    key, iv, payload, arguments = case
    packet = seal(key, SPI, iv, payload, **arguments)
    for octets in range(len(packet)):
        with pytest.raises(PspError):
            unseal(key, packet[:octets])
    with pytest.raises(PspAuthenticationError):
        unseal(key, packet + b"\0")


@given(st.binary(max_size=200))
def test_noise_is_refused(noise):
    with pytest.raises(PspError):
        unseal(KEYS[1], noise)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("octets", [0, 4, 64, 252])
def test_authentication_only_packets_are_authenticated(version, octets):
    # Nothing is encrypted here; an implementation that skips the tag then accepts forgeries.
    key, payload = KEYS[version], bytes(range(octets))
    packet = seal(key, SPI, 9, payload, next_header=4, version=version, crypt_offset_words=octets // 4)
    assert packet[16 : 16 + octets] == payload
    assert unseal(key, packet).payload == payload
    for place in (0, 11, 15 + octets, len(packet) - 1):
        forged = bytearray(packet)
        forged[place] ^= 0x10
        with pytest.raises(PspError):
            unseal(key, forged)
    with pytest.raises(PspAuthenticationError):
        unseal(key, packet[:-16] + bytes(16))


def test_cookie_is_hidden_split_or_clear_by_offset():
    cookie, payload = b"COOKIE01", b"payload of some length"
    for words, visible in ((0, b""), (1, b"COOK"), (2, b"COOKIE01"), (3, b"COOKIE01payl")):
        packet = seal(KEYS[1], SPI, 1, payload, next_header=4, version=1, crypt_offset_words=words, cookie=cookie)
        assert packet[16 : 16 + len(visible)] == visible
        assert cookie[len(visible) :] not in packet or len(visible) >= 8
        assert unseal(KEYS[1], packet).cookie == cookie


def test_extension_beyond_the_cookie_and_all_flags_survive():
    header = PspHeader(
        next_header=41, version=PspVersion.AES_GCM_256, spi=SPI, iv=3, crypt_offset_words=5, extension_octets=24,
        has_cookie=True, sample=True, drop=True, reserved=2,
    )  # fmt: skip
    extension = bytes(range(24))
    packet = seal_with_header(KEYS[1], header, extension, b"inner packet")
    opened = unseal(KEYS[1], packet)
    assert (opened.header, opened.cookie, opened.extension) == (header, extension[:8], extension[8:])
    assert opened.payload == b"inner packet"
    with pytest.raises(PspFormatError, match="extension has"):
        seal_with_header(KEYS[1], header, extension[:16], b"inner packet")


@pytest.mark.parametrize("version", [2, 3, 4, 15])
def test_other_versions_are_never_sealed(version):
    assert seal(KEYS[1], SPI, 1, b"x", next_header=4, version=1)
    with pytest.raises(PspFormatError, match="version"):
        seal(KEYS[1], SPI, 1, b"x", next_header=4, version=version)


def test_offset_beyond_the_payload_is_never_sealed():
    assert seal(KEYS[1], SPI, 1, b"12345678", next_header=4, version=1, crypt_offset_words=2)
    with pytest.raises(PspFormatError, match="behind the payload"):
        seal(KEYS[1], SPI, 1, b"1234567", next_header=4, version=1, crypt_offset_words=2)
    assert seal(KEYS[1], SPI, 1, b"", next_header=4, version=1, crypt_offset_words=2, cookie=bytes(8))


@pytest.mark.parametrize("cookie", [b"", b"1234567", b"123456789"])
def test_cookie_of_another_length_is_never_sealed(cookie):
    with pytest.raises(PspFormatError, match="cookie"):
        seal(KEYS[1], SPI, 1, b"x", next_header=4, version=1, cookie=cookie)


def test_sa_key_belongs_to_one_spi_and_version():
    sa = SaKey(KEYS[1], SPI, PspVersion.AES_GCM_256)
    packet = seal(sa, SPI, 1, b"inner", next_header=4, version=1)
    assert unseal(sa, packet).payload == b"inner"
    assert (sa.spi, sa.spi_octets, sa.version) == (SPI, b"\x12\x34\x56\x78", PspVersion.AES_GCM_256)
    with pytest.raises(PspFormatError, match="another SA"):
        unseal(SaKey(KEYS[1], SPI + 1, PspVersion.AES_GCM_256), packet)
    with pytest.raises(PspFormatError, match="another SA"):
        seal(sa, SPI + 1, 1, b"inner", next_header=4, version=1)
    with pytest.raises(PspFormatError, match="another SA"):
        unseal(SaKey(KEYS[0], SPI, PspVersion.AES_GCM_128), packet)


def test_sa_key_needs_the_length_of_its_version_and_hides_it():
    with pytest.raises(PspFormatError, match="32 octets"):
        SaKey(KEYS[0], SPI, PspVersion.AES_GCM_256)
    with pytest.raises(PspFormatError, match="16 octets"):
        SaKey(KEYS[1], SPI, PspVersion.AES_GCM_128)
    assert KEYS[1].hex() not in repr(SaKey(KEYS[1], SPI, PspVersion.AES_GCM_256))
    assert not hasattr(SaKey(KEYS[1], SPI, PspVersion.AES_GCM_256), "key")


def test_hot_path_layout_gives_the_same_bytes():
    # What the worker does with its own buffer: four fixed octets, SPI, IV, cipher into place.
    sa, iv, payload = SaKey(KEYS[1], SPI, PspVersion.AES_GCM_256), 77, bytes(range(200))
    buffer = bytearray(sealed_octets(len(payload)))
    buffer[0:4] = fixed_octets(4, sa.version)
    buffer[4:8] = sa.spi_octets
    buffer[8:16] = iv.to_bytes(8, "big")
    view = memoryview(buffer)
    sa.aead.encrypt_into(view[4:16], payload, view[:16], view[16:])
    assert buffer == seal(sa, SPI, iv, payload, next_header=4, version=1)


def test_nonce_and_associated_data_are_those_of_the_specification():
    packet = seal(KEYS[0], SPI, 5, b"abcdefgh", next_header=17, version=0, crypt_offset_words=1)
    expected = AESGCM(KEYS[0]).encrypt(bytes.fromhex("123456780000000000000005"), b"efgh", packet[:20])
    assert packet == bytes.fromhex("11010101123456780000000000000005") + b"abcd" + expected


@given(sealed().filter(lambda case: case[3]["cookie"] is None or case[3]["crypt_offset_words"] >= 2))
def test_scapy_as_the_peer(case):
    # scapy always leaves the cookie in clear, so it is no peer for offsets 0 and 1 with a cookie.
    key, iv, payload, arguments = case
    packet = seal(key, SPI, iv, payload, **arguments)
    theirs = PSP(packet)
    theirs.decrypt(key)
    assert bytes(theirs.data) == payload
    theirs.encrypt(key)
    assert bytes(theirs) == packet
    broken = PSP(packet[:-1] + bytes([packet[-1] ^ 1]))
    with pytest.raises(PSPIntegrityError):
        broken.decrypt(key)
