"""HPKE over the hybrid KEM: opens for one key and one info, else one refusal."""

from __future__ import annotations

import pytest

from ztdpu.keys.kem import KEM_PUBLIC_OCTETS, KemError, kem_public_octets, open_with, seal_to


@pytest.fixture(scope="module")
def key(request):
    from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    from ztdpu.keys.kem import kem_key_from_parts

    return kem_key_from_parts(MLKEM768PrivateKey.generate(), X25519PrivateKey.generate())


def test_round_trip_and_sizes(key):
    assert len(key.public_octets) == KEM_PUBLIC_OCTETS == 1216
    assert kem_public_octets(key) == key.public_octets
    sealed = seal_to(key.public_octets, b"secret", info=b"here")
    assert len(sealed) == 1120 + 6 + 16
    assert open_with(key, sealed, info=b"here") == b"secret"
    assert seal_to(key.public_octets, b"secret", info=b"here") != sealed


def test_other_key_and_other_info(key, kit):
    sealed = seal_to(key.public_octets, b"secret", info=b"here")
    with pytest.raises(KemError, match="do not open"):
        open_with(key, sealed, info=b"there")
    with pytest.raises(KemError, match="do not open"):
        open_with(kit.make_kem_key(), sealed, info=b"here")


def test_every_octet_and_length_counts(key):
    sealed = seal_to(key.public_octets, b"secret", info=b"here")
    for at in range(len(sealed)):
        flipped = bytearray(sealed)
        flipped[at] ^= 1 << at % 8
        with pytest.raises(KemError):
            open_with(key, bytes(flipped), info=b"here")
    for octets in (0, 1, 31, 1119, 1120, 1135, len(sealed) - 1):
        with pytest.raises(KemError):
            open_with(key, sealed[:octets], info=b"here")
    with pytest.raises(KemError):
        open_with(key, sealed + b"\0", info=b"here")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda public: public[:-1],
        lambda public: public + b"\0",
        lambda public: b"",
        lambda public: public[:1184] + bytes(32),
        lambda public: b"\xff" * 1184 + public[1184:],
    ],
)
def test_unusable_public_keys(key, spoil):
    with pytest.raises(KemError, match="public key"):
        seal_to(spoil(key.public_octets), b"secret", info=b"here")
