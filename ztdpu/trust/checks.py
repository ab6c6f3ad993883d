"""The table of an appraisal: every measurement and firmware identity with what was expected and what was seen.

Called by `appraise` with the findings that it made; decides nothing. A line says what its findings say: whoever reads
the table and whoever reads the findings reads the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ztdpu.model.attestation import Check, CheckResult, Dimension, Finding
from ztdpu.trust.chain import DeviceChain
from ztdpu.trust.firmware import decode_version
from ztdpu.trust.judge import dimension_of, read_device_mode
from ztdpu.trust.profile import MeasurementKind, Profile
from ztdpu.trust.reference import AllowedDigests, AppraisalPolicy, ReferenceValues, format_version
from ztdpu.trust.spdm.evidence import MeasurementBlock

_RESULTS: Final = {
    "missing": CheckResult.MISSING,
    "vulnerable": CheckResult.VULNERABLE,
}
"""By the last word of a finding's code; every other code is `unexpected`."""


def make_checks(
    blocks: Sequence[MeasurementBlock],
    chain: DeviceChain,
    profile: Profile,
    references: ReferenceValues,
    policy: AppraisalPolicy,
    findings: Iterable[Finding],
) -> tuple[Check, ...]:
    """One line for each index that the profile has, the device shows or a reference names; then firmware identities."""
    shown = {block.index: block for block in blocks}
    found: dict[int, list[Finding]] = {}
    for finding in findings:
        if finding.index is not None:
            found.setdefault(finding.index, []).append(finding)
    indices = {spec.index for spec in profile.measurements} | set(shown) | set(references.measurements)
    return (
        *(
            _measurement(index, shown.get(index), profile, references, policy, found.get(index, ()))
            for index in sorted(indices)
            if index in shown or index in references.measurements or index in found
        ),
        *_firmware_identities(chain, references),
    )


def _measurement(
    index: int,
    block: MeasurementBlock | None,
    profile: Profile,
    references: ReferenceValues,
    policy: AppraisalPolicy,
    findings: Sequence[Finding],
) -> Check:
    spec, allowed = profile.measurement(index), references.measurements.get(index)
    component = spec.component if spec else allowed.component if allowed else f"index-{index}"
    expected, sources = _expected(index, component, profile, references, policy)
    if findings:
        result = _RESULTS.get(findings[0].code.rpartition("_")[2], CheckResult.UNEXPECTED)
    else:
        result = CheckResult.EXPECTED if expected else CheckResult.UNJUDGED
    return Check(
        place=str(index),
        component=component,
        dimension=dimension_of(profile, index, block),
        result=result,
        expected=(*expected, *(word for one in findings for word in one.expected if word not in expected)),
        seen=_seen(block, profile) if block else "",
        source=findings[0].source if findings else sources,
    )


def _expected(
    index: int, component: str, profile: Profile, references: ReferenceValues, policy: AppraisalPolicy
) -> tuple[tuple[str, ...], str]:
    """(what is allowed, where that is written)."""
    allowed, minimum = references.measurements.get(index), references.minimum_versions.get(component)
    spec = profile.measurement(index)
    if allowed is not None:
        return allowed.digests, str(allowed.source)
    if minimum is not None:
        return (f">= {format_version(minimum.minimum)}",), str(minimum.source)
    if spec is not None and spec.kind is MeasurementKind.DEVICE_MODE:
        return (*sorted(policy.allowed_modes), *sorted(policy.allowed_debug_states)), str(policy.source)
    return (), ""


def _seen(block: MeasurementBlock, profile: Profile) -> str:
    spec = profile.measurement(block.index)
    match spec.kind if spec else None:
        case MeasurementKind.VERSION:
            return format_version(decode_version(block.value))
        case MeasurementKind.SVN:
            return str(int.from_bytes(block.value, "little"))
        case MeasurementKind.DEVICE_MODE:
            mode, debug = read_device_mode(block.value)
            return f"{mode}, debug {debug}"
        case _:
            return block.value.hex()


def _firmware_identities(chain: DeviceChain, references: ReferenceValues) -> Iterator[Check]:
    shown = {fwid.level: fwid.digest.hex() for fwid in chain.fwids}
    for level in sorted(set(shown) | set(references.fwids)):
        allowed = references.fwids.get(level)
        seen = shown.get(level, "")
        yield Check(
            place=f"level {level}",
            component=allowed.component if allowed else "firmware-identity",
            dimension=Dimension.EXECUTABLES,
            result=_of_digest(seen, allowed),
            expected=allowed.digests if allowed else (),
            seen=seen,
            source=str(allowed.source) if allowed else "",
        )


def _of_digest(seen: str, allowed: AllowedDigests | None) -> CheckResult:
    if allowed is None:
        return CheckResult.UNJUDGED
    if not seen:
        return CheckResult.MISSING
    if seen in allowed.vulnerable_digests:
        return CheckResult.VULNERABLE
    return CheckResult.EXPECTED if seen in allowed.digests else CheckResult.UNEXPECTED
