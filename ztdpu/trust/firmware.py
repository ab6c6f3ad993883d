"""What an emulated device runs: stand-ins for its images and settings, and the measurements of them.

Called by the emulated root of trust, and by whoever writes reference values for it. FWIDs are computed
here for both sides: hash of the measured values that a certificate level covers, joined in the order of
the profile. So a verifier can see that certificates and measurements speak of the same firmware.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ztdpu.errors import ConfigurationError
from ztdpu.trust.profile import ChainLevel, MeasurementKind, MeasurementSpec, Profile
from ztdpu.trust.spdm.evidence import MeasurementBlock

IMAGE_LIMIT_CHARACTERS: Final = 1024
_RAW: Final = 0x80
_ROLLED_BACK_VERSION: Final = "0.9.0"
# DSP0274 1.2, 10.11.1.4: four u32 words; capabilities first, then the state that is selected of them.
_MODES_OFFERED: Final = 0b0000_1101
_DEBUG_OFFERED: Final = 0b0001_1111
_MODE_STATES: Final = {"normal": (1 << 2, 0), "recovery": (1 << 3, 0), "manufacturing": (1, 0), "debug": (1 << 2, 0b10)}


class FirmwareFault(StrEnum):
    """What the emulator can do to its own firmware before it boots."""

    FIRMWARE_ALTERED = "firmware-altered"
    """The run-time firmware (the NIC's, where there is one) is not the one that was shipped."""
    FIRMWARE_ROLLBACK = "firmware-rollback"
    """Every version and security version number is one below what was shipped."""
    DEBUG_ENABLED = "debug-enabled"
    """Invasive debug access is on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Firmware:
    """One state of a device's firmware and settings, by component of its profile."""

    components: Mapping[str, str | int]
    """Stand-in text of an image or of settings (what is hashed), `1.2.3` for a version, a number for an SVN,
    `normal`, `recovery`, `manufacturing` or `debug` for the device mode."""


def default_firmware(profile: Profile) -> Firmware:
    """Give the firmware that devices of a profile ship with: the same everywhere, so reference values can name it."""
    values: dict[str, str | int] = {}
    for spec in profile.measurements:
        match spec.kind:
            case MeasurementKind.VERSION:
                values[spec.component] = "1.0.0"
            case MeasurementKind.SVN:
                values[spec.component] = 1
            case MeasurementKind.DEVICE_MODE:
                values[spec.component] = "normal"
            case _:
                values[spec.component] = f"emulated {profile.name} {spec.component} 1.0.0"
    return Firmware(components=values)


def alter_firmware(profile: Profile, firmware: Firmware, fault: FirmwareFault) -> Firmware:
    """Give the firmware with a fault in it."""
    changed = dict(firmware.components)
    for spec in profile.measurements:
        match fault, spec.kind:
            case FirmwareFault.FIRMWARE_ALTERED, _ if spec == _run_time_firmware(profile):
                changed[spec.component] = f"{changed[spec.component]}, altered"
            case FirmwareFault.FIRMWARE_ROLLBACK, MeasurementKind.VERSION:
                changed[spec.component] = _ROLLED_BACK_VERSION
            case FirmwareFault.FIRMWARE_ROLLBACK, MeasurementKind.SVN:
                changed[spec.component] = 0
            case FirmwareFault.DEBUG_ENABLED, MeasurementKind.DEVICE_MODE:
                changed[spec.component] = "debug"
    return Firmware(components=changed)


def _run_time_firmware(profile: Profile) -> MeasurementSpec | None:
    """The firmware that an alteration hits: the NIC's, or the last one that the Alias stands for."""
    named = profile.component("nic-firmware")
    return named or profile.measurement(profile.levels[-1].fwid_covers[-1])


def measure(profile: Profile, firmware: Firmware) -> tuple[MeasurementBlock, ...]:
    """Measure firmware into SPDM blocks, in the order of the profile.

    Raises:
        ConfigurationError: a component is missing, unknown or has no such value.

    """
    known = {spec.component for spec in profile.measurements}
    if set(firmware.components) != known:
        names = ", ".join(sorted(set(firmware.components) ^ known))
        raise ConfigurationError(
            f"firmware and profile {profile.name} do not have the same components: {names}",
            remedy="make the device's secrets anew with this version of ztdpu",
        )
    return tuple(
        MeasurementBlock(
            index=spec.index,
            value_type=spec.value_type & ~_RAW,
            raw=bool(spec.value_type & _RAW),
            value=_measure_value(spec, firmware.components[spec.component], profile.measurement_hash),
        )
        for spec in profile.measurements
    )


def compute_fwid(profile: Profile, level: ChainLevel, blocks: Sequence[MeasurementBlock]) -> bytes:
    """Compute the FWID of a level from measured values.

    Raises:
        KeyError: a block that the FWID covers is missing.

    """
    values = {block.index: block.value for block in blocks}
    return hashlib.new(profile.hash, b"".join(values[index] for index in level.fwid_covers)).digest()


def encode_version(text: str) -> bytes:
    """Encode `major.minor.patch` as the 4 octets of a version block: patch, minor (2), major, little-endian.

    Raises:
        ValueError: no such version; major and patch go up to 255, minor to 65535.

    """
    major, minor, patch = (int(part) for part in text.split("."))
    return bytes((patch,)) + minor.to_bytes(2, "little") + bytes((major,))


def decode_version(value: bytes) -> tuple[int, int, int]:
    """Read a version block: (major, minor, patch); ValueError when it has not 4 octets."""
    if len(value) != 4:
        raise ValueError(f"a version block has 4 octets, not {len(value)}")
    return value[3], int.from_bytes(value[1:3], "little"), value[0]


def _measure_value(spec: MeasurementSpec, value: str | int, digest: str) -> bytes:
    try:
        match spec.kind, value:
            case MeasurementKind.VERSION, str():
                return encode_version(value)
            case MeasurementKind.SVN, int() if not isinstance(value, bool):
                return value.to_bytes(8, "little")
            case MeasurementKind.DEVICE_MODE, str():
                mode, debug = _MODE_STATES[value]
                words = (_MODES_OFFERED, mode, _DEBUG_OFFERED, debug)
                return b"".join(word.to_bytes(4, "little") for word in words)
            case (
                (
                    MeasurementKind.FIRMWARE
                    | MeasurementKind.HARDWARE_CONFIGURATION
                    | MeasurementKind.FIRMWARE_CONFIGURATION
                ),
                str(),
            ) if len(value) <= IMAGE_LIMIT_CHARACTERS:
                return hashlib.new(digest, value.encode()).digest()
    except (ValueError, KeyError, OverflowError) as error:
        raise ConfigurationError(f"component {spec.component} has no value {value!r:.80}") from error
    raise ConfigurationError(f"component {spec.component} has no value {value!r:.80}")
