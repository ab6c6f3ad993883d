"""Packets that other implementations sealed and opened: the reference programs' captures and AEAD vectors."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from ztdpu.errors import PspError
from ztdpu.model.sa import PspVersion
from ztdpu.psp import COOKIE_OCTETS, PspHeader, derive_key, seal, seal_with_header, unseal

VECTORS = Path(__file__).resolve().parents[3] / "shared" / "vectors" / "psp"
needs_vectors = pytest.mark.skipif(not VECTORS.exists(), reason="shared vectors psp are absent")
CAPTURES = sorted(path.stem for path in (VECTORS / "encrypted").glob("*.pcap"))


def read_capture(path):
    """Frames of a classic little-endian pcap file."""
    octets, frames, at = path.read_bytes(), [], 24
    assert octets[:4] == b"\xd4\xc3\xb2\xa1"
    while at < len(octets):
        (captured,) = struct.unpack_from("<I", octets, at + 8)
        frames.append(octets[at + 16 : at + 16 + captured])
        at += 16 + captured
    return frames


def read_configuration(path):
    lines = path.read_text().split("\n")
    return {
        "master_keys": (bytes.fromhex(lines[0]), bytes.fromhex(lines[1])),
        "spi": int(lines[2], 16),
        "mode": lines[3].strip(),
        "version": 1 if lines[4].strip() == "aes-gcm-256" else 0,
        "offsets": {"transport": int(lines[5]), 4: int(lines[6]), 6: int(lines[7])},
        "cookie": bytes(COOKIE_OCTETS) if lines[8].strip() == "vc" else None,
    }


def ip_octets(frame):
    return 20 if frame[12:14] == b"\x08\x00" else 40


@needs_vectors
@pytest.mark.parametrize("name", CAPTURES)
def test_capture_of_the_reference_program(name):
    clear_name, configuration_name = name.split("__")
    configuration = read_configuration(VECTORS / "cfg" / f"encrypt_{configuration_name}.cfg")
    key = derive_key(configuration["master_keys"], configuration["spi"], configuration["version"])
    clear = read_capture(VECTORS / "cleartext" / f"{clear_name}.pcap")
    encrypted = read_capture(VECTORS / "encrypted" / f"{name}.pcap")
    if "skipped 1 packets" in (VECTORS / "encrypted" / f"{name}.log").read_text():
        assert not encrypted
        return
    assert len(encrypted) == len(clear)
    for original, frame in zip(clear, encrypted, strict=True):
        packet = frame[14 + ip_octets(frame) + 8 :]
        tunnel = configuration["mode"] == "tunnel"
        expected = original[14:] if tunnel else original[14 + ip_octets(original) :]
        family = 4 if ip_octets(original) == 20 else 6
        opened = unseal(key, packet)
        assert opened.payload == expected
        assert opened.cookie == configuration["cookie"]
        assert opened.header.next_header == ({4: 4, 6: 41}[family] if tunnel else 17)
        again = seal(
            key, configuration["spi"], opened.header.iv, expected, next_header=opened.header.next_header,
            version=configuration["version"], cookie=configuration["cookie"],
            crypt_offset_words=configuration["offsets"][family if tunnel else "transport"],
        )  # fmt: skip
        assert again == packet


@needs_vectors
def test_captures_are_all_there():
    assert len(CAPTURES) == 56


@needs_vectors
def test_aead_vectors():
    vectors = json.loads((VECTORS / "aead_kat.json").read_text())["vectors"]
    assert len(vectors) >= 30
    master_keys = read_master_keys()
    for vector in vectors:
        packet, key = bytes.fromhex(vector["psp"]), bytes.fromhex(vector["key"])
        extension = bytes.fromhex(vector["ext"])
        body = bytes.fromhex(vector["aad"])[16:] + bytes.fromhex(vector["plaintext"])
        spi, iv = int(vector["spi"], 16), int(vector["iv"], 16)
        header = PspHeader(
            next_header=packet[0], version=PspVersion(vector["version"]), spi=spi, iv=iv,
            crypt_offset_words=vector["crypt_off"], extension_octets=len(extension), has_cookie=bool(vector["v"]),
            sample=bool(vector["s"]), drop=bool(vector["d"]), reserved=vector["r"],
        )  # fmt: skip
        assert derive_key(master_keys, spi, vector["version"]) == key
        opened = unseal(key, packet)
        assert opened.header == header
        assert (opened.cookie or b"") + opened.extension == extension
        assert opened.payload == body[len(extension) :]
        assert seal_with_header(key, header, extension, opened.payload) == packet
        with pytest.raises(PspError):
            unseal(key, packet[:-16] + bytes(16))


def read_master_keys():
    lines = (VECTORS / "cfg" / "decrypt.cfg").read_text().split("\n")
    return bytes.fromhex(lines[0]), bytes.fromhex(lines[1])


def test_one_packet_of_the_reference_program_as_a_literal():
    # An empty UDP datagram, transport mode, version 0, crypt offset one word.
    key = bytes.fromhex("3946da2554eae46ad1ef77a64372edc4")
    datagram = bytes.fromhex("2b6756ce000869a6")
    packet = bytes.fromhex("110101019a34567800000000000000012b6756ce69f341c5447e21dd0d9005bd8cc9517ff0df1e2c")
    assert seal(key, 0x9A345678, 1, datagram, next_header=17, version=0, crypt_offset_words=1) == packet
    assert unseal(key, packet).payload == datagram
