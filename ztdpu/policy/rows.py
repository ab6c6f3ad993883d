"""Policies to rows of an endpoint: selectors become prefixes, names of ports numbers, tiers an order.

Used by `compile`, once per cluster. A rule becomes one row per port range and group of peers. Admin rows come first,
by priority; then those of NetworkPolicies, by name; Baseline rows only in a direction in which no NetworkPolicy has
the last word over the endpoint. What remains is denied by default.

A NetworkPolicy that does not name a Peering never reaches a partner: wherever its blocks (or "everywhere") would cover
one's address there is a hole. Rows of policies in audit mode stand in the second set only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ztdpu.errors import Location
from ztdpu.model.endpoint import Endpoint
from ztdpu.model.flow import Direction, Protocol
from ztdpu.model.verdict import Verdict
from ztdpu.packet.tables import Prefix, Rule
from ztdpu.policy.cluster import Cluster
from ztdpu.policy.documents import (
    COLLECTIVE,
    COLLECTIVE_PORT,
    ClusterNetworkPolicy,
    ClusterPeer,
    NetworkPolicy,
    PeerSelector,
    PortRange,
    Subjects,
)
from ztdpu.policy.select import EVERYWHERE, block_prefix, covers, host_prefixes, is_selected, range_prefixes
from ztdpu.policy.topology import Topology

ADMIN, TENANT, BASELINE = range(3)
"""Tiers of rows."""
PORTS_ALL: Final = (0, 65535)
_ACTIONS: Final = {"Accept": Verdict.ALLOW, "Deny": Verdict.DROP, "Pass": None}


class Origin(NamedTuple):
    """What asked for a row."""

    where: Location
    kind: str
    policy: str
    rule: str
    """Such as `ingress 1`, or the rule's own name."""
    is_audit: bool

    def __str__(self) -> str:
        return f"{self.kind} {self.policy}, {self.rule}{' (audit mode)' if self.is_audit else ''}"


class _Group(NamedTuple):
    """Peers that share rows. `endpoints` only where names of ports have to be looked up with them."""

    included: tuple[Prefix, ...]
    excepted: tuple[Prefix, ...]
    endpoints: tuple[Endpoint, ...] | None


class Draft(NamedTuple):
    """A row without its number."""

    tier: int
    direction: Direction
    verdict: Verdict | None
    protocol: int
    first: int
    last: int
    peers: tuple[Prefix, ...]
    excepted: tuple[Prefix, ...]
    origin: Origin

    def number(self, rule_id: int) -> Rule:
        """Return the row."""
        return Rule(
            rule_id=rule_id,
            direction=self.direction,
            verdict=self.verdict,
            protocol=self.protocol,
            port_first=self.first,
            port_last=self.last,
            peers=self.peers,
            excepted=self.excepted,
            tier=self.tier,
        )


class RowMaker:
    """Makes the rows of all endpoints of one cluster; what endpoints share is worked out once."""

    def __init__(self, cluster: Cluster, topology: Topology) -> None:
        self._cluster = cluster
        self._topology = topology
        self._by_tenant: dict[str, list[NetworkPolicy]] = {tenant: [] for tenant in cluster.tenants}
        for _, policy in sorted(cluster.network_policies.items()):
            self._by_tenant[policy.spec.tenant].append(policy)
        ranked = sorted(cluster.cluster_network_policies.values(), key=lambda policy: policy.spec.priority)
        self._admin = [policy for policy in ranked if policy.spec.tier == "Admin"]
        self._baseline = [policy for policy in ranked if policy.spec.tier == "Baseline"]
        self._made: dict[tuple[object, ...], tuple[Draft, ...]] = {}

    def enforced(self, endpoint: Endpoint) -> list[Draft]:
        """Return the rows that decide."""
        return self._rows(endpoint, with_audit=False)

    def audited(self, endpoint: Endpoint) -> list[Draft] | None:
        """Return the rows as if policies in audit mode were enforced; None when none is about the endpoint."""
        own = self._own(endpoint, with_audit=True)
        cluster_wide = self._cluster_wide(self._admin + self._baseline, endpoint)
        if "audit" not in {policy.spec.mode for policy in own} | {policy.spec.mode for policy in cluster_wide}:
            return None
        return self._rows(endpoint, with_audit=True)

    def _rows(self, endpoint: Endpoint, *, with_audit: bool) -> list[Draft]:
        own = self._own(endpoint, with_audit=with_audit)
        decided = {word for policy in own for word in policy.spec.decides}
        rows: list[Draft] = []
        for policy in self._cluster_wide(self._admin, endpoint, with_audit=with_audit):
            rows += self._cluster_rows(policy, ADMIN, endpoint)
        for tenant_policy in own:
            rows += self._tenant_rows(tenant_policy, endpoint)
        for policy in self._cluster_wide(self._baseline, endpoint, with_audit=with_audit):
            rows += [row for row in self._cluster_rows(policy, BASELINE, endpoint) if row.direction not in decided]
        return rows

    def _own(self, endpoint: Endpoint, *, with_audit: bool) -> list[NetworkPolicy]:
        return [
            policy
            for policy in self._by_tenant[endpoint.tenant]
            if (with_audit or policy.spec.mode == "enforce")
            and is_selected(policy.spec.endpoint_selector, endpoint.labels)
        ]

    def _cluster_wide(
        self, policies: Sequence[ClusterNetworkPolicy], endpoint: Endpoint, *, with_audit: bool = True
    ) -> list[ClusterNetworkPolicy]:
        return [
            policy
            for policy in policies
            if (with_audit or policy.spec.mode == "enforce") and self._is_subject(policy.spec.subject, endpoint)
        ]

    def _is_subject(self, subject: Subjects | ClusterPeer, endpoint: Endpoint) -> bool:
        labels = self._topology.tenant_labels[endpoint.tenant]
        if subject.tenants is not None:
            return is_selected(subject.tenants, labels)
        both = subject.endpoints
        if both is None:
            return False
        return is_selected(both.tenant_selector, labels) and is_selected(both.endpoint_selector, endpoint.labels)

    # --- NetworkPolicy ------------------------------------------------------------------------

    def _tenant_rows(self, policy: NetworkPolicy, endpoint: Endpoint) -> Iterator[Draft]:
        for index, ingress in enumerate(policy.spec.ingress):
            yield from self._tenant_rule(policy, endpoint, Direction.INGRESS, index, ingress.from_, ingress.ports)
        for index, egress in enumerate(policy.spec.egress):
            yield from self._tenant_rule(policy, endpoint, Direction.EGRESS, index, egress.to, egress.ports)

    def _tenant_rule(
        self,
        policy: NetworkPolicy,
        endpoint: Endpoint,
        direction: Direction,
        index: int,
        peers: Sequence[PeerSelector] | None,
        ports: Sequence[PortRange] | None,
    ) -> tuple[Draft, ...]:
        key = (policy.name, direction, index, *self._own_part(endpoint, direction, ports))
        if key not in self._made:
            groups = tuple(self._tenant_groups(endpoint, peers))
            origin = self._origin(policy, direction, index)
            drafts = _expand(TENANT, direction, Verdict.ALLOW, groups, ports, endpoint, origin)
            self._made[key] = tuple(drafts)
        return self._made[key]

    def _own_part(
        self, endpoint: Endpoint, direction: Direction, ports: Sequence[PortRange] | None
    ) -> tuple[object, ...]:
        """On what of an endpoint a rule's rows depend, beside its being selected."""
        named = direction is Direction.INGRESS and any(isinstance(port.port, str) for port in ports or ())
        names = tuple(sorted(endpoint.ports.items())) if named else ()
        return endpoint.tenant, self._topology.peerings.get(endpoint.name, ()), names

    def _tenant_groups(self, endpoint: Endpoint, peers: Sequence[PeerSelector] | None) -> Iterator[_Group]:
        foreign = host_prefixes(self._topology.foreigners(endpoint))
        own = self._topology.by_tenant[endpoint.tenant]
        if peers is None:
            yield _Group(EVERYWHERE, foreign, tuple(own))
            return
        chosen: dict[str, Endpoint] = {}
        for peer in peers:
            if peer.ip_block is not None:
                continue
            candidates = own if peer.peering is None else self._topology.partners(endpoint, peer.peering)
            selector = peer.endpoint_selector
            chosen |= {one.name: one for one in candidates if selector is None or is_selected(selector, one.labels)}
        if chosen:
            yield _Group(host_prefixes(chosen.values()), (), tuple(chosen.values()))
        for peer in peers:
            if peer.ip_block is not None:
                included, excepted = range_prefixes(peer.ip_block)
                inside = tuple(host for host in foreign if covers(included[0], host))
                yield _Group(included, excepted + inside, None)

    # --- ClusterNetworkPolicy -----------------------------------------------------------------

    def _cluster_rows(self, policy: ClusterNetworkPolicy, tier: int, endpoint: Endpoint) -> Iterator[Draft]:
        for index, ingress in enumerate(policy.spec.ingress):
            yield from self._cluster_rule(policy, tier, endpoint, Direction.INGRESS, index, ingress.from_)
        for index, egress in enumerate(policy.spec.egress):
            yield from self._cluster_rule(policy, tier, endpoint, Direction.EGRESS, index, egress.to)

    def _cluster_rule(
        self,
        policy: ClusterNetworkPolicy,
        tier: int,
        endpoint: Endpoint,
        direction: Direction,
        index: int,
        peers: Sequence[Subjects | ClusterPeer],
    ) -> tuple[Draft, ...]:
        rule = (policy.spec.ingress if direction is Direction.INGRESS else policy.spec.egress)[index]
        key = (policy.name, tier, direction, index, *self._own_part(endpoint, direction, rule.ports))
        if key not in self._made:
            groups = tuple(self._cluster_groups(endpoint, peers))
            origin = self._origin(policy, direction, index)
            drafts = _expand(tier, direction, _ACTIONS[rule.action], groups, rule.ports, endpoint, origin)
            self._made[key] = tuple(drafts)
        return self._made[key]

    def _cluster_groups(self, endpoint: Endpoint, peers: Sequence[Subjects | ClusterPeer]) -> Iterator[_Group]:
        visible = self._topology.visible(endpoint)
        chosen = tuple(one for one in visible if any(self._is_subject(peer, one) for peer in peers))
        if chosen:
            yield _Group(host_prefixes(chosen), (), chosen)
        blocks = [block for peer in peers if isinstance(peer, ClusterPeer) for block in peer.networks or ()]
        if blocks:
            yield _Group(tuple(map(block_prefix, blocks)), (), None)

    def _origin(self, policy: NetworkPolicy | ClusterNetworkPolicy, direction: Direction, index: int) -> Origin:
        rules = policy.spec.ingress if direction is Direction.INGRESS else policy.spec.egress
        return Origin(
            where=self._cluster.locate(policy.KIND, policy.name, ("spec", direction.value, index)),
            kind=policy.KIND,
            policy=policy.name,
            rule=getattr(rules[index], "name", "") or f"{direction.value} rule {index + 1}",
            is_audit=policy.spec.mode == "audit",
        )


def _expand(
    tier: int,
    direction: Direction,
    verdict: Verdict | None,
    groups: Sequence[_Group],
    ports: Sequence[PortRange] | None,
    endpoint: Endpoint,
    origin: Origin,
) -> Iterator[Draft]:
    for group, port in itertools.product(groups, [None] if ports is None else ports):
        for peers, protocol, first, last in _port_rows(group, port, direction, endpoint):
            fitting = _fitting(peers, protocol)
            if fitting:
                excepted = _fitting(group.excepted, protocol)
                yield Draft(tier, direction, verdict, protocol, first, last, fitting, excepted, origin)


def _port_rows(
    group: _Group, port: PortRange | None, direction: Direction, endpoint: Endpoint
) -> Iterator[tuple[tuple[Prefix, ...], int, int, int]]:
    """(peers, protocol, first, last) per row; ICMP becomes one row per version."""
    if port is None:
        yield group.included, Protocol.ANY, *PORTS_ALL
    elif port.protocol == "ICMP":
        yield group.included, Protocol.ICMP, *PORTS_ALL
        yield group.included, Protocol.ICMPV6, *PORTS_ALL
    elif port.port is None:
        yield group.included, Protocol[port.protocol], *PORTS_ALL
    elif port.port == COLLECTIVE:
        yield group.included, Protocol.TCP, COLLECTIVE_PORT, COLLECTIVE_PORT
    elif isinstance(port.port, int):
        yield group.included, Protocol[port.protocol], port.port, port.end_port or port.port
    elif direction is Direction.INGRESS:
        number = endpoint.ports.get((port.port, port.protocol))
        if number is not None:
            yield group.included, Protocol[port.protocol], number, number
    else:
        # A name is what the destination calls a port of its own: each may mean another number.
        by_number: dict[int, list[Endpoint]] = {}
        for one in group.endpoints or ():
            number = one.ports.get((port.port, port.protocol))
            if number is not None:
                by_number.setdefault(number, []).append(one)
        for number, those in sorted(by_number.items()):
            yield host_prefixes(those), Protocol[port.protocol], number, number


def _fitting(prefixes: tuple[Prefix, ...], protocol: int) -> tuple[Prefix, ...]:
    """ICMP runs over IPv4 only and ICMPv6 over IPv6 only; a row never promises the impossible."""
    if protocol == Protocol.ICMP:
        return tuple(prefix for prefix in prefixes if len(prefix.address) == 4)
    if protocol == Protocol.ICMPV6:
        return tuple(prefix for prefix in prefixes if len(prefix.address) == 16)
    return prefixes
