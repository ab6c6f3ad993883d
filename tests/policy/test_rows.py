"""Semantics of the kinds about traffic, line by line: real packets at the fence, and `explain` beside them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.policy.worlds import Fabric, make_cluster
from ztdpu.model.flow import Protocol
from ztdpu.model.verdict import Verdict
from ztdpu.packet.tables import encode_tables
from ztdpu.policy.cluster import Cluster
from ztdpu.policy.compile import Compiler, assumed_networks
from ztdpu.policy.explain import Explainer, parse_port

ALL: dict[str, Any] = {"tenants": {}}
HOSTS = {"a0": "10.0.1.1", "a1": "10.0.1.2", "b0": "10.0.2.1", "b1": "10.0.2.2", "c0": "10.0.1.1", "c1": "10.0.1.2"}


def world(*policies: tuple[str, dict[str, Any]], peering: bool = False, b0_is_member: bool = True) -> Cluster:
    """a0 and b0 and c0 on d0, the others on d1; a and b may be joined (b1 always, b0 on demand)."""
    documents: list[tuple[str, str, dict[str, str], dict[str, Any]]] = [
        ("Device", f"d{i}", {}, {"profile": "bluefield-3", "underlay": {"address": f"192.0.2.{i + 1}"}}) for i in (0, 1)
    ]
    for tenant in "abc":
        spec: dict[str, Any] = {"ports": [{"name": "web", "port": 80}]}
        if peering and tenant in "ab":
            spec["peerings"] = ["a-b"]
        documents.append(("Tenant", tenant, {"team": tenant}, spec))
    for name, address in HOSTS.items():
        spec = {"tenant": name[0], "device": f"d{name[1]}", "addresses": [address]}
        if name == "a1":
            spec["ports"] = [{"name": "web", "port": 8080}]
        documents.append(("Endpoint", name, {"role": "first" if name[1] == "0" else "second"}, spec))
    if peering:
        side_b = {} if b0_is_member else {"matchLabels": {"role": "second"}}
        members = [{"tenant": "a", "endpointSelector": {}}, {"tenant": "b", "endpointSelector": side_b}]
        documents.append(("Peering", "a-b", {}, {"members": members}))
    documents += [(kind, f"p{index}", {}, spec) for index, (kind, spec) in enumerate(policies)]
    return make_cluster(documents)


def np(tenant: str = "a", **spec: Any) -> tuple[str, dict[str, Any]]:
    return "NetworkPolicy", {"tenant": tenant, "endpointSelector": {}, **spec}


def cnp(tier: str, priority: int, **spec: Any) -> tuple[str, dict[str, Any]]:
    return "ClusterNetworkPolicy", {"tier": tier, "priority": priority, "subject": ALL, **spec}


def act(action: str, *ports: int, key: str = "from") -> dict[str, Any]:
    rule: dict[str, Any] = {"action": action, key: [ALL]}
    return rule | ({"ports": [{"port": port} for port in ports]} if ports else {})


OPEN = np(ingress=[{}], egress=[{}])
OUT = np(policyTypes=["Egress"], egress=[{}])
"""a may send anything; what may come in is for others to say."""

TABLE = {
    "no policy, no flow": ([], "a0 a1 80/tcp", "no_rule"),
    "rules of a NetworkPolicy": ([OPEN], "a0 a1 80/tcp", "rule_allowed"),
    "both ends must allow": ([np(ingress=[{}])], "a0 a1 80/tcp", "no_rule"),
    "Admin denies what a tenant allows": ([OPEN, cnp("Admin", 5, ingress=[act("Deny", 80)])], "a0 a1 80/tcp", "rule_denied"),
    "Admin denies nothing else": ([OPEN, cnp("Admin", 5, ingress=[act("Deny", 80)])], "a0 a1 81/tcp", "rule_allowed"),
    "Admin accepts what no tenant allows": ([OUT, cnp("Admin", 5, ingress=[act("Accept", 80)])], "a0 a1 80/tcp", "rule_allowed"),
    "the lower priority decides": (
        [OPEN, cnp("Admin", 5, ingress=[act("Deny")]), cnp("Admin", 4, ingress=[act("Accept", 80)])], "a0 a1 80/tcp", "rule_allowed",
    ),
    "order within a policy decides": ([OPEN, cnp("Admin", 5, ingress=[act("Deny", 80), act("Accept")])], "a0 a1 80/tcp", "rule_denied"),
    "Pass leaves it to the tenant": (
        [OPEN, cnp("Admin", 5, ingress=[act("Pass", 80), act("Deny")])], "a0 a1 80/tcp", "rule_allowed",
    ),
    "Pass skips later policies of the tier": (
        [OPEN, cnp("Admin", 5, ingress=[act("Pass", 80)]), cnp("Admin", 6, ingress=[act("Deny")])], "a0 a1 80/tcp", "rule_allowed",
    ),
    "Pass to a tenant that says nothing": ([OUT, cnp("Admin", 5, ingress=[act("Pass", 80), act("Accept")])], "a0 a1 80/tcp", "no_rule"),
    "Baseline where no tenant speaks": ([OUT, cnp("Baseline", 5, ingress=[act("Accept", 80)])], "a0 a1 80/tcp", "rule_allowed"),
    "a tenant has the last word over Baseline": (
        [OUT, np(ingress=[{"ports": [{"port": 81}]}]), cnp("Baseline", 5, ingress=[act("Accept", 80)])], "a0 a1 80/tcp", "no_rule",
    ),
    "an empty policyTypes direction decides too": (
        [OUT, np(policyTypes=["Ingress"]), cnp("Baseline", 5, ingress=[act("Accept", 80)])], "a0 a1 80/tcp", "no_rule",
    ),
    "ingress alone leaves egress to Baseline": (
        [np(ingress=[{}]), cnp("Baseline", 5, egress=[act("Accept", 80, key="to")])], "a0 a1 80/tcp", "rule_allowed",
    ),
    "Baseline denies": ([OUT, cnp("Baseline", 5, ingress=[act("Deny")])], "a0 a1 80/tcp", "rule_denied"),
    "Pass out of Baseline is default deny": ([OUT, cnp("Baseline", 5, ingress=[act("Pass"), act("Accept")])], "a0 a1 80/tcp", "no_rule"),
    "subjects by label of the tenant": (
        [OPEN, cnp("Admin", 5, subject={"tenants": {"matchLabels": {"team": "b"}}}, ingress=[act("Deny")])], "a0 a1 80/tcp", "rule_allowed",
    ),
    "a tenant's name is a label": (
        [OPEN, cnp("Admin", 5, subject={"tenants": {"matchLabels": {"ztdpu.dev/name": "a"}}}, ingress=[act("Deny")])],
        "a0 a1 80/tcp", "rule_denied",
    ),
    "a named port is the destination's": ([np(ingress=[{"ports": [{"port": "web"}]}], egress=[{}])], "a0 a1 8080/tcp", "rule_allowed"),
    "and not the tenant's, where it has its own": ([np(ingress=[{"ports": [{"port": "web"}]}], egress=[{}])], "a0 a1 80/tcp", "no_rule"),
    "egress looks a name up at each destination": ([np(ingress=[{}], egress=[{"ports": [{"port": "web"}]}])], "a0 a1 8080/tcp", "rule_allowed"),
    "egress to one that calls it otherwise": ([np(ingress=[{}], egress=[{"ports": [{"port": "web"}]}])], "a1 a0 8080/tcp", "no_rule"),
    "collective is TCP 1000": ([np(ingress=[{"ports": [{"port": "collective"}]}], egress=[{}])], "a0 a1 1000/tcp", "rule_allowed"),
    "a hole in a block": (
        [np(ingress=[{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.1.1/32"]}}]}], egress=[{}])], "a0 a1 80/tcp", "no_rule",
    ),
    "and beside the hole": (
        [np(ingress=[{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.1.1/32"]}}]}], egress=[{}])], "a1 a0 80/tcp", "rule_allowed",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("policies", "question", "reason"), TABLE.values(), ids=TABLE.keys())
def test_semantics(policies: list[tuple[str, dict[str, Any]]], question: str, reason: str) -> None:
    check(world(*policies), question, reason)


def check(cluster: Cluster, question: str, reason: str) -> None:
    source, target, port_text = question.split()
    protocol, port = parse_port(port_text)
    own, other = (cluster.endpoints[name].addresses[0].packed for name in (source, target))
    outcome, _ = Fabric(cluster).send(source, own, other, protocol, port)
    assert outcome.reason == reason
    answer = Explainer(cluster).explain(source=source, destination=HOSTS[target], protocol=protocol, port=port)
    assert (answer.verdict, answer.reason) == (outcome.verdict, outcome.reason), answer


# --- Peerings -----------------------------------------------------------------------------------

ACROSS = (
    np("a", egress=[{"to": [{"peering": "a-b"}], "ports": [{"port": 80}]}]),
    np("b", ingress=[{"from": [{"peering": "a-b"}], "ports": [{"port": "web"}]}]),
)


def test_a_peering_opens_nothing_by_itself() -> None:
    check(world(peering=True), "a0 b1 80/tcp", "no_rule")


def test_everything_in_the_own_network_is_not_the_partner() -> None:
    everything = [{"ipBlock": {"cidr": "0.0.0.0/0"}}, {"endpointSelector": {}}]
    wide = np("a", ingress=[{}, {"from": everything}], egress=[{}, {"to": everything}])
    into = np("b", ingress=[{}, {"from": everything}], egress=[{}])
    check(world(wide, into, peering=True), "a0 b1 80/tcp", "no_rule")
    check(world(wide, into, peering=True), "a0 a1 80/tcp", "rule_allowed")


@pytest.mark.parametrize("target", ["b0", "b1"], ids=["on the same device", "on another"])
def test_both_tenants_rules_open_it(target: str) -> None:
    cluster = world(*ACROSS, peering=True)
    check(cluster, f"a0 {target} 80/tcp", "rule_allowed")
    check(cluster, f"a0 {target} 81/tcp", "no_rule")
    check(cluster, f"{target} a0 80/tcp", "no_rule")
    check(world(*ACROSS[:1], peering=True), f"a0 {target} 80/tcp", "no_rule")


def test_who_is_left_out_does_not_exist() -> None:
    cluster = world(*ACROSS, peering=True, b0_is_member=False)
    check(cluster, "a0 b1 80/tcp", "rule_allowed")
    answer = Explainer(cluster).explain(source="a0", destination="b0", protocol=Protocol.TCP, port=80)
    assert answer.reason == "no_route"
    assert "Peering a-b does not select b0" in answer.steps[-1].text


def test_cluster_policies_speak_of_partners_too() -> None:
    denied = cnp("Admin", 1, ingress=[{"action": "Deny", "from": [{"tenants": {"matchLabels": {"team": "a"}}}]}])
    check(world(*ACROSS, denied, peering=True), "a0 b1 80/tcp", "rule_denied")
    spared = cnp("Admin", 1, ingress=[{"action": "Deny", "from": [{"tenants": {"matchLabels": {"team": "c"}}}]}])
    check(world(*ACROSS, spared, peering=True), "a0 b1 80/tcp", "rule_allowed")


def test_own_tenant_traffic_never_rides_on_a_peering() -> None:
    cluster = world(OPEN, *ACROSS, peering=True)
    compiler = Compiler(cluster, assumed_networks(cluster))
    tables, _ = compiler.tables("d0")
    names = {network.network_id: network.tenant for network in tables.networks}
    fabric = Fabric(cluster)
    wall = fabric._walls["d0"]
    fence = wall._fences[cluster.endpoints["a0"].endpoint_id]
    through = {name: names[fence.ways[cluster.endpoints[name].addresses[0].packed].network_id] for name in ("a1", "b1")}
    assert through == {"a1": "a", "b1": "a-b"}


# --- audit mode ---------------------------------------------------------------------------------

AUDITS = {
    "would close": ([OPEN, cnp("Admin", 1, mode="audit", ingress=[act("Deny", 80)])], "rule_allowed", "audit_would_drop"),
    "would open": ([OUT, np(mode="audit", ingress=[{}])], "no_rule", "audit_would_allow"),
    "would isolate": (
        [OUT, cnp("Baseline", 1, ingress=[act("Accept")]), np(mode="audit", ingress=[{"ports": [{"port": 81}]}])],
        "rule_allowed", "audit_would_drop",
    ),
    "would change nothing": ([OPEN, np(mode="audit", ingress=[{"ports": [{"port": 80}]}])], "rule_allowed", "rule_allowed"),
    "would pass on": ([OUT, cnp("Admin", 1, mode="audit", ingress=[act("Pass")])], "no_rule", "no_rule"),
}  # fmt: skip


@pytest.mark.parametrize(("policies", "without", "reason"), AUDITS.values(), ids=AUDITS.keys())
def test_audit_mode_neither_opens_nor_closes(
    policies: list[tuple[str, dict[str, Any]]], without: str, reason: str
) -> None:
    check(world(*policies), "a0 a1 80/tcp", reason)
    enforced = [(kind, spec) for kind, spec in policies if spec.get("mode") != "audit"]
    check(world(*enforced), "a0 a1 80/tcp", without)


def test_the_rows_that_decide_are_those_without_audited_policies() -> None:
    policies = [OPEN, cnp("Admin", 1, mode="audit", ingress=[act("Deny")]), np("b", mode="audit", egress=[{}])]
    audited, enforced = world(*policies), world(OPEN)

    def rows(cluster: Cluster) -> list[tuple[object, ...]]:
        compiler = Compiler(cluster, assumed_networks(cluster))
        found = []
        for device in cluster.devices:
            tables, _ = compiler.tables(device)
            encode_tables(tables)
            for endpoint in tables.endpoints:
                plain = [
                    (r.direction, r.verdict, r.protocol, r.port_first, r.port_last, r.peers) for r in endpoint.rules
                ]
                found.append((endpoint.name, plain))
        return found

    assert rows(audited) == rows(enforced)
    fabric = Fabric(audited)
    outcome, holder = fabric.send("a0", bytes((10, 0, 1, 1)), bytes((10, 0, 1, 2)), 6, 80)
    assert (outcome.verdict, holder) == (Verdict.AUDIT, "a1"), "it arrives"
