"""Random documents: what they say, by a second reading of them, is what happens to packets, and what `reach` says.

Dense worlds: a chain of Peerings a-b, b-d beside c, which has the addresses of a; both families; every peer, port and
action that documents know, at both ends of every range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address
from random import Random
from typing import Any

import pytest

from tests.policy.oracle import WORDS, passes
from tests.policy.worlds import Fabric, make_cluster, questions, text
from ztdpu.model.flow import Protocol
from ztdpu.model.verdict import Reason
from ztdpu.policy.cluster import Cluster
from ztdpu.policy.prove import prove
from ztdpu.policy.reach import build_world

PREFIXES = {"a": 1, "b": 2, "c": 1, "d": 3}
PEERINGS = {"a": ["a-b"], "b": ["a-b", "b-d"], "c": [], "d": ["b-d"]}
PORTS = (1, 2, 3, 4, 5, 6, 1000, 65535)
SELECTORS = (
    {}, {}, {"matchLabels": {"role": "x"}}, {"matchLabels": {"role": "y"}},
    {"matchExpressions": [{"key": "role", "operator": "NotIn", "values": ["x"]}]},
    {"matchExpressions": [{"key": "role", "operator": "Exists"}]},
)  # fmt: skip
BLOCKS = (
    {"cidr": "0.0.0.0/0"}, {"cidr": "::/0", "except": ["fd00::1:2/127", "fd00::3:0/112"]},
    {"cidr": "10.0.0.0/16", "except": ["10.0.1.2/32", "10.0.2.0/31"]}, {"cidr": "fd00::2:0/111"},
    {"cidr": "10.0.2.1/32"},
)  # fmt: skip
PORT_LISTS: tuple[list[dict[str, Any]] | None, ...] = (
    None, [{"port": 2, "endPort": 4}], [{"port": "web"}], [{"protocol": "UDP", "port": 3}, {"protocol": "ICMP"}],
    [{"port": "collective"}, {"port": 65535}], [{"protocol": "UDP"}], [{"port": "web"}, {"protocol": "UDP", "port": 5}],
)  # fmt: skip
TENANTS = ({}, {"matchLabels": {"team": "one"}}, {"matchLabels": {"ztdpu.dev/name": "b"}})


def without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def tenant_rule(random: Random, tenant: str, key: str) -> dict[str, Any]:
    kinds: list[Callable[[], dict[str, Any]]] = [
        lambda: {"endpointSelector": random.choice(SELECTORS)},
        lambda: {"ipBlock": random.choice(BLOCKS)},
    ]
    for name in PEERINGS[tenant]:
        kinds += 2 * [lambda name=name: {"peering": name, "endpointSelector": random.choice(SELECTORS)}]
    peers = None if random.random() < 0.3 else [random.choice(kinds)() for _ in range(random.randint(1, 2))]
    ports = random.choice(PORT_LISTS)
    if any("ipBlock" in one for one in peers or ()) and any(one.get("port") == "web" for one in ports or ()):
        ports = [{"port": 2, "endPort": 3}]  # addresses have no names of ports
    return without_none({key: peers, "ports": ports})


def cluster_rule(random: Random, key: str) -> dict[str, Any]:
    subject = {"tenants": random.choice(TENANTS)}
    if random.random() < 0.5:
        subject = {
            "endpoints": {"tenantSelector": random.choice(TENANTS), "endpointSelector": random.choice(SELECTORS)}
        }
    ports = random.choice(PORT_LISTS)
    if key == "to" and random.random() < 0.3:
        subject, ports = (
            {"networks": ["10.0.0.0/15", "fd00::1:0/112"]},
            random.choice((None, [{"port": 2, "endPort": 4}])),
        )
    action = random.choice(("Accept", "Deny", "Pass"))
    return without_none({"action": action, key: [subject], "ports": ports})


def dense(random: Random) -> Cluster:
    documents: list[tuple[str, str, dict[str, str], dict[str, Any]]] = [
        ("Device", f"d{i}", {}, {"profile": "bluefield-3", "underlay": {"address": f"192.0.2.{i + 1}"}}) for i in (0, 1)
    ]
    for tenant, number in PREFIXES.items():
        spec = {"ports": [{"name": "web", "port": 2}], "peerings": PEERINGS[tenant]}
        documents.append(("Tenant", tenant, {"team": "one"} if tenant in "ac" else {}, spec))
        for index in (1, 2):
            ports = [{"name": "web", "port": random.randint(1, 5)}] if random.random() < 0.5 else []
            end = {"tenant": tenant, "device": f"d{random.randint(0, 1)}", "ports": ports}
            end["addresses"] = [f"10.0.{number}.{index}", f"fd00::{number}:{index}"][: random.choice((1, 2, 2))]
            documents.append(("Endpoint", f"{tenant}{index}", random.choice(({"role": "x"}, {"role": "y"}, {})), end))
        for policy in range(random.randint(2, 5)):
            sides = random.choice(
                (("ingress", "egress"), ("ingress", "egress"), ("ingress", "egress"), ("ingress",), ("egress",), ())
            )
            keys = {"ingress": "from", "egress": "to"}
            spec = {side: [tenant_rule(random, tenant, keys[side]) for _ in range(3)] for side in sides}
            types = sorted({side.capitalize() for side in sides} | set(random.choice(((), ("Ingress",), ("Egress",)))))
            spec |= {"tenant": tenant, "endpointSelector": random.choice(SELECTORS)}
            spec |= {"mode": random.choice(("enforce", "enforce", "audit"))}
            documents.append(
                ("NetworkPolicy", f"{tenant}-{policy}", {}, spec | ({"policyTypes": types} if types else {}))
            )
    for name in ("a-b", "b-d"):
        members = [{"tenant": one, "endpointSelector": random.choice(SELECTORS)} for one in name.split("-")]
        documents.append(("Peering", name, {}, {"members": members}))
    for priority in range(random.randint(0, 4)):
        spec = {"tier": random.choice(("Admin", "Baseline")), "priority": 10 - priority}
        spec |= {"subject": {"tenants": random.choice(TENANTS)}, "mode": random.choice(("enforce", "enforce", "audit"))}
        spec["ingress"] = [cluster_rule(random, "from") for _ in range(random.randint(0, 2))]
        spec["egress"] = [cluster_rule(random, "to") for _ in range(random.randint(0, 2))]
        documents.append(("ClusterNetworkPolicy", f"q{priority}", {}, spec))
    return make_cluster(documents)


def ask(cluster: Cluster, random: Random, seen: Counter[tuple[str, bool]]) -> None:
    fabric, world = Fabric(cluster), build_world(cluster)
    proven = {(one.source_tenant, one.destination_tenant) for one in prove(world).witnesses}
    for source, target, own, other, protocol in questions(cluster):
        port = 0 if protocol in (Protocol.ICMP, Protocol.ICMPV6) else random.choice(PORTS)
        ends = cluster.endpoints[source], ip_address(own), cluster.endpoints[target], ip_address(other)
        wanted, shadow = (passes(cluster, ends, WORDS[protocol], port, audited=one) for one in (False, True))
        outcome, holder = fabric.send(source, own, other, protocol, port)
        if holder not in ("", target):
            continue  # the same address means somebody else from there
        said = f"{source} {text(own)} -> {target} {text(other)} {port}/{protocol.name}: {outcome}"
        assert (holder == target) == wanted, said
        if wanted:
            assert ends[0].tenant == ends[2].tenant or (ends[0].tenant, ends[2].tenant) in proven, said
            assert (outcome.reason is Reason.AUDIT_WOULD_DROP) == (not shadow), said
        flows = world.flows_between(world.places[source], world.places[target])
        there = [
            f.ports for f in flows if (f.source_address, f.destination_address, f.protocol) == (own, other, protocol)
        ]
        assert any(first <= port <= last for ranges in there for first, last in ranges) == wanted, said
        seen[str(outcome.reason), ends[0].tenant != ends[2].tenant] += 1


@pytest.mark.parametrize(
    "seeds", [range(100), pytest.param(range(100, 4000), marks=pytest.mark.soak)], ids=["", "soak"]
)
def test_packets_do_what_the_documents_say(seeds: range) -> None:
    seen: Counter[tuple[str, bool]] = Counter()
    for seed in seeds:
        random = Random(seed)
        try:
            ask(dense(random), random, seen)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert all(seen[kind] > 30 for kind in (("rule_allowed", False), ("rule_allowed", True))), seen
    assert seen["audit_would_drop", False] > 30, seen
    assert seen["audit_would_drop", True], seen
    assert seen["no_route", True] > 30, seen
    assert seen["rule_denied", False] > 30, seen
