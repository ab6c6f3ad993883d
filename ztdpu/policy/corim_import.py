"""From a CoRIM to a ReferenceValues document: what maps onto a profile, and by name all that does not.

    class vendor, model        -> must be the profile's
    class layer, no mkey       -> fwids, at the level of that layer (DiceTcbInfo counts from the DeviceID)
    mkey, a number             -> measurements, by SPDM measurement index
    minimum svn under an mkey  -> minimumVersions of that component

Called by `ztdpu policy import-corim`. Never guesses: a value that would be dropped silently could be the one that
matters, so whoever imports says that it may be left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from ztdpu.policy.documents.attestation import ReferenceValues
from ztdpu.policy.documents.base import API_VERSION
from ztdpu.trust.corim import Corim, Environment, Measurement
from ztdpu.trust.profile import MeasurementKind, Profile

_HASHED: Final = frozenset(
    {MeasurementKind.FIRMWARE, MeasurementKind.FIRMWARE_CONFIGURATION, MeasurementKind.HARDWARE_CONFIGURATION}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A document, and what of the manifest is not in it."""

    document: dict[str, Any]
    """As it stands in a policy file; empty when nothing maps."""
    left_out: tuple[str, ...]
    """For people: where in the manifest, what, and why."""


@dataclass(slots=True)
class _Found:
    """Values under way."""

    measurements: dict[int, list[str]] = field(default_factory=dict)
    fwids: dict[int, list[str]] = field(default_factory=dict)
    minimum_versions: dict[str, int] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def import_corim(manifest: Corim, *, name: str, profile: Profile) -> Imported:
    """Map a manifest onto a profile; `name` is the document's."""
    found = _Found(left_out=list(manifest.unread))
    for number, triple in enumerate(manifest.triples, 1):
        where = f"reference triple {number}"
        foreign = list(_foreign(triple.environment, profile))
        if foreign:
            found.left_out += [f"{where}: {reason}" for reason in foreign]
            continue
        for position, measurement in enumerate(triple.measurements, 1):
            _take(found, triple.environment, measurement, profile, f"{where}, measurement {position}")
    return Imported(document=_document(found, name, profile), left_out=tuple(dict.fromkeys(found.left_out)))


def _foreign(environment: Environment, profile: Profile) -> Iterator[str]:
    """Why an environment is not devices of this profile."""
    yield from (f"is narrowed by {one}" for one in environment.unread)
    if not environment.vendor or not environment.model:
        known = environment.class_id or "nothing"
        yield f"names no vendor and model, which a profile is found by ({known} is given)"
    elif (environment.vendor, environment.model) != (profile.vendor, profile.model):
        yield (
            f"is about {environment.vendor} {environment.model}, "
            f"profile {profile.name} is {profile.vendor} {profile.model}"
        )
    if environment.index is not None:
        yield f"is about index {environment.index} of a class, profiles know one of each"


def _take(found: _Found, environment: Environment, one: Measurement, profile: Profile, where: str) -> None:
    """Take over what a measurement says, all or nothing: its values hold together."""
    reasons = [f"{what} is not compared" for what in one.unread]
    if one.svn is not None:
        reasons.append(f"security version exactly {one.svn}: only a minimum is compared")
    if one.version:
        reasons.append(f"version {one.version}: only a minimum is compared")
    if one.key is None:
        reasons += _take_fwid(found, environment, one, profile, dry=bool(reasons))
    elif isinstance(one.key, int):
        reasons += _take_index(found, environment, one, profile, dry=bool(reasons))
    else:
        reasons.append(f"its key is {one.key}, devices are asked for numbered measurements")
    found.left_out += [f"{where}: {reason}" for reason in reasons]


def _take_fwid(found: _Found, environment: Environment, one: Measurement, profile: Profile, *, dry: bool) -> list[str]:
    level = None if environment.layer is None else environment.layer + profile.device_id_level
    if level is None:
        return ["it has neither a key nor a layer"]
    if level >= len(profile.levels) or not profile.levels[level].fwid_covers:
        return [f"no certificate of profile {profile.name} carries the firmware identity of layer {environment.layer}"]
    if one.minimum_svn is not None:
        return ["a minimum version of a layer is not compared"]
    digest = one.digests.get(profile.hash)
    if digest is None:
        return [f"no digest of {profile.hash}, which firmware identities of {profile.name} are made with"]
    if not dry:
        found.fwids.setdefault(level, []).append(digest)
    return []


def _take_index(found: _Found, environment: Environment, one: Measurement, profile: Profile, *, dry: bool) -> list[str]:
    spec = profile.measurement(one.key) if isinstance(one.key, int) else None
    if spec is None:
        return [f"profile {profile.name} has no measurement {one.key}"]
    if environment.layer is not None:
        return [f"measurement {one.key} is that of a device, not of its layer {environment.layer}"]
    if one.minimum_svn is not None and spec.kind is not MeasurementKind.SVN:
        return [f"measurement {one.key} ({spec.component}) is no security version"]
    digest = one.digests.get(profile.measurement_hash)
    if one.digests and (digest is None or spec.kind not in _HASHED):
        return [f"measurement {one.key} ({spec.component}) is no digest of {', '.join(sorted(one.digests))}"]
    if digest is None and one.minimum_svn is None:
        return ["it has no digest and no minimum version"]
    if dry:
        return []
    if digest is not None:
        found.measurements.setdefault(spec.index, []).append(digest)
    if one.minimum_svn is not None:
        before = found.minimum_versions.get(spec.component, one.minimum_svn)
        found.minimum_versions[spec.component] = max(before, one.minimum_svn)
    return []


def _document(found: _Found, name: str, profile: Profile) -> dict[str, Any]:
    spec: dict[str, Any] = {"profile": profile.name}
    measurements = [
        {"index": index, "component": one.component, "digests": list(dict.fromkeys(digests))}
        for index, digests in sorted(found.measurements.items())
        if (one := profile.measurement(index)) is not None
    ]
    fwids = [
        {"level": level, "component": str(profile.levels[level].role), "digests": list(dict.fromkeys(digests))}
        for level, digests in sorted(found.fwids.items())
    ]
    minimums = [{"component": one, "version": str(svn)} for one, svn in sorted(found.minimum_versions.items())]
    parts = {"measurements": measurements, "fwids": fwids, "minimumVersions": minimums}
    if not any(parts.values()):
        return {}
    spec |= {part: values for part, values in parts.items() if values}
    document = {"apiVersion": API_VERSION, "kind": ReferenceValues.KIND, "metadata": {"name": name}, "spec": spec}
    ReferenceValues.model_validate(document)
    return document
