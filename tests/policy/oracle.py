"""What policy documents mean, read a second time and as plainly as possible: the judge of `policy.rows`.

Answers one question at a time from the documents, without rows, prefixes, tiers as numbers or anything of `policy`
but the models. Kubernetes' NetworkPolicy and ClusterNetworkPolicy, as docs/how-to/write-a-policy.md tells them.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import Any

from ztdpu.model.endpoint import Endpoint
from ztdpu.model.flow import Protocol
from ztdpu.policy.cluster import Cluster

Address = IPv4Address | IPv6Address


def passes(cluster: Cluster, flow: tuple[Endpoint, Address, Endpoint, Address], word: str, port: int, *, audited: bool):
    """Whether a first packet passes both ends. `word`: TCP, UDP or ICMP. `audited`: as if audit mode were enforced."""
    source, own, target, other = flow
    judge = _Judge(cluster, word, port, target, audited=audited)
    return (
        judge.exists(source, target)
        and judge.allows("egress", source, target, other)
        and judge.allows("ingress", target, source, own)
    )


class _Judge:
    def __init__(self, cluster: Cluster, word: str, port: int, target: Endpoint, *, audited: bool) -> None:
        self.cluster, self.word, self.port, self.target, self.audited = cluster, word, port, target, audited

    def exists(self, one: Endpoint, other: Endpoint) -> bool:
        return one.tenant == other.tenant or any(self.joins(name, one, other) for name in self.cluster.peerings)

    def joins(self, peering: str, one: Endpoint, other: Endpoint) -> bool:
        sides = {side.tenant: side.endpoint_selector for side in self.cluster.peerings[peering].spec.members}
        return one.tenant != other.tenant and all(
            end.tenant in sides and meets(sides[end.tenant], end.labels) for end in (one, other)
        )

    def allows(self, way: str, endpoint: Endpoint, peer: Endpoint, address: Address) -> bool:
        above = self.cluster_wide("Admin", way, endpoint, peer, address)
        if above is not None:
            return above
        last_word = False
        for policy in self.cluster.network_policies.values():
            spec = policy.spec
            if (
                spec.tenant != endpoint.tenant
                or not self.counts(spec)
                or not meets(spec.endpoint_selector, endpoint.labels)
            ):
                continue
            types = spec.policy_types or ["Ingress", *(["Egress"] if spec.egress else [])]
            last_word = last_word or way.capitalize() in types
            for rule in spec.ingress if way == "ingress" else spec.egress:
                peers = rule.from_ if way == "ingress" else rule.to
                if self.tenant_peer(peers, endpoint, peer, address) and self.fits(rule.ports):
                    return True
        return False if last_word else bool(self.cluster_wide("Baseline", way, endpoint, peer, address))

    def tenant_peer(self, peers: Any, endpoint: Endpoint, peer: Endpoint, address: Address) -> bool:
        if peers is None:
            return peer.tenant == endpoint.tenant
        for one in peers:
            if one.ip_block is not None:
                inside = address in one.ip_block.cidr and not any(address in hole for hole in one.ip_block.except_)
                found = inside and peer.tenant == endpoint.tenant
            elif one.peering is not None:
                found = self.joins(one.peering, endpoint, peer)
            else:
                found = peer.tenant == endpoint.tenant
            if found and (one.endpoint_selector is None or meets(one.endpoint_selector, peer.labels)):
                return True
        return False

    def cluster_wide(self, tier: str, way: str, endpoint: Endpoint, peer: Endpoint, address: Address) -> bool | None:
        """None: nobody decided, or a Pass handed it on."""
        policies = [one.spec for one in self.cluster.cluster_network_policies.values() if one.spec.tier == tier]
        for spec in sorted(policies, key=lambda one: one.priority):
            if not self.counts(spec) or not self.is_subject(spec.subject, endpoint):
                continue
            for rule in spec.ingress if way == "ingress" else spec.egress:
                peers = rule.from_ if way == "ingress" else rule.to
                if any(self.is_cluster_peer(one, peer, address) for one in peers) and self.fits(rule.ports):
                    return {"Accept": True, "Deny": False, "Pass": None}[rule.action]
        return None

    def is_cluster_peer(self, one: Any, peer: Endpoint, address: Address) -> bool:
        blocks = getattr(one, "networks", None)
        return any(address in block for block in blocks) if blocks else self.is_subject(one, peer)

    def is_subject(self, subject: Any, endpoint: Endpoint) -> bool:
        labels = {**self.cluster.tenants[endpoint.tenant].metadata.labels, "ztdpu.dev/name": endpoint.tenant}
        if subject.tenants is not None:
            return meets(subject.tenants, labels)
        both = subject.endpoints
        return (
            both is not None and meets(both.tenant_selector, labels) and meets(both.endpoint_selector, endpoint.labels)
        )

    def counts(self, spec: Any) -> bool:
        return self.audited or spec.mode == "enforce"

    def fits(self, ports: Any) -> bool:
        return ports is None or any(self.fits_one(one) for one in ports)

    def fits_one(self, one: Any) -> bool:
        if one.protocol != self.word:
            return False
        if one.port is None:
            return True
        if isinstance(one.port, int):
            return one.port <= self.port <= (one.end_port or one.port)
        return self.port == (1000 if one.port == "collective" else self.target.ports.get((one.port, self.word)))


def meets(selector: Any, labels: Any) -> bool:
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        {
            "In": labels.get(one.key) in one.values,
            "NotIn": labels.get(one.key) not in one.values,
            "Exists": one.key in labels,
            "DoesNotExist": one.key not in labels,
        }[one.operator]
        for one in selector.match_expressions
    )


WORDS = {Protocol.TCP: "TCP", Protocol.UDP: "UDP", Protocol.ICMP: "ICMP", Protocol.ICMPV6: "ICMP"}
