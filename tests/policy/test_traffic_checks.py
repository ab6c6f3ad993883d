"""Policies about traffic that speak of what is not there, or of what could not be enforced: refused, with the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from ztdpu.errors import PolicyRefusedError
from ztdpu.policy.load import load_directory

BASE = """\
apiVersion: ztdpu.dev/v1
kind: Device
metadata: {name: dpu-0}
spec: {profile: bluefield-3, underlay: {address: 10.90.0.10}}
---
apiVersion: ztdpu.dev/v1
kind: Tenant
metadata: {name: blue}
spec: {peerings: [blue-green], ports: [{name: web, port: 80}]}
---
apiVersion: ztdpu.dev/v1
kind: Tenant
metadata: {name: green}
spec: {peerings: [blue-green]}
---
apiVersion: ztdpu.dev/v1
kind: Tenant
metadata: {name: red}
---
apiVersion: ztdpu.dev/v1
kind: Endpoint
metadata: {name: blue-0}
spec: {tenant: blue, device: dpu-0, addresses: [10.1.0.10]}
---
apiVersion: ztdpu.dev/v1
kind: Endpoint
metadata: {name: green-0}
spec: {tenant: green, device: dpu-0, addresses: [10.2.0.10], ports: [{name: nfs, port: 2049}]}
---
apiVersion: ztdpu.dev/v1
kind: Peering
metadata: {name: blue-green}
spec: {members: [{tenant: blue, endpointSelector: {}}, {tenant: green, endpointSelector: {}}]}
---
apiVersion: ztdpu.dev/v1
kind: NetworkPolicy
metadata: {name: out}
spec: {tenant: blue, endpointSelector: {}, egress: [{to: [{peering: blue-green}], ports: [{port: nfs}]}]}
---
apiVersion: ztdpu.dev/v1
kind: ClusterNetworkPolicy
metadata: {name: first}
spec: {tier: Admin, priority: 1, subject: {tenants: {}}}
---
apiVersion: ztdpu.dev/v1
kind: ClusterNetworkPolicy
metadata: {name: second}
spec: {tier: Admin, priority: 2, subject: {tenants: {}}}
---
apiVersion: ztdpu.dev/v1
kind: PolicyTest
metadata: {name: must}
spec:
  flows: [{from: blue-0, to: green-0, port: 2049/tcp, expect: allow}]
  pairs: [{from: {tenant: red}, to: {notTenant: red}, expect: drop}]
"""

REFUSED = {
    "a Peering that one side does not name": ("{name: green}\nspec: {peerings: [blue-green]}", "{name: green}", "'green' does not name this Peering"),
    "a Peering with itself": ("{tenant: green, endpointSelector: {}}]", "{tenant: blue, endpointSelector: {}}]", "two different tenants"),
    "a Peering of three": ("{tenant: green, endpointSelector: {}}]", "{tenant: green, endpointSelector: {}}, {tenant: red, endpointSelector: {}}]", "at most 2"),
    "a Peering named by a stranger": ("{name: red}", "{name: red}\nspec: {peerings: [blue-green]}", "is between blue and green"),
    "a Peering called as a tenant": ("metadata: {name: red}", "metadata: {name: blue-green}", "is a tenant already"),
    "a Peering that is not there": ("peering: blue-green}]", "peering: blue-gren}]", "no Peering 'blue-gren'; did you mean 'blue-green'?"),
    "a rule about somebody else's Peering": ("spec: {tenant: blue, endpointSelector: {}, egress", "spec: {tenant: red, endpointSelector: {}, egress", "between blue and green, not red"),
    "overlapping addresses": ("[10.2.0.10]", "[10.1.0.10]", "10.1.0.10 is green-0 of green and blue-0 of blue (at "),
    "a block and a Peering": ("{peering: blue-green}]", "{peering: blue-green, ipBlock: {cidr: 10.0.0.0/8}}]", "ipBlock is about the own network"),
    "an unknown port name": ("{port: nfs}]}]", "{port: nsf}]}]", "no endpoint has a TCP port named 'nsf'; did you mean 'nfs'?"),
    "a port name of another protocol": ("{port: nfs}]}]", "{port: nfs, protocol: UDP}]}]", "no endpoint has a UDP port named 'nfs'"),
    "a port name for a block": ("to: [{peering: blue-green}]", "to: [{peering: blue-green}, {ipBlock: {cidr: 10.0.0.0/8}}]", "addresses (to.1.ipBlock) have no port names"),
    "a range from a name": ("{port: nfs}]}]", "{port: nfs, endPort: 3000}]}]", "endPort wants a number"),
    "collective over UDP": ("{port: nfs}]}]", "{port: collective, protocol: UDP}]}]", "is TCP"),
    "the reserved name": ("{name: nfs, port: 2049}", "{name: collective, port: 2049}", "reserved"),
    "a name twice": ("{name: nfs, port: 2049}", "{name: nfs, port: 2049}, {name: nfs, port: 2050}", "is there twice for TCP"),
    "rules that policyTypes leaves out": ("endpointSelector: {}, egress", "endpointSelector: {}, policyTypes: [Ingress], egress", "would never be asked"),
    "a priority twice": ("priority: 2", "priority: 1", "1 is taken in tier Admin by 'first'"),
    "a priority out of bounds": ("priority: 2", "priority: 1001", "less than or equal to 1000"),
    "no action": ("priority: 2,", "priority: 2, ingress: [{from: [{tenants: {}}]}],", "action: is missing"),
    "a rule without peers": ("priority: 2,", "priority: 2, ingress: [{action: Deny, from: []}],", "at least 1 item"),
    "a NetworkPolicy's rule for nobody": ("to: [{peering: blue-green}]", "to: []", "at least 1 item"),
    "a NetworkPolicy's rule for no port": ("ports: [{port: nfs}]}]", "ports: []}]", "at least 1 item"),
    "IPv4 in IPv6, which no endpoint has": ("to: [{peering: blue-green}]", "to: [{peering: blue-green}, {ipBlock: {cidr: '::ffff:10.0.0.0/104'}}]", "write the IPv4 block"),
    "a label key that is none": ("to: [{peering: blue-green}]", "to: [{endpointSelector: {matchExpressions: [{key: a b, operator: Exists}]}}]", "'a b' is not a label key"),
    "a rule's name that moves the cursor": ("priority: 2,", 'priority: 2, ingress: [{name: "\\e[2J", action: Deny, from: [{tenants: {}}]}],', "printable"),
    "networks for ingress": ("priority: 2,", "priority: 2, ingress: [{action: Deny, from: [{networks: [10.0.0.0/8]}]}],", "unknown field"),
    "an odd mode": ("priority: 2,", "priority: 2, mode: log,", "'enforce' or 'audit'"),
    "a test of nobody": ("from: blue-0", "from: blue-9", "no Endpoint 'blue-9'; did you mean 'blue-0'?"),
    "a test of no tenant": ("notTenant: red", "notTenant: pink", "no Tenant 'pink'"),
    "a test of no port": ("port: 2049/tcp", "port: nfs", "write 22/tcp"),
    "a test of nothing": ("  flows: [{from: blue-0, to: green-0, port: 2049/tcp, expect: allow}]\n  pairs: [{from: {tenant: red}, to: {notTenant: red}, expect: drop}]", "  {}", "tests nothing"),
}  # fmt: skip


def test_the_base_is_good(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(BASE)
    cluster = load_directory(tmp_path)
    assert cluster.networks_on("dpu-0") == ("blue", "blue-green", "green")
    assert cluster.devices_in("blue-green") == {"dpu-0"}


@pytest.mark.parametrize(("old", "new", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_with_its_place(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert BASE.count(old) == 1, old
    (tmp_path / "base.yaml").write_text(BASE.replace(old, new))
    with pytest.raises(PolicyRefusedError) as refusal:
        load_directory(tmp_path)
    faults = [fault for fault in refusal.value.faults if words in fault.message]
    assert faults, [str(fault) for fault in refusal.value.faults]
    assert faults[0].where is not None
    assert faults[0].where.line > 1
