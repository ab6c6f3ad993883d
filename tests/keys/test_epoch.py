"""Sealed epoch keys: for one device, one lease request, or not at all."""

from __future__ import annotations

import pytest

from ztdpu.errors import EpochKeyError
from ztdpu.keys import kem, wire
from ztdpu.keys.epoch import EpochKey, epoch_context, open_epoch_keys, seal_epoch_keys

KEYS = tuple(
    EpochKey(network_id=bytes([n]) * 16, network_generation=1, epoch=n, key=bytes([n]) * 32) for n in range(1, 4)
)


@pytest.fixture
def sealed(kit):
    key = kit.make_kem_key()
    context = epoch_context("dpu-0", key.public_octets)
    return key, context, seal_epoch_keys(KEYS, kem_public_key=key.public_octets, context=context)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_round_trip(kit, count):
    key = kit.make_kem_key()
    context = epoch_context("dpu-0", key.public_octets)
    octets = seal_epoch_keys(KEYS[:count], kem_public_key=key.public_octets, context=context)
    assert open_epoch_keys(octets, kem_private_key=key, context=context) == KEYS[:count]


def test_context_names_device_and_key(kit):
    one, other = kit.make_kem_key().public_octets, kit.make_kem_key().public_octets
    assert epoch_context("dpu-0", one).startswith(b"ztdpu/v1/epoch-keys\0")
    assert len({epoch_context("dpu-0", one), epoch_context("dpu-1", one), epoch_context("dpu-0", other)}) == 3


def test_of_another_device(sealed):
    key, context, octets = sealed
    with pytest.raises(EpochKeyError, match="do not open"):
        open_epoch_keys(octets, kem_private_key=key, context=epoch_context("dpu-1", key.public_octets))
    assert open_epoch_keys(octets, kem_private_key=key, context=context)


def test_of_another_lease_request(kit, sealed):
    _, context, octets = sealed
    with pytest.raises(EpochKeyError, match="do not open"):
        open_epoch_keys(octets, kem_private_key=kit.make_kem_key(), context=context)


def test_flips_and_truncations(sealed):
    key, context, octets = sealed
    for at in range(0, len(octets), 3):
        flipped = bytearray(octets)
        flipped[at] ^= 1 << at % 8
        with pytest.raises(EpochKeyError):
            open_epoch_keys(bytes(flipped), kem_private_key=key, context=context)
    for cut in (0, 1, 1120, len(octets) - 1):
        with pytest.raises(EpochKeyError):
            open_epoch_keys(octets[:cut], kem_private_key=key, context=context)
    with pytest.raises(EpochKeyError, match="too large"):
        open_epoch_keys(bytes(wire.LIMIT_OCTETS + 1), kem_private_key=key, context=context)


@pytest.mark.parametrize(
    "rows",
    [
        [[b"n" * 16, 1, 1]],
        [[b"n" * 15, 1, 1, bytes(32)]],
        [[b"n" * 16, 1, 1, bytes(31)]],
        [[b"n" * 16, 1, "1", bytes(32)]],
        [[b"n" * 16, 1, 1, bytes(32)]] * 2,
        b"",
        [[bytes([n % 256, n // 256]) * 8, 1, 1, bytes(32)] for n in range(513)],
    ],
)
def test_malformed_content_that_was_sealed_properly(kit, rows):
    key = kit.make_kem_key()
    octets = kem.seal_to(key.public_octets, wire.encode(rows), info=b"here")
    with pytest.raises(EpochKeyError):
        open_epoch_keys(octets, kem_private_key=key, context=b"here")


def test_unusable_kem_key_of_a_device():
    with pytest.raises(EpochKeyError, match="not usable"):
        seal_epoch_keys(KEYS, kem_public_key=bytes(1216), context=b"")


@pytest.mark.parametrize(
    "keys",
    [
        KEYS + KEYS[:1],
        (EpochKey(network_id=b"n" * 16, network_generation=1, epoch=1, key=bytes(16)),),
        (EpochKey(network_id=b"n" * 15, network_generation=1, epoch=1, key=bytes(32)),),
    ],
)
def test_defects_of_the_caller(kit, keys):
    with pytest.raises(ValueError, match=r"epoch key|twice"):
        seal_epoch_keys(keys, kem_public_key=kit.make_kem_key().public_octets, context=b"")


def test_keys_are_not_printed():
    key = EpochKey(network_id=bytes(16), network_generation=1, epoch=1, key=b"SECRETSECRETSECRETSECRETSECRET!!")
    assert "SECRET" not in repr(key)
