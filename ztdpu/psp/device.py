"""A PSP device in software, with the shape of the Linux `psp` family: it picks SPIs and derives SA keys.

Owns the two master-key slots of one receive lane. The worker makes one per lane at start with a fresh random
key and rotates it on command. Master keys are neither written, returned nor printed. A kernel or NIC driver
can take its place; `capabilities` says what then changes.

    SPI = bit 31 master-key slot | bits 30..27 lane | bits 26..0 counter from 1 per lane and master key

An SPI is never used twice under one master key. After two rotations, or `retire_previous`, the SPIs of the
older key are invalid (PSP Architecture Specification, "Master Key Rotation").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ztdpu.errors import PspError, SaExhaustedError, StateError
from ztdpu.model.sa import PspVersion
from ztdpu.psp.header import check_spi, check_version
from ztdpu.psp.kdf import MASTER_KEY_OCTETS, derive_key, master_key_slot

LANES: Final = 16
SPI_COUNTER_MAX: Final = (1 << 27) - 1
_LANE_SHIFT: Final = 27
_SLOT_SHIFT: Final = 31


@dataclass(frozen=True, slots=True, kw_only=True)
class PspCapabilities:
    """What an implementation of PSP can do; drivers differ here."""

    versions: tuple[PspVersion, ...]
    tunnel: bool
    """Whole inner IP packets."""
    stream: bool
    """Records over a byte stream, or TCP in transport mode."""
    sees_iv: bool
    """IVs are visible, so a replay window is possible."""


class PspDevice:
    """Two master-key slots of one lane, one of them active."""

    def __init__(self, master_key: bytes, *, lane: int = 0) -> None:
        """`master_key` is 32 random octets, fresh for this process; `lane` 0..15. ValueError otherwise."""
        if not 0 <= lane < LANES:
            raise ValueError(f"lane {lane} is outside 0..15")
        self.lane = lane
        self._slots: list[bytes | None] = [_checked(master_key), None]
        self._last_counter = [0, 0]
        self._active = 0
        self._rotations = 0

    def __repr__(self) -> str:
        return f"PspDevice(lane={self.lane}, active_slot={self._active}, key_rotations={self._rotations})"

    @property
    def key_rotations(self) -> int:
        """Rotations since the device was made."""
        return self._rotations

    @property
    def capabilities(self) -> PspCapabilities:
        """What this implementation can do."""
        return PspCapabilities(versions=tuple(PspVersion), tunnel=True, stream=True, sees_iv=True)

    @property
    def has_previous(self) -> bool:
        """The master key before the last rotation still opens packets."""
        return self._slots[1 - self._active] is not None

    def allocate(self, version: int) -> tuple[int, bytes]:
        """Return a new SPI under the active master key, and its SA key.

        Raises SaExhaustedError when the 2^27 - 1 SPIs of this lane are used up (rotate), PspFormatError for a
        version that is not offered.
        """
        suite = check_version(version)
        counter = self._last_counter[self._active] + 1
        if counter > SPI_COUNTER_MAX:
            raise SaExhaustedError("no SPI is left under this master key", remedy="rotate the master key")
        spi = self._active << _SLOT_SHIFT | self.lane << _LANE_SHIFT | counter
        key = self._derive(spi, suite)
        self._last_counter[self._active] = counter
        return spi, key

    def derive(self, spi: int, version: int) -> bytes:
        """Return the SA key of an SPI that this device allocated.

        Raises PspError for an SPI of another lane, of a retired master key, or one never allocated.
        """
        suite = check_version(version)
        check_spi(spi)
        if spi >> _LANE_SHIFT & LANES - 1 != self.lane:
            raise PspError("the SPI belongs to another lane")
        slot = master_key_slot(spi)
        if self._slots[slot] is None:
            raise PspError("the SPI belongs to a retired master key")
        if not 1 <= spi & SPI_COUNTER_MAX <= self._last_counter[slot]:
            raise PspError("the SPI was never allocated")
        return self._derive(spi, suite)

    def is_live(self, spi: int) -> bool:
        """Say whether the master key of `spi` is still held; no statement about the SPI itself."""
        return self._slots[master_key_slot(spi)] is not None

    def rotate(self, new_master_key: bytes) -> None:
        """Make `new_master_key` active in the other slot; the key active so far goes on opening packets.

        What was in the other slot is gone: SPIs of two rotations ago are invalid from here on. Raises
        StateError for a key that is in use already, since SPIs would repeat under it.
        """
        if _checked(new_master_key) in self._slots:
            raise StateError("the new master key is already in use", remedy="draw a new random key")
        self._active = 1 - self._active
        self._slots[self._active] = new_master_key
        self._last_counter[self._active] = 0
        self._rotations += 1

    def retire_previous(self) -> None:
        """Forget the master key before the last rotation; its SPIs are invalid. No effect when there is none."""
        self._slots[1 - self._active] = None
        self._last_counter[1 - self._active] = 0

    def _derive(self, spi: int, version: PspVersion) -> bytes:
        first, second = self._slots
        return derive_key((first or b"", second or b""), spi, version)


def _checked(master_key: bytes) -> bytes:
    if len(master_key) != MASTER_KEY_OCTETS:
        raise ValueError(f"a master key has 32 octets, not {len(master_key)}")
    return master_key
