"""Whether policies about traffic and their tests speak of what there is: Peerings, tenants, ports, priorities.

Called by `policy.cluster` with all documents. What could not be enforced is refused here, at the place of the field.
"""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Iterator, Sequence

from ztdpu.errors import PolicyError
from ztdpu.policy import documents
from ztdpu.policy.contradictions import refuse, want_document
from ztdpu.policy.documents import COLLECTIVE, PortRange
from ztdpu.policy.entry import ByKind, Entry
from ztdpu.policy.yaml import Path


def check_traffic(by_kind: ByKind, faults: list[PolicyError]) -> None:
    """Append a fault for everything that names what is not there."""
    for check in (_check_peerings, _check_network_policies, _check_cluster_policies, _check_bindings, _check_tests):
        check(by_kind, faults)


def _check_peerings(by_kind: ByKind, faults: list[PolicyError]) -> None:
    for name, entry in by_kind["Peering"].items():
        if name in by_kind["Tenant"]:
            there = by_kind["Tenant"][name].locate("metadata", "name")
            refuse(faults, entry, ("metadata", "name"), f"{name!r} is a tenant already ({there}); networks need names")
        for index, member in enumerate(_peering(entry).spec.members):
            path: Path = ("spec", "members", index, "tenant")
            want_document(by_kind, "Tenant", member.tenant, entry, path, faults)
            owner = by_kind["Tenant"].get(member.tenant)
            if owner is not None and name not in _tenant(owner).spec.peerings:
                remedy = f"add `peerings: [{name}]` to the spec of Tenant {member.tenant} ({owner.locate('spec')})"
                refuse(faults, entry, path, f"tenant {member.tenant!r} does not name this Peering", remedy)
    for name, entry in by_kind["Tenant"].items():
        for index, peering in enumerate(_tenant(entry).spec.peerings):
            path = ("spec", "peerings", index)
            want_document(by_kind, "Peering", peering, entry, path, faults)
            other = by_kind["Peering"].get(peering)
            if other is not None and name not in _sides(other):
                refuse(faults, entry, path, f"Peering {peering!r} is between {' and '.join(_sides(other))}")


def _check_network_policies(by_kind: ByKind, faults: list[PolicyError]) -> None:
    for entry in by_kind["NetworkPolicy"].values():
        policy = entry.document
        assert isinstance(policy, documents.NetworkPolicy)
        want_document(by_kind, "Tenant", policy.spec.tenant, entry, ("spec", "tenant"), faults)
        for index, ingress in enumerate(policy.spec.ingress):
            path: Path = ("spec", "ingress", index)
            _check_peers(by_kind, entry, policy.spec.tenant, ingress.from_, (*path, "from"), faults)
            _check_ports(by_kind, entry, ingress.ports, [policy.spec.tenant], path, faults)
        for index, egress in enumerate(policy.spec.egress):
            path = ("spec", "egress", index)
            _check_peers(by_kind, entry, policy.spec.tenant, egress.to, (*path, "to"), faults)
            blocks = [f"to.{i}.ipBlock" for i, peer in enumerate(egress.to or ()) if peer.ip_block is not None]
            _check_block_ports(entry, egress.ports, blocks, path, faults)
            tenants = [policy.spec.tenant]
            for peer in egress.to or ():
                if peer.peering in by_kind["Peering"]:
                    tenants += _sides(by_kind["Peering"][peer.peering])
            _check_ports(by_kind, entry, egress.ports, tenants, path, faults)


def _check_peers(
    by_kind: ByKind,
    entry: Entry,
    tenant: str,
    peers: Sequence[documents.PeerSelector] | None,
    path: Path,
    faults: list[PolicyError],
) -> None:
    for index, peer in enumerate(peers or ()):
        if peer.peering is None:
            continue
        at = (*path, index, "peering")
        want_document(by_kind, "Peering", peer.peering, entry, at, faults)
        found = by_kind["Peering"].get(peer.peering)
        if found is not None and tenant not in _sides(found):
            refuse(
                faults, entry, at, f"Peering {peer.peering!r} is between {' and '.join(_sides(found))}, not {tenant}"
            )


def _check_cluster_policies(by_kind: ByKind, faults: list[PolicyError]) -> None:
    taken: dict[tuple[str, int], Entry] = {}
    for entry in by_kind["ClusterNetworkPolicy"].values():
        policy = entry.document
        assert isinstance(policy, documents.ClusterNetworkPolicy)
        first = taken.setdefault((policy.spec.tier, policy.spec.priority), entry)
        if first is not entry:
            where = first.locate("spec", "priority")
            message = f"{policy.spec.priority} is taken in tier {policy.spec.tier} by {first.document.name!r} ({where})"
            refuse(faults, entry, ("spec", "priority"), message, "which of two policies decides must not be chance")
        everybody = list(by_kind["Tenant"])
        for index, ingress in enumerate(policy.spec.ingress):
            _check_ports(by_kind, entry, ingress.ports, everybody, ("spec", "ingress", index), faults)
        for index, egress in enumerate(policy.spec.egress):
            blocks = [f"to.{i}.networks" for i, peer in enumerate(egress.to) if peer.networks is not None]
            _check_block_ports(entry, egress.ports, blocks, ("spec", "egress", index), faults)
            _check_ports(by_kind, entry, egress.ports, everybody, ("spec", "egress", index), faults)


def _check_ports(
    by_kind: ByKind,
    entry: Entry,
    ports: Sequence[PortRange] | None,
    tenants: Sequence[str],
    path: Path,
    faults: list[PolicyError],
) -> None:
    """A name that nobody whom it could concern gives to a port is a slip of the pen."""
    for index, port in enumerate(ports or ()):
        if not isinstance(port.port, str) or port.port == COLLECTIVE:
            continue
        known = {name for name, protocol in _named_ports(by_kind, tenants) if protocol == port.protocol}
        if port.port not in known:
            near = difflib.get_close_matches(port.port, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            there = ", ".join(sorted({*known, COLLECTIVE}))
            message = f"no endpoint has a {port.protocol} port named {port.port!r}{hint}"
            refuse(faults, entry, (*path, "ports", index, "port"), message, f"names there are: {there}")


def _check_block_ports(
    entry: Entry, ports: Sequence[PortRange] | None, blocks: Sequence[str], path: Path, faults: list[PolicyError]
) -> None:
    for index, port in enumerate(ports or ()):
        if blocks and isinstance(port.port, str) and port.port != COLLECTIVE:
            message = f"addresses ({blocks[0]}) have no port names"
            refuse(faults, entry, (*path, "ports", index, "port"), message, "write the number, or a rule of its own")


def _named_ports(by_kind: ByKind, tenants: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name in tenants:
        if name in by_kind["Tenant"]:
            yield from ((one.name, one.protocol) for one in _tenant(by_kind["Tenant"][name]).spec.ports)
    for entry in by_kind["Endpoint"].values():
        endpoint = entry.document
        assert isinstance(endpoint, documents.Endpoint)
        if endpoint.spec.tenant in tenants:
            yield from ((one.name, one.protocol) for one in endpoint.spec.ports)


def _check_bindings(by_kind: ByKind, faults: list[PolicyError]) -> None:
    for entry in by_kind["RoleBinding"].values():
        binding = entry.document
        assert isinstance(binding, documents.RoleBinding)
        if binding.spec.tenant is not None:
            want_document(by_kind, "Tenant", binding.spec.tenant, entry, ("spec", "tenant"), faults)


def _check_tests(by_kind: ByKind, faults: list[PolicyError]) -> None:
    for entry in by_kind["PolicyTest"].values():
        test = entry.document
        assert isinstance(test, documents.PolicyTest)
        for index, flow in enumerate(test.spec.flows):
            want_document(by_kind, "Endpoint", flow.from_, entry, ("spec", "flows", index, "from"), faults)
            if not _is_address(flow.to):
                want_document(by_kind, "Endpoint", flow.to, entry, ("spec", "flows", index, "to"), faults)
        for index, pairs in enumerate(test.spec.pairs):
            for side, group in (("from", pairs.from_), ("to", pairs.to)):
                for field, tenant in (("tenant", group.tenant), ("notTenant", group.not_tenant)):
                    if tenant is not None:
                        path = ("spec", "pairs", index, side, field)
                        want_document(by_kind, "Tenant", tenant, entry, path, faults)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _peering(entry: Entry) -> documents.Peering:
    assert isinstance(entry.document, documents.Peering)
    return entry.document


def _tenant(entry: Entry) -> documents.Tenant:
    assert isinstance(entry.document, documents.Tenant)
    return entry.document


def _sides(entry: Entry) -> list[str]:
    return [member.tenant for member in _peering(entry).spec.members]
