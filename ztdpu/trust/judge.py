"""The judging half of appraisal: authentic measurements in, findings out, each with its place and AR4SI claim.

Called by `appraise` alone, after everything was verified. Nothing here raises for what a device shows: a difference
is a `Finding`, and every rule looks at everything.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ztdpu.model.attestation import Dimension, Finding
from ztdpu.trust.chain import DeviceChain
from ztdpu.trust.firmware import decode_version
from ztdpu.trust.profile import MeasurementKind, Profile
from ztdpu.trust.reference import (
    AllowedDigests,
    AppraisalPolicy,
    DebugState,
    OperationalMode,
    ReferenceValues,
    Version,
    format_version,
)
from ztdpu.trust.spdm.evidence import MeasurementBlock

# AR4SI values (draft-ietf-rats-ar4si section 2.3.4).
IDENTITY_KNOWN: Final = 2
IDENTITY_UNKNOWN: Final = 97
HARDWARE_GENUINE: Final = 2
EXECUTABLES_APPROVED_AT_BOOT: Final = 3
CONFIGURATION_APPROVED: Final = 2
CONFIGURATION_WITHOUT_KNOWN_VULNERABILITIES: Final = 3
CONFIGURATION_UNAVAILABLE: Final = 36
KNOWN_VULNERABILITIES: Final = 32
CONTRAINDICATED: Final = 96

CLOCK_SLACK_S: Final = 30
_DEVICE_MODE_OCTETS: Final = 16
_MODES: Final = {
    1 << 0: OperationalMode.MANUFACTURING,
    1 << 2: OperationalMode.NORMAL,
    1 << 3: OperationalMode.RECOVERY,
}
_DEBUG_ACTIVE: Final = 0b00011
_DEBUG_KNOWN: Final = 0b11111
_EXECUTABLE_TYPES: Final = frozenset({0x00, 0x01})


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What raw measurement blocks say, read."""

    versions: Mapping[str, Version]
    """By component."""
    mode: OperationalMode | None
    """None: the device shows no device-mode block."""
    debug: DebugState | None
    mode_index: int | None
    """Of the profile, shown or not."""


def read_measured(blocks: Sequence[MeasurementBlock], profile: Profile) -> Measured:
    """Read versions, security version numbers and the device mode out of well-formed blocks."""
    versions: dict[str, Version] = {}
    mode: OperationalMode | None = None
    debug: DebugState | None = None
    mode_index = next((spec.index for spec in profile.measurements if spec.kind is MeasurementKind.DEVICE_MODE), None)
    for block in blocks:
        spec = profile.measurement(block.index)
        if spec is None:
            continue
        if spec.kind is MeasurementKind.VERSION:
            versions[spec.component] = decode_version(block.value)
        elif spec.kind is MeasurementKind.SVN:
            versions[spec.component] = (int.from_bytes(block.value, "little"),)
        elif spec.kind is MeasurementKind.DEVICE_MODE:
            mode, debug = read_device_mode(block.value)
    return Measured(versions=versions, mode=mode, debug=debug, mode_index=mode_index)


def read_device_mode(value: bytes) -> tuple[OperationalMode, DebugState]:
    """Read a device-mode value of 16 octets (DSP0274 1.2, 10.11.1.4); unknown debug bits count as debug."""
    _, selected, _, debug = struct.unpack("<4I", value[:_DEVICE_MODE_OCTETS])
    mode = _MODES.get(selected, OperationalMode.OTHER)
    if debug & _DEBUG_ACTIVE or debug & ~_DEBUG_KNOWN:
        return mode, DebugState.ENABLED
    return mode, DebugState.DISABLED if debug else DebugState.DISABLED_SINCE_BOOT


def base_vector(references: ReferenceValues, profile: Profile, measured: Measured) -> dict[Dimension, int]:
    """Give the claims of a device without findings: what was really looked at, and no more."""
    judged = {dimension_of(profile, index) for index in references.measurements}
    vector = {Dimension.INSTANCE_IDENTITY: IDENTITY_KNOWN, Dimension.HARDWARE: HARDWARE_GENUINE}
    if Dimension.EXECUTABLES in judged or references.fwids:
        vector[Dimension.EXECUTABLES] = EXECUTABLES_APPROVED_AT_BOOT
    if Dimension.CONFIGURATION in judged:
        vector[Dimension.CONFIGURATION] = CONFIGURATION_APPROVED
    elif measured.mode is not None:
        vector[Dimension.CONFIGURATION] = CONFIGURATION_WITHOUT_KNOWN_VULNERABILITIES
    return vector


def judge_age(policy: AppraisalPolicy, now: datetime, collected_at: datetime | None) -> Iterator[Finding]:
    """No fresh evidence is a failing state of its own; evidence from the future is not fresh either."""
    if collected_at is None:
        return
    age_s = (now - collected_at).total_seconds()
    if -CLOCK_SLACK_S <= age_s <= policy.maximum_evidence_age_s:
        return
    yield Finding(
        code="evidence_too_old",
        dimension=Dimension.INSTANCE_IDENTITY,
        claim=IDENTITY_UNKNOWN,
        message="the last evidence is too old to say anything about the device now",
        expected=(f"at most {policy.maximum_evidence_age_s} s",),
        seen=f"{age_s:.0f} s",
        source=str(policy.source),
    )


def judge_measurements(
    blocks: Sequence[MeasurementBlock], profile: Profile, references: ReferenceValues, policy: AppraisalPolicy
) -> Iterator[Finding]:
    """Compare every referenced index; an index that no reference names is not judged."""
    values = {block.index: block for block in blocks}
    for index, allowed in sorted(references.measurements.items()):
        block = values.get(index)
        dimension = dimension_of(profile, index, block)
        bad_claim = policy.unrecognized_executables if dimension is Dimension.EXECUTABLES else CONTRAINDICATED
        if block is None:
            yield _difference(allowed, "measurement_missing", dimension, bad_claim, seen="", index=index)
        else:
            yield from _judge_digest(allowed, "measurement", dimension, bad_claim, seen=block.value.hex(), index=index)
    if not references.fwids and all(
        dimension_of(profile, index) is not Dimension.EXECUTABLES for index in references.measurements
    ):
        yield Finding(
            code="no_reference_values",
            dimension=Dimension.EXECUTABLES,
            claim=policy.unrecognized_executables,
            message=f"no reference value names any firmware of {profile.name}",
            source=str(references.source),
        )


def judge_fwids(chain: DeviceChain, references: ReferenceValues, policy: AppraisalPolicy) -> Iterator[Finding]:
    """Compare every referenced firmware identity, by level of the chain."""
    shown = {fwid.level: fwid for fwid in chain.fwids}
    claim = policy.unrecognized_executables
    for level, allowed in sorted(references.fwids.items()):
        fwid = shown.get(level)
        if fwid is None:
            yield _difference(allowed, "fwid_missing", Dimension.EXECUTABLES, claim, seen="", level=level)
        else:
            yield from _judge_digest(allowed, "fwid", Dimension.EXECUTABLES, claim, seen=fwid.digest.hex(), level=level)


def judge_versions(
    versions: Mapping[str, Version],
    profile: Profile,
    references: ReferenceValues,
    highest_versions: Mapping[str, Version],
) -> Iterator[Finding]:
    """Refuse rollback: below the policy's minimum, or below the highest ever accepted from this device."""
    for component, minimum in sorted(references.minimum_versions.items()):
        yield from _judge_version(
            component,
            _index_of(component, profile),
            versions.get(component),
            minimum.minimum,
            code="version_below_minimum",
            why="the minimum that policy sets",
            source=str(minimum.source),
        )
    for component, highest in sorted(highest_versions.items()):
        yield from _judge_version(
            component,
            _index_of(component, profile),
            versions.get(component),
            highest,
            code="version_rolled_back",
            why="the highest that this device ever showed; `ztdpu device restore --allow-rollback` accepts it",
            source="device record",
        )


def judge_mode(measured: Measured, chain: DeviceChain, policy: AppraisalPolicy) -> Iterator[Finding]:
    """Debug, recovery, manufacturing: from the device-mode block and from flags in certificates."""
    source = str(policy.source)
    for fwid in chain.fwids:
        for flag in fwid.bad_flags:
            yield _mode_finding("tcb_flag", CONTRAINDICATED, f"{fwid.subject} admits: {flag}", (), flag, source, None)
    if measured.mode is None or measured.debug is None:
        yield _mode_finding(
            "device_mode_missing", CONFIGURATION_UNAVAILABLE, "the device does not say in which mode it is",
            (), "", source, measured.mode_index,
        )  # fmt: skip
        return
    if measured.mode not in policy.allowed_modes:
        allowed = tuple(sorted(policy.allowed_modes))
        message = f"the device runs in {measured.mode} mode"
        yield _mode_finding(
            "mode_not_allowed", CONTRAINDICATED, message, allowed, measured.mode, source, measured.mode_index
        )
    if measured.debug not in policy.allowed_debug_states:
        enabled = measured.debug is DebugState.ENABLED
        yield _mode_finding(
            "debug_enabled" if enabled else "debug_was_enabled",
            CONTRAINDICATED if enabled else KNOWN_VULNERABILITIES,
            "debug access is on" if enabled else "debug access was on since this boot",
            tuple(sorted(policy.allowed_debug_states)),
            measured.debug,
            source,
            measured.mode_index,
        )


def dimension_of(profile: Profile, index: int, block: MeasurementBlock | None = None) -> Dimension:
    """The AR4SI claim that a measurement speaks for; of an unknown index its own type tells."""
    spec = profile.measurement(index)
    if spec is not None:
        executable = spec.kind in {MeasurementKind.FIRMWARE, MeasurementKind.VERSION, MeasurementKind.SVN}
    else:
        executable = block is None or block.value_type in _EXECUTABLE_TYPES
    return Dimension.EXECUTABLES if executable else Dimension.CONFIGURATION


def _judge_digest(
    allowed: AllowedDigests,
    what: str,
    dimension: Dimension,
    bad_claim: int,
    *,
    seen: str,
    index: int | None = None,
    level: int | None = None,
) -> Iterator[Finding]:
    if seen in allowed.digests:
        return
    if seen in allowed.vulnerable_digests:
        yield _difference(
            allowed, f"{what}_vulnerable", dimension, KNOWN_VULNERABILITIES, seen=seen, index=index, level=level
        )
    else:
        yield _difference(allowed, f"{what}_unexpected", dimension, bad_claim, seen=seen, index=index, level=level)


def _difference(
    allowed: AllowedDigests,
    code: str,
    dimension: Dimension,
    claim: int,
    *,
    seen: str,
    index: int | None = None,
    level: int | None = None,
) -> Finding:
    place = f"measurement {index}" if level is None else f"firmware identity at level {level}"
    fault = {
        "missing": "is not there",
        "vulnerable": "has known vulnerabilities",
        "unexpected": "is not one of the allowed",
    }[code.rpartition("_")[2]]
    return Finding(
        code=code,
        dimension=dimension,
        claim=claim,
        message=f"{allowed.component}: {place} {fault}",
        index=index,
        component=allowed.component,
        expected=allowed.digests,
        seen=seen,
        source=str(allowed.source),
    )


def _index_of(component: str, profile: Profile) -> int | None:
    spec = profile.component(component)
    return None if spec is None else spec.index


def _judge_version(
    component: str, index: int | None, seen: Version | None, lowest: Version, *, code: str, why: str, source: str
) -> Iterator[Finding]:
    if seen is not None:
        width = max(len(seen), len(lowest))
        if _pad(seen, width) >= _pad(lowest, width):
            return
    below = (
        f"{component} is at {format_version(seen)}, below"
        if seen is not None
        else f"{component} is not shown; at least"
    )
    yield Finding(
        code=code if seen is not None else "version_missing",
        dimension=Dimension.EXECUTABLES,
        claim=CONTRAINDICATED,
        message=f"{below} {format_version(lowest)}, {why}",
        index=index,
        component=component,
        expected=(f">= {format_version(lowest)}",),
        seen=format_version(seen) if seen is not None else "",
        source=source,
    )


def _pad(version: Version, width: int) -> Version:
    return version + (0,) * (width - len(version))


def _mode_finding(
    code: str, claim: int, message: str, expected: tuple[str, ...], seen: str, source: str, index: int | None
) -> Finding:
    return Finding(
        code=code,
        dimension=Dimension.CONFIGURATION,
        claim=claim,
        message=message,
        index=index,
        component="device-mode",
        expected=expected,
        seen=seen,
        source=source,
    )
