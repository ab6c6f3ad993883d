"""Key derivation against the specification's numbers and the agreed vectors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ztdpu.errors import PspFormatError
from ztdpu.model.sa import PspVersion
from ztdpu.psp import derive_key

VECTORS = Path(__file__).resolve().parents[3] / "shared" / "vectors" / "psp"
MASTER_KEY_0 = bytes.fromhex("34448a064292601b11a0978f56a2d34cf3fc35ede1a6bc04f8db3e5243a2b0ca")
MASTER_KEY_1 = bytes.fromhex("563952565d3a78ae773ec1b779f2f2d99f4a7f53a6fbb9b07d5b71f39364d739")


@pytest.mark.parametrize(
    ("spi", "version", "key"),
    [
        (0x12345678, 0, "96c22dc799198090b74b70ae468e4e30"),
        (0x9A345678, 0, "3946da2554eae46ad1ef77a64372edc4"),
        (0x12345678, 1, "2b7d72074e42ca334487f2990e3f8c4037e436f38283449b76463e9b7fb2e3de"),
    ],
)
def test_examples_of_the_specification(spi, version, key):
    assert derive_key((MASTER_KEY_0, MASTER_KEY_1), spi, version).hex() == key


def test_all_agreed_vectors():
    path = VECTORS / "kdf_kat.json"
    if not path.exists():
        pytest.skip("shared vectors psp/kdf_kat.json are absent")
    vectors = json.loads(path.read_text())["vectors"]
    assert len(vectors) >= 19
    for vector in vectors:
        keys = (bytes.fromhex(vector["master_key0"]), bytes.fromhex(vector["master_key1"]))
        assert derive_key(keys, int(vector["spi"], 16), vector["version"]).hex() == vector["derived_key"], vector


def test_bit_31_selects_the_master_key():
    ones, twos = b"\x01" * 32, b"\x02" * 32
    assert derive_key((ones, twos), 7, 1) == derive_key((ones, b"\x03" * 32), 7, 1)
    assert derive_key((ones, twos), 0x80000007, 1) == derive_key((b"\x03" * 32, twos), 0x80000007, 1)
    assert derive_key((ones, twos), 7, 1) != derive_key((b"\x03" * 32, twos), 7, 1)


def test_suites_do_not_share_key_material():
    keys = (MASTER_KEY_0, MASTER_KEY_1)
    assert derive_key(keys, 7, PspVersion.AES_GCM_256)[:16] != derive_key(keys, 7, PspVersion.AES_GCM_128)


@pytest.mark.parametrize("version", [2, 3, 4, 15, -1])
def test_other_versions_are_refused(version):
    with pytest.raises(PspFormatError, match="version"):
        derive_key((MASTER_KEY_0, MASTER_KEY_1), 7, version)


@pytest.mark.parametrize("spi", [0, 0x80000000, 1 << 32, -1])
def test_invalid_spis_are_refused(spi):
    with pytest.raises(PspFormatError, match="SPI"):
        derive_key((MASTER_KEY_0, MASTER_KEY_1), spi, 0)


def test_short_master_key_is_a_defect():
    with pytest.raises(ValueError, match="32 octets"):
        derive_key((MASTER_KEY_0[:31], MASTER_KEY_1), 7, 0)
    assert derive_key((MASTER_KEY_0[:31], MASTER_KEY_1), 0x80000007, 0)
