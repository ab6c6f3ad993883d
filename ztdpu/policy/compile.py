"""Cluster to tables: what one device has to enforce, as the canonical blob whose SHA-256 is the revision.

Called by control (for every device, at every change) and by `policy explain`. Pure: the same cluster,
networks and device give the same bytes.

A NetworkPolicy rule becomes one row per port range and address family, in the order of policy names. The
file and line behind each row go into `sources`, beside the blob: the worker reports a row's number, people
are shown the line.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ztdpu.errors import Location, NotFoundError, PolicyError
from ztdpu.model.endpoint import Endpoint
from ztdpu.model.flow import Direction, Protocol
from ztdpu.model.sa import PspVersion
from ztdpu.model.tenant import Network
from ztdpu.model.verdict import Verdict
from ztdpu.packet.tables import (
    DeviceTables,
    EndpointTable,
    NetworkTable,
    PeerTable,
    Prefix,
    Route,
    Rule,
    encode_tables,
    revision,
)
from ztdpu.policy.cluster import Cluster
from ztdpu.policy.documents import EgressRule, IngressRule, NetworkPolicy, PeerSelector, PortRange
from ztdpu.policy.select import EVERYWHERE, host_prefixes, is_selected, range_prefixes
from ztdpu.policy.startup import UNDERLAY_MTU_OCTETS

_OVERHEAD_OCTETS: Final = {4: 20 + 8 + 16 + 16, 16: 40 + 8 + 16 + 16}
"""Outer IP, UDP, PSP header and ICV, by length of the underlay address."""
_SUITES: Final = {"AES-GCM-128": PspVersion.AES_GCM_128, "AES-GCM-256": PspVersion.AES_GCM_256}
_PORTS_ALL: Final = (0, 65535)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledTables:
    """One device's tables as they are stored, sent, hashed and enforced."""

    blob: bytes
    revision: bytes
    """SHA-256 of `blob`."""
    sources: Mapping[int, Location]
    """rule id -> the line of the policy file that asked for it."""


def compile_tables(
    cluster: Cluster,
    device: str,
    networks: Mapping[str, Network],
    *,
    underlay_mtu_octets: int = UNDERLAY_MTU_OCTETS,
) -> CompiledTables:
    """Return the tables of `device`; `networks` maps a tenant to its network (from the signed roster).

    Raises NotFoundError for an unknown device, PolicyError when a tenant on the device has no network.
    """
    if device not in cluster.devices:
        raise NotFoundError(f"no device {device!r}", remedy=f"devices are {', '.join(sorted(cluster.devices))}")
    tenants = cluster.tenants_on(device)
    missing = [tenant for tenant in tenants if tenant not in networks]
    if missing:
        raise PolicyError(
            f"tenant {missing[0]!r} has no network in the roster",
            remedy="have an operator sign a roster that lists it",
            where=cluster.locate("Tenant", missing[0]),
        )
    rows = _Rows(cluster)
    tables = DeviceTables(
        device=device,
        networks=tuple(_network_table(cluster, networks[tenant]) for tenant in tenants),
        endpoints=tuple(
            EndpointTable(
                endpoint_id=endpoint.endpoint_id,
                name=endpoint.name,
                network_id=networks[endpoint.tenant].network_id,
                addresses=tuple(sorted((a.packed for a in endpoint.addresses), key=lambda a: (len(a), a))),
                mtu_octets=underlay_mtu_octets - _overhead_octets(cluster, endpoint.tenant),
                rules=tuple(rows.of(endpoint)),
            )
            for _, endpoint in sorted(cluster.endpoints.items())
            if endpoint.device == device
        ),
        peers=tuple(_peers(cluster, device, tenants)),
    )
    blob = encode_tables(tables)
    return CompiledTables(blob=blob, revision=revision(blob), sources=rows.sources)


def _network_table(cluster: Cluster, network: Network) -> NetworkTable:
    spec = cluster.tenants[network.tenant].spec
    routes = [
        Route(address=address.packed, device=endpoint.device, endpoint_id=endpoint.endpoint_id)
        for endpoint in cluster.endpoints_of(network.tenant)
        for address in endpoint.addresses
    ]
    return NetworkTable(
        network_id=network.network_id,
        generation=network.generation,
        tenant=network.tenant,
        psp_version=_SUITES[spec.suite],
        flow_quota=spec.flow_quota,
        routes=tuple(sorted(routes, key=lambda route: (len(route.address), route.address))),
    )


def _peers(cluster: Cluster, device: str, tenants: Sequence[str]) -> Iterator[PeerTable]:
    names = {e.device for e in cluster.endpoints.values() if e.tenant in tenants} - {device}
    for name in sorted(names):
        yield PeerTable(device=name, underlay_address=cluster.devices[name].spec.underlay.address.packed)


def _overhead_octets(cluster: Cluster, tenant: str) -> int:
    """The whole network has one MTU: that of its longest outer header."""
    addresses = [cluster.devices[e.device].spec.underlay.address.packed for e in cluster.endpoints_of(tenant)]
    return max(_OVERHEAD_OCTETS[len(address)] for address in addresses)


class _Rows:
    """Numbers rows across all endpoints of one device and remembers where each came from."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._numbers = itertools.count(1)
        self.sources: dict[int, Location] = {}

    def of(self, endpoint: Endpoint) -> Iterator[Rule]:
        for name, policy in sorted(self._cluster.network_policies.items()):
            if policy.spec.tenant != endpoint.tenant or not is_selected(policy.spec.endpoint_selector, endpoint.labels):
                continue
            for index, ingress in enumerate(policy.spec.ingress):
                where = self._cluster.locate("NetworkPolicy", name, ("spec", "ingress", index))
                yield from self._expand(policy, Direction.INGRESS, ingress, ingress.from_, where)
            for index, egress in enumerate(policy.spec.egress):
                where = self._cluster.locate("NetworkPolicy", name, ("spec", "egress", index))
                yield from self._expand(policy, Direction.EGRESS, egress, egress.to, where)

    def _expand(
        self,
        policy: NetworkPolicy,
        direction: Direction,
        rule: IngressRule | EgressRule,
        peers: Sequence[PeerSelector] | None,
        where: Location,
    ) -> Iterator[Rule]:
        for (included, excepted), (protocol, first, last) in itertools.product(
            _peer_prefixes(self._cluster, policy.spec.tenant, peers), _port_ranges(rule.ports)
        ):
            fitting = _fitting(included, protocol)
            if not fitting:
                continue
            number = next(self._numbers)
            self.sources[number] = where
            yield Rule(
                rule_id=number,
                direction=direction,
                verdict=Verdict.ALLOW,
                protocol=protocol,
                port_first=first,
                port_last=last,
                peers=fitting,
                excepted=_fitting(excepted, protocol),
            )


def _peer_prefixes(
    cluster: Cluster, tenant: str, peers: Sequence[PeerSelector] | None
) -> Iterator[tuple[tuple[Prefix, ...], tuple[Prefix, ...]]]:
    """(included, excepted) per row: all label selectors share one, every ipBlock with holes has its own."""
    if peers is None:
        yield EVERYWHERE, ()
        return
    selectors = [peer.endpoint_selector for peer in peers if peer.endpoint_selector is not None]
    chosen = [e for e in cluster.endpoints_of(tenant) if any(is_selected(s, e.labels) for s in selectors)]
    if chosen:
        yield host_prefixes(chosen), ()
    for peer in peers:
        if peer.ip_block is not None:
            yield range_prefixes(peer.ip_block)


def _port_ranges(ports: Sequence[PortRange] | None) -> Iterator[tuple[int, int, int]]:
    """(protocol, first, last) per row; ICMP becomes one row per version."""
    if ports is None:
        yield (Protocol.ANY, *_PORTS_ALL)
        return
    for port in ports:
        if port.protocol == "ICMP":
            yield (Protocol.ICMP, *_PORTS_ALL)
            yield (Protocol.ICMPV6, *_PORTS_ALL)
        elif port.port is None:
            yield (Protocol[port.protocol], *_PORTS_ALL)
        else:
            yield (Protocol[port.protocol], port.port, port.end_port or port.port)


def _fitting(prefixes: tuple[Prefix, ...], protocol: int) -> tuple[Prefix, ...]:
    """ICMP runs over IPv4 only and ICMPv6 over IPv6 only; a row never promises the impossible."""
    if protocol == Protocol.ICMP:
        return tuple(prefix for prefix in prefixes if len(prefix.address) == 4)
    if protocol == Protocol.ICMPV6:
        return tuple(prefix for prefix in prefixes if len(prefix.address) == 16)
    return prefixes
