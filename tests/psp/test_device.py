"""The device: SPI layout, slots, rotation, exhaustion."""

from __future__ import annotations

import pytest

from ztdpu.errors import PspError, PspFormatError, SaExhaustedError, StateError
from ztdpu.model.sa import PspVersion
from ztdpu.psp import PspDevice, derive_key, seal, unseal
from ztdpu.psp.device import SPI_COUNTER_MAX

FIRST, SECOND, THIRD = b"\x01" * 32, b"\x02" * 32, b"\x03" * 32


def test_spis_count_up_from_one_in_the_first_slot():
    device = PspDevice(FIRST)
    assert [device.allocate(1)[0] for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("lane", range(16))
def test_lane_stands_in_bits_30_to_27(lane):
    device = PspDevice(FIRST, lane=lane)
    assert device.allocate(1)[0] == lane << 27 | 1
    device.rotate(SECOND)
    assert device.allocate(0)[0] == 1 << 31 | lane << 27 | 1


@pytest.mark.parametrize("lane", [-1, 16])
def test_other_lanes_are_a_defect(lane):
    with pytest.raises(ValueError, match="lane"):
        PspDevice(FIRST, lane=lane)


@pytest.mark.parametrize(("version", "octets"), [(0, 16), (1, 32)])
def test_key_is_the_derived_one(version, octets):
    device = PspDevice(FIRST)
    spi, key = device.allocate(version)
    assert key == derive_key((FIRST, SECOND), spi, version) == device.derive(spi, version)
    assert len(key) == octets
    packet = seal(key, spi, 1, b"inner", next_header=4, version=version)
    assert unseal(device.derive(spi, version), packet).payload == b"inner"


@pytest.mark.parametrize("version", [2, 3, 9])
def test_other_versions_use_no_spi(version):
    device = PspDevice(FIRST)
    with pytest.raises(PspFormatError):
        device.allocate(version)
    assert device.allocate(1)[0] == 1


def test_rotation_keeps_the_previous_key_and_uses_the_other_slot():
    device = PspDevice(FIRST)
    old_spi, old_key = device.allocate(1)
    device.rotate(SECOND)
    new_spi, new_key = device.allocate(1)
    assert new_spi == 0x80000001
    assert new_key == derive_key((FIRST, SECOND), new_spi, 1)
    assert device.derive(old_spi, 1) == old_key
    assert (device.key_rotations, device.has_previous) == (1, True)


def test_two_rotations_invalidate_the_oldest_spis():
    device = PspDevice(FIRST)
    oldest, oldest_key = device.allocate(1)
    device.rotate(SECOND)
    middle, middle_key = device.allocate(1)
    device.rotate(THIRD)
    with pytest.raises(PspError, match="never allocated"):
        device.derive(oldest, 1)
    assert device.derive(middle, 1) == middle_key
    # The counter starts again because the master key is another one: same SPI, other key.
    again, again_key = device.allocate(1)
    assert again == oldest
    assert again_key != oldest_key


def test_retired_spis_are_refused():
    device = PspDevice(FIRST)
    spi, _ = device.allocate(1)
    device.rotate(SECOND)
    assert device.is_live(spi)
    device.retire_previous()
    assert not device.is_live(spi)
    assert not device.has_previous
    with pytest.raises(PspError, match="retired"):
        device.derive(spi, 1)
    assert device.allocate(1)[0] == 0x80000001
    device.retire_previous()
    assert device.derive(0x80000001, 1)


@pytest.mark.parametrize("rotated", [False, True])
def test_rotating_to_a_key_in_use_is_refused(rotated):
    device = PspDevice(FIRST)
    if rotated:
        device.rotate(SECOND)
    with pytest.raises(StateError, match="already in use"):
        device.rotate(FIRST)
    assert device.key_rotations == int(rotated)
    device.rotate(THIRD)


@pytest.mark.parametrize(
    ("spi", "message"),
    [(2, "never allocated"), (0x80000001, "retired"), (1 << 27 | 1, "another lane"), (0, "SPI"), (0x80000000, "SPI")],
)
def test_spis_that_were_never_given_out(spi, message):
    device = PspDevice(FIRST)
    device.allocate(1)
    assert device.derive(1, 1)
    with pytest.raises(PspError, match=message):
        device.derive(spi, 1)


def test_exhausted_spi_space_asks_for_a_rotation():
    device = PspDevice(FIRST)
    device._last_counter[0] = SPI_COUNTER_MAX - 1
    assert device.allocate(1)[0] == SPI_COUNTER_MAX
    with pytest.raises(SaExhaustedError, match="no SPI"):
        device.allocate(1)
    device.rotate(SECOND)
    assert device.allocate(1)[0] == 0x80000001


@pytest.mark.parametrize("octets", [0, 16, 31, 33])
def test_master_keys_have_32_octets(octets):
    with pytest.raises(ValueError, match="32 octets"):
        PspDevice(bytes(octets))
    device = PspDevice(FIRST)
    with pytest.raises(ValueError, match="32 octets"):
        device.rotate(bytes(octets))


def test_nothing_printed_shows_a_key():
    device = PspDevice(FIRST)
    assert FIRST.hex() not in repr(device)
    assert "\\x01" not in repr(device)


def test_capabilities():
    capabilities = PspDevice(FIRST).capabilities
    assert capabilities.versions == (PspVersion.AES_GCM_128, PspVersion.AES_GCM_256)
    assert capabilities.tunnel
    assert capabilities.stream
    assert capabilities.sees_iv
