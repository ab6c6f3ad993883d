"""The cluster that a set of documents describes: names resolved, contradictions refused.

Called by `policy.load`; used by `compile`, `explain` and control. Never reads a policy file.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from ztdpu.errors import Location, NotFoundError, PolicyError
from ztdpu.model.endpoint import Endpoint as EndpointValue
from ztdpu.policy import documents
from ztdpu.policy.contradictions import check_documents
from ztdpu.policy.documents import Document
from ztdpu.policy.entry import ByKind, Entry
from ztdpu.policy.select import is_selected
from ztdpu.policy.traffic_checks import check_traffic
from ztdpu.policy.yaml import Path, Placed

Kind = TypeVar("Kind", bound=Document)
_SHOWN: Final = 20
"""Names that a message lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Desired state: everything that policy files say, by name."""

    devices: Mapping[str, documents.Device] = field(default_factory=dict)
    tenants: Mapping[str, documents.Tenant] = field(default_factory=dict)
    endpoints: Mapping[str, EndpointValue] = field(default_factory=dict)
    network_policies: Mapping[str, documents.NetworkPolicy] = field(default_factory=dict)
    cluster_network_policies: Mapping[str, documents.ClusterNetworkPolicy] = field(default_factory=dict)
    peerings: Mapping[str, documents.Peering] = field(default_factory=dict)
    policy_tests: Mapping[str, documents.PolicyTest] = field(default_factory=dict)
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
            near = difflib.get_close_matches(name, self.endpoints, n=1)
            names = sorted(self.endpoints)
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            raise NotFoundError(
                f"no endpoint {name!r}{f'; did you mean {near[0]!r}?' if near else ''}",
                remedy=f"endpoints are {', '.join(names[:_SHOWN]) or 'none'}{more}",
            ) from None

    def endpoints_of(self, tenant: str) -> tuple[EndpointValue, ...]:
        """Endpoints of one tenant, by name."""
        return tuple(e for _, e in sorted(self.endpoints.items()) if e.tenant == tenant)

    def members_of(self, peering: str) -> dict[str, tuple[EndpointValue, ...]]:
        """Tenant -> its endpoints that take part, by name."""
        return {
            side.tenant: tuple(
                e for e in self.endpoints_of(side.tenant) if is_selected(side.endpoint_selector, e.labels)
            )
            for side in self.peerings[peering].spec.members
        }

    def partners_of(self, endpoint: EndpointValue) -> dict[str, tuple[EndpointValue, ...]]:
        """Peering that the endpoint takes part in -> members of the other side; by name."""
        found = {}
        for name in self.peerings:
            sides = self.members_of(name)
            if endpoint in sides.get(endpoint.tenant, ()):
                found[name] = next(side for tenant, side in sides.items() if tenant != endpoint.tenant)
        return found

    def networks_on(self, device: str) -> tuple[str, ...]:
        """Tenants with an endpoint on this device and Peerings with a member on it, by name."""
        peerings = (name for name in self.peerings if device in self.devices_in(name))
        return tuple(sorted({*self.tenants_on(device), *peerings}))

    def devices_in(self, network: str) -> frozenset[str]:
        """Devices that host an endpoint of a tenant, or a member of a Peering."""
        if network in self.peerings:
            return frozenset(e.device for side in self.members_of(network).values() for e in side)
        return frozenset(e.device for e in self.endpoints.values() if e.tenant == network)

    def tenants_on(self, device: str) -> tuple[str, ...]:
        """Tenants with an endpoint on this device, by name."""
        return tuple(sorted({e.tenant for e in self.endpoints.values() if e.device == device}))


def build_cluster(entries: Iterable[Entry], faults: list[PolicyError]) -> Cluster:
    """Return the cluster; append a PolicyError to `faults` for each contradiction."""
    by_kind: ByKind = {kind: {} for kind in documents.KINDS}
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
    check_documents(by_kind, faults)
    check_traffic(by_kind, faults)
    cluster = Cluster(
        devices=_documents(by_kind, documents.Device),
        tenants=_documents(by_kind, documents.Tenant),
        endpoints={name: _endpoint_value(entry, by_kind) for name, entry in sorted(by_kind["Endpoint"].items())},
        network_policies=_documents(by_kind, documents.NetworkPolicy),
        cluster_network_policies=_documents(by_kind, documents.ClusterNetworkPolicy),
        peerings=_documents(by_kind, documents.Peering),
        policy_tests=_documents(by_kind, documents.PolicyTest),
        reference_values=_documents(by_kind, documents.ReferenceValues),
        appraisal_policies=_documents(by_kind, documents.AppraisalPolicy),
        role_bindings=_documents(by_kind, documents.RoleBinding),
        placed={(kind, name): entry.placed for kind, same in by_kind.items() for name, entry in same.items()},
    )
    if not faults:
        faults += check_overlaps(cluster)
    return cluster


def check_overlaps(cluster: Cluster) -> Iterator[PolicyError]:
    """Yield a fault for each address that would mean two endpoints to a member of a Peering, with both places."""
    said: set[tuple[str, str]] = set()
    for name in cluster.peerings:
        for tenant, members in cluster.members_of(name).items():
            for endpoint in members:
                for holder, other, address in _ambiguities(cluster, endpoint):
                    pair = (min(holder.name, other.name), max(holder.name, other.name))
                    if pair in said:
                        continue
                    said.add(pair)
                    first = cluster.locate("Endpoint", holder.name, ("spec", "addresses"))
                    who = f"{endpoint.name} of {tenant}, which takes part in Peering {name}"
                    if holder is other:
                        yield PolicyError(
                            f"spec.addresses: {other.name} is there by two Peerings to {who}",
                            remedy="leave it out of one of them",
                            where=first,
                        )
                        continue
                    yield PolicyError(
                        f"spec.addresses: {address} is {other.name} of {other.tenant} and {holder.name} of "
                        f"{holder.tenant} (at {first}) to {who}",
                        remedy="give one of them another address, or leave it out of the Peering",
                        where=cluster.locate("Endpoint", other.name, ("spec", "addresses")),
                    )


def _ambiguities(cluster: Cluster, endpoint: EndpointValue) -> Iterator[tuple[EndpointValue, EndpointValue, object]]:
    """(who has it, who has it too, address) for everybody that exists for `endpoint`; twice by two Peerings counts."""
    holders = {address: one for one in cluster.endpoints_of(endpoint.tenant) for address in one.addresses}
    for partners in cluster.partners_of(endpoint).values():
        for partner in partners:
            for address in partner.addresses:
                if address in holders:
                    yield holders[address], partner, address
                holders[address] = partner


def _documents(by_kind: ByKind, model: type[Kind]) -> dict[str, Kind]:
    found = ((name, entry.document) for name, entry in sorted(by_kind[model.KIND].items()))
    return {name: document for name, document in found if isinstance(document, model)}


def _endpoint_value(entry: Entry, by_kind: ByKind) -> EndpointValue:
    document = entry.document
    assert isinstance(document, documents.Endpoint)
    owner = by_kind["Tenant"].get(document.spec.tenant)
    shared = owner.document.spec.ports if owner and isinstance(owner.document, documents.Tenant) else []
    return EndpointValue(
        name=document.name,
        tenant=document.spec.tenant,
        device=document.spec.device,
        addresses=tuple(document.spec.addresses),
        labels=dict(document.metadata.labels),
        ports={(one.name, one.protocol): one.port for one in (*shared, *document.spec.ports)},
    )
