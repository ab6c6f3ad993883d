"""The cluster that a set of documents describes: names resolved, contradictions refused.

Called by `policy.load`; used by `compile`, `explain` and control. Never reads a policy file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ztdpu.errors import ConfigurationError, Location, NotFoundError, PolicyError
from ztdpu.model.endpoint import Endpoint as EndpointValue
from ztdpu.policy import documents
from ztdpu.policy.documents import Document
from ztdpu.policy.yaml import Path, Placed
from ztdpu.trust.profile import MeasurementKind, load_profile

Kind = TypeVar("Kind", bound=Document)

_VERSIONED = frozenset({MeasurementKind.VERSION, MeasurementKind.SVN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One document and where it stands."""

    document: Document
    placed: Placed

    def locate(self, *path: str | int) -> Location:
        """Place of a field in the file."""
        return self.placed.locate(tuple(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Desired state: everything that policy files say, by name."""

    devices: Mapping[str, documents.Device] = field(default_factory=dict)
    tenants: Mapping[str, documents.Tenant] = field(default_factory=dict)
    endpoints: Mapping[str, EndpointValue] = field(default_factory=dict)
    network_policies: Mapping[str, documents.NetworkPolicy] = field(default_factory=dict)
    reference_values: Mapping[str, documents.ReferenceValues] = field(default_factory=dict)
    appraisal_policies: Mapping[str, documents.AppraisalPolicy] = field(default_factory=dict)
    role_bindings: Mapping[str, documents.RoleBinding] = field(default_factory=dict)
    placed: Mapping[tuple[str, str], Placed] = field(default_factory=dict)
    """(kind, name) -> the document's places."""
    empty_files: tuple[str, ...] = ()
    """Policy files without any document."""

    def locate(self, kind: str, name: str, path: Path = ()) -> Location:
        """Place of a field of a document."""
        return self.placed[kind, name].locate(path)

    def endpoint(self, name: str) -> EndpointValue:
        """Raises NotFoundError with the names there are."""
        try:
            return self.endpoints[name]
        except KeyError:
            raise NotFoundError(
                f"no endpoint {name!r}", remedy=f"endpoints are {', '.join(sorted(self.endpoints)) or 'none'}"
            ) from None

    def endpoints_of(self, tenant: str) -> tuple[EndpointValue, ...]:
        """Endpoints of one tenant, by name."""
        return tuple(e for _, e in sorted(self.endpoints.items()) if e.tenant == tenant)

    def tenants_on(self, device: str) -> tuple[str, ...]:
        """Tenants with an endpoint on this device, by name."""
        return tuple(sorted({e.tenant for e in self.endpoints.values() if e.device == device}))


def build_cluster(entries: Iterable[Entry], faults: list[PolicyError]) -> Cluster:
    """Return the cluster; append a PolicyError to `faults` for each contradiction."""
    by_kind: dict[str, dict[str, Entry]] = {kind: {} for kind in documents.KINDS}
    for entry in entries:
        same = by_kind[entry.document.KIND]
        if entry.document.name in same:
            first = same[entry.document.name].locate("metadata", "name")
            faults.append(
                PolicyError(
                    f"{entry.document.KIND} {entry.document.name!r} is there twice; first at {first}",
                    where=entry.locate("metadata", "name"),
                )
            )
            continue
        same[entry.document.name] = entry
    _check_devices(by_kind, faults)
    _check_endpoints(by_kind, faults)
    _check_tenants(by_kind, faults)
    for check in (_check_policies, _check_references):
        check(by_kind, faults)
    return Cluster(
        devices=_documents(by_kind, documents.Device),
        tenants=_documents(by_kind, documents.Tenant),
        endpoints={name: _endpoint_value(entry.document) for name, entry in sorted(by_kind["Endpoint"].items())},
        network_policies=_documents(by_kind, documents.NetworkPolicy),
        reference_values=_documents(by_kind, documents.ReferenceValues),
        appraisal_policies=_documents(by_kind, documents.AppraisalPolicy),
        role_bindings=_documents(by_kind, documents.RoleBinding),
        placed={(kind, name): entry.placed for kind, same in by_kind.items() for name, entry in same.items()},
    )


ByKind = dict[str, dict[str, Entry]]


def _documents(by_kind: ByKind, model: type[Kind]) -> dict[str, Kind]:
    found = ((name, entry.document) for name, entry in sorted(by_kind[model.KIND].items()))
    return {name: document for name, document in found if isinstance(document, model)}


def _endpoint_value(document: Document) -> EndpointValue:
    assert isinstance(document, documents.Endpoint)
    return EndpointValue(
        name=document.name,
        tenant=document.spec.tenant,
        device=document.spec.device,
        addresses=tuple(document.spec.addresses),
        labels=dict(document.metadata.labels),
    )


def _refuse(faults: list[PolicyError], entry: Entry, path: Path, message: str, remedy: str = "") -> None:
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
            _refuse(faults, entry, path, f"{value} belongs to {seen[value]!r} already")
        seen[value] = name


def _check_endpoints(by_kind: ByKind, faults: list[PolicyError]) -> None:
    taken: dict[tuple[str, object], str] = {}
    for name, entry in sorted(by_kind["Endpoint"].items()):
        spec = entry.document.spec  # type: ignore[attr-defined]
        _want(by_kind, "Device", spec.device, entry, ("spec", "device"), faults)
        _want(by_kind, "Tenant", spec.tenant, entry, ("spec", "tenant"), faults)
        for index, address in enumerate(spec.addresses):
            owner = taken.setdefault((spec.tenant, address), name)
            if owner != name or spec.addresses.index(address) != index:
                fault = f"belongs to {owner!r} already, in the same network" if owner != name else "is there twice"
                _refuse(faults, entry, ("spec", "addresses", index), f"{address} {fault}")


def _check_tenants(by_kind: ByKind, faults: list[PolicyError]) -> None:
    for entry in by_kind["Tenant"].values():
        wanted = entry.document.spec.appraisal_policy  # type: ignore[attr-defined]
        if wanted is not None:
            _want(by_kind, "AppraisalPolicy", wanted, entry, ("spec", "appraisalPolicy"), faults)


def _check_policies(by_kind: ByKind, faults: list[PolicyError]) -> None:
    for kind in ("NetworkPolicy", "RoleBinding"):
        for entry in by_kind[kind].values():
            tenant = entry.document.spec.tenant  # type: ignore[attr-defined]
            if tenant is not None:
                _want(by_kind, "Tenant", tenant, entry, ("spec", "tenant"), faults)


def _check_references(by_kind: ByKind, faults: list[PolicyError]) -> None:
    """Each value once, and only such as devices of the profile show: any other would be compared with nothing."""
    for entry in by_kind["ReferenceValues"].values():
        spec = entry.document.spec  # type: ignore[attr-defined]
        try:
            profile = load_profile(spec.profile)
        except ConfigurationError as error:
            _refuse(faults, entry, ("spec", "profile"), error.message, error.remedy)
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
                    _refuse(faults, entry, path, f"{word} {value} is there twice")
                elif value not in known:
                    there = ", ".join(map(str, known))
                    _refuse(faults, entry, path, f"{spec.profile} has no {word} {value}", f"it has {there}")


def _want(by_kind: ByKind, kind: str, name: str, entry: Entry, path: Path, faults: list[PolicyError]) -> None:
    if name not in by_kind[kind]:
        there = ", ".join(sorted(by_kind[kind])) or "none"
        _refuse(faults, entry, path, f"no {kind} {name!r}", remedy=f"{kind} documents are: {there}")
