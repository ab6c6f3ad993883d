"""Names that exist, values that do not collide: what single documents cannot know. Policies: `policy.traffic_checks`.

Called by `policy.cluster` with all documents. Every finding is appended, at the place of the field.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ztdpu.errors import ConfigurationError, PolicyError
from ztdpu.policy.documents import Document
from ztdpu.policy.entry import ByKind, Entry
from ztdpu.policy.yaml import Path
from ztdpu.trust.profile import MeasurementKind, load_profile

_VERSIONED: Final = frozenset({MeasurementKind.VERSION, MeasurementKind.SVN})


def check_documents(by_kind: ByKind, faults: list[PolicyError]) -> None:
    """Append a fault for each name that does not exist and each value that two documents claim."""
    for check in (_check_devices, _check_endpoints, _check_tenants, _check_references):
        check(by_kind, faults)


def refuse(faults: list[PolicyError], entry: Entry, path: Path, message: str, remedy: str = "") -> None:
    """Append a fault at a field."""
    faults.append(PolicyError(f"{'.'.join(map(str, path))}: {message}", remedy=remedy, where=entry.locate(*path)))


def _check_devices(by_kind: ByKind, faults: list[PolicyError]) -> None:
    _refuse_equal(by_kind["Device"], ("spec", "underlay", "address"), lambda d: d.spec.underlay.address, faults)  # type: ignore[attr-defined]
    _refuse_equal(by_kind["Device"], ("spec", "deviceIdSha256"), lambda d: d.spec.device_id_sha256, faults)  # type: ignore[attr-defined]


def _refuse_equal(
    entries: Mapping[str, Entry], path: Path, value_of: Callable[[Document], object], faults: list[PolicyError]
) -> None:
    seen: dict[object, str] = {}
    for name, entry in sorted(entries.items()):
        value = value_of(entry.document)
        if value is None:
            continue
        if value in seen:
            refuse(faults, entry, path, f"{value} belongs to {seen[value]!r} already")
        seen[value] = name


def _check_endpoints(by_kind: ByKind, faults: list[PolicyError]) -> None:
    taken: dict[tuple[str, object], str] = {}
    for name, entry in sorted(by_kind["Endpoint"].items()):
        spec = entry.document.spec  # type: ignore[attr-defined]
        want_document(by_kind, "Device", spec.device, entry, ("spec", "device"), faults)
        want_document(by_kind, "Tenant", spec.tenant, entry, ("spec", "tenant"), faults)
        for index, address in enumerate(spec.addresses):
            owner = taken.setdefault((spec.tenant, address), name)
            if owner != name or spec.addresses.index(address) != index:
                fault = f"belongs to {owner!r} already, in the same network" if owner != name else "is there twice"
                refuse(faults, entry, ("spec", "addresses", index), f"{address} {fault}")


def _check_tenants(by_kind: ByKind, faults: list[PolicyError]) -> None:
    for entry in by_kind["Tenant"].values():
        wanted = entry.document.spec.appraisal_policy  # type: ignore[attr-defined]
        if wanted is not None:
            want_document(by_kind, "AppraisalPolicy", wanted, entry, ("spec", "appraisalPolicy"), faults)


def _check_references(by_kind: ByKind, faults: list[PolicyError]) -> None:
    """Each value once, and only such as devices of the profile show: any other would be compared with nothing."""
    for entry in by_kind["ReferenceValues"].values():
        spec = entry.document.spec  # type: ignore[attr-defined]
        try:
            profile = load_profile(spec.profile)
        except ConfigurationError as error:
            refuse(faults, entry, ("spec", "profile"), error.message, error.remedy)
            continue
        indices = [one.index for one in profile.measurements]
        levels = [level for level, one in enumerate(profile.levels) if one.fwid_covers]
        versioned = [one.component for one in profile.measurements if one.kind in _VERSIONED]
        rows: tuple[tuple[str, str, list[object], Sequence[object]], ...] = (
            ("measurements", "index", [one.index for one in spec.measurements], indices),
            ("fwids", "level", [one.level for one in spec.fwids], levels),
            ("minimumVersions", "component", [one.component for one in spec.minimum_versions], versioned),
        )
        for name, word, values, known in rows:
            for position, value in enumerate(values):
                path = ("spec", name, position)
                if value in values[:position]:
                    refuse(faults, entry, path, f"{word} {value} is there twice")
                elif value not in known:
                    there = ", ".join(map(str, known))
                    refuse(faults, entry, path, f"{spec.profile} has no {word} {value}", f"it has {there}")


def want_document(by_kind: ByKind, kind: str, name: str, entry: Entry, path: Path, faults: list[PolicyError]) -> None:
    """Append a fault, with the nearest right name, unless there is such a document."""
    if name not in by_kind[kind]:
        near = difflib.get_close_matches(name, by_kind[kind], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        there = ", ".join(sorted(by_kind[kind])[:20]) or "none"
        refuse(faults, entry, path, f"no {kind} {name!r}{hint}", remedy=f"{kind} documents are: {there}")
