"""Product profiles: which algorithms, certificate levels and measurements a device of a product has.

A profile is data (`profiles/*.toml`), the same for the emulator and for the verifier. Algorithms come
from here and never from a peer. Called by the emulated root, the SPDM requester and the appraisal;
holds no reference values (those are policy) and no keys.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

from ztdpu.errors import ConfigurationError, Location

PROFILES_FOLDER: Final = Path(__file__).parent / "profiles"

_RAW: Final = 0x80
_NAME: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
SLOW_LIMIT_MS: Final = 60_000
_SPDM_VERSIONS: Final = frozenset({"1.1", "1.2"})
_SUITES: Final = frozenset({("ecdsa-p384", "sha384"), ("ecdsa-p256", "sha256")})
CURVE_NAMES: Final = {"ecdsa-p384": "secp384r1", "ecdsa-p256": "secp256r1"}
HASH_OCTETS: Final = {"sha256": 32, "sha384": 48, "sha512": 64}


class MeasurementKind(StrEnum):
    """What a measurement block says; fixes its DMTF value type and its size."""

    FIRMWARE = "firmware"
    HARDWARE_CONFIGURATION = "hardware-configuration"
    FIRMWARE_CONFIGURATION = "firmware-configuration"
    VERSION = "version"
    SVN = "svn"
    DEVICE_MODE = "device-mode"


_VALUE_TYPES: Final = {
    MeasurementKind.FIRMWARE: 0x01,
    MeasurementKind.HARDWARE_CONFIGURATION: 0x02,
    MeasurementKind.FIRMWARE_CONFIGURATION: 0x03,
    MeasurementKind.DEVICE_MODE: _RAW | 0x05,
    MeasurementKind.VERSION: _RAW | 0x06,
    MeasurementKind.SVN: _RAW | 0x07,
}
_VALUE_TYPES_1_1: Final = _VALUE_TYPES | {
    MeasurementKind.DEVICE_MODE: _RAW | 0x02,
    MeasurementKind.VERSION: _RAW | 0x03,
    MeasurementKind.SVN: _RAW | 0x02,
}
"""SPDM 1.1 ends at type 4: a version is firmware configuration, counters and modes are hardware configuration."""
_RAW_OCTETS: Final = {MeasurementKind.VERSION: 4, MeasurementKind.SVN: 8, MeasurementKind.DEVICE_MODE: 16}


class LevelRole(StrEnum):
    """What the certificate at a level of the chain is for."""

    ROOT = "root"
    FAMILY = "family"
    PROVISIONER = "provisioner"
    DEVICE_ID = "device-id"
    """Long-lived identity of one device, the same after every boot."""
    LAYER = "layer"
    """Made at each boot; issues the next one."""
    ALIAS = "alias"
    """Made at each boot; signs measurements and KeyBindings, issues nothing."""


class FwidExtension(StrEnum):
    """How a certificate made at boot names the firmware that it stands for (OID 2.23.133.5.4.1)."""

    COMPOSITE_DEVICE_ID = "composite-device-id"
    """TCG Implicit Identity, revision 0.93: version, DeviceID key, one FWID."""
    TCB_INFO = "tcb-info"
    """TCG DICE Attestation Architecture: DiceTcbInfo."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLevel:
    """One certificate of the device's chain, root first."""

    role: LevelRole
    common_name: str
    fwid_covers: tuple[int, ...] = ()
    """Measurement indices behind this certificate's FWID: hash of their values, joined in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementSpec:
    """One measurement that a device of this profile shows."""

    index: int
    """SPDM measurement index, 1 to 254."""
    component: str
    """Stable word for findings and reference values."""
    kind: MeasurementKind
    octets: int
    """Exact size of the value."""
    value_type: int
    """DMTFSpecMeasurementValueType, with the raw bit (DSP0274 1.1, table 29; 1.2, table 53)."""
    slow_ms: int = 0
    """How long an emulated device is busy with it; a slow one is left out when measurements are read one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A product, as root of trust and verifier both know it."""

    name: str
    vendor: str
    model: str
    description: str
    spdm_version: str
    """`1.1` or `1.2`; fixed, never negotiated."""
    signature: str
    """`ecdsa-p384` or `ecdsa-p256`: of every key in the chain; the leaf's signs measurements."""
    hash: str
    """Hash of transcripts, chain digest, certificates and FWIDs: `sha384` with P-384, `sha256` with P-256."""
    measurement_hash: str
    """Hash of digests inside measurement blocks."""
    organization: str
    """Organization in every subject of the (emulated) chain."""
    levels: tuple[ChainLevel, ...]
    """Root first, Alias last."""
    fwid_extension: FwidExtension
    measurements: tuple[MeasurementSpec, ...]
    """By rising index."""
    one_by_one: bool = False
    """Whether a verifier reads measurements one by one, the last one signed, instead of all at once."""

    _by_index: Mapping[int, MeasurementSpec] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the measurements: an appraisal looks one up for every block and reference."""
        object.__setattr__(self, "_by_index", {spec.index: spec for spec in self.measurements})

    @property
    def curve_name(self) -> str:
        """Curve of every key in the chain."""
        return CURVE_NAMES[self.signature]

    @property
    def device_id_level(self) -> int:
        """Position of the DeviceID certificate, counted from the root at 0."""
        return next(i for i, level in enumerate(self.levels) if level.role is LevelRole.DEVICE_ID)

    def measurement(self, index: int) -> MeasurementSpec | None:
        """Give the measurement of that index, if this profile has it."""
        return self._by_index.get(index)

    def component(self, name: str) -> MeasurementSpec | None:
        """Give the measurement of that component, if this profile has it."""
        return next((spec for spec in self.measurements if spec.component == name), None)


def list_profiles() -> tuple[str, ...]:
    """Names of all profiles that come with ztdpu."""
    return tuple(sorted(path.stem for path in PROFILES_FOLDER.glob("*.toml")))


@cache
def load_profile(name: str) -> Profile:
    """Load a profile that comes with ztdpu.

    Raises:
        ConfigurationError: there is none of that name, or its file is malformed.

    """
    path = PROFILES_FOLDER / f"{name}.toml"
    if not _NAME.fullmatch(name) or not path.is_file():
        raise ConfigurationError(f"no profile `{name}`", remedy=f"use one of: {', '.join(list_profiles())}")
    return parse_profile(path.read_text(encoding="utf-8"), file=str(path))


def parse_profile(text: str, *, file: str) -> Profile:
    """Read a profile from TOML; `file` is for messages.

    Raises:
        ConfigurationError: malformed, an unknown word, or contradictory.

    """
    try:
        return _build(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"profile is malformed: {error}",
            remedy="compare it with profiles/bluefield-3.toml",
            where=Location(file=file, line=0),
        ) from error


def _build(document: dict[str, Any]) -> Profile:
    spdm, chain = document.pop("spdm"), document.pop("chain")
    levels = tuple(
        ChainLevel(
            role=LevelRole(level.pop("role")),
            common_name=level.pop("common_name"),
            fwid_covers=tuple(level.pop("fwid_covers", ())),
            **level,
        )
        for level in chain.pop("levels")
    )
    measurements = tuple(_build_measurement(spec, spdm) for spec in document.pop("measurements"))
    profile = Profile(
        spdm_version=spdm.pop("version"),
        signature=spdm.pop("signature"),
        hash=spdm.pop("hash"),
        measurement_hash=spdm.pop("measurement_hash"),
        one_by_one=spdm.pop("one_by_one", False),
        organization=chain.pop("organization"),
        fwid_extension=FwidExtension(chain.pop("fwid_extension")),
        levels=levels,
        measurements=measurements,
        **document,
        **spdm,
        **chain,
    )
    _check(profile)
    return profile


def _build_measurement(document: dict[str, Any], spdm: dict[str, Any]) -> MeasurementSpec:
    kind = MeasurementKind(document.pop("kind"))
    types = _VALUE_TYPES_1_1 if spdm["version"] == "1.1" else _VALUE_TYPES
    octets = _RAW_OCTETS.get(kind, HASH_OCTETS[spdm["measurement_hash"]])
    return MeasurementSpec(kind=kind, octets=octets, value_type=types[kind], **document)


def _check(profile: Profile) -> None:
    """Raise ValueError where fields contradict each other or name what this code cannot do."""
    if profile.spdm_version not in _SPDM_VERSIONS or (profile.signature, profile.hash) not in _SUITES:
        raise ValueError("only SPDM 1.1 and 1.2 with ecdsa-p384 and sha384, or ecdsa-p256 and sha256, are supported")
    if not isinstance(profile.one_by_one, bool):
        raise TypeError("one_by_one is true or false")
    indices = [spec.index for spec in profile.measurements]
    if indices != sorted(set(indices)) or not all(1 <= index <= 0xFE for index in indices):
        raise ValueError("measurement indices must rise and lie between 1 and 254")
    if len({spec.component for spec in profile.measurements}) != len(indices):
        raise ValueError("two measurements have the same component")
    roles = [level.role for level in profile.levels]
    if roles[0] is not LevelRole.ROOT or roles[-1] is not LevelRole.ALIAS or roles.count(LevelRole.DEVICE_ID) != 1:
        raise ValueError("the chain must begin with the root, end with the alias and have one device-id")
    if not all(0 <= spec.slow_ms <= SLOW_LIMIT_MS for spec in profile.measurements):
        raise ValueError(f"slow_ms goes from 0 to {SLOW_LIMIT_MS}")
    for level in profile.levels:
        if not set(level.fwid_covers) <= set(indices):
            raise ValueError(f"fwid_covers of `{level.common_name}` names a measurement that is not there")
        if any(spec.slow_ms for spec in profile.measurements if spec.index in level.fwid_covers):
            raise ValueError(f"fwid_covers of `{level.common_name}` names a slow measurement, which may be left out")
        if bool(level.fwid_covers) != (level.role in {LevelRole.LAYER, LevelRole.ALIAS}):
            raise ValueError("levels made at boot have a FWID, the others have none")
