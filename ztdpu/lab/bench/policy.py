"""Section policy: files to tables for small and large clusters, what the worker does with them, how long people wait.

Documents are written into a temporary directory and read as control reads them. The last cluster is the one that
`policy test` and `policy diff` must get through in five seconds: 200 tenants, 1,000 endpoints, 10,000 rules.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from ztdpu.lab.bench.figures import spread
from ztdpu.lab.documents import generate_documents, write_yaml
from ztdpu.packet.firewall import Firewall
from ztdpu.packet.tables import decode_tables
from ztdpu.policy.cluster import Cluster
from ztdpu.policy.compile import Compiler, assumed_networks, compile_tables
from ztdpu.policy.diff import diff_worlds
from ztdpu.policy.example import EXAMPLE_POLICIES
from ztdpu.policy.load import load_directory, load_files
from ztdpu.policy.prove import prove
from ztdpu.policy.reach import build_world
from ztdpu.policy.tests import run_tests

DEVICES: Final = (2, 64)
MANY_RULES: Final = 10_000
_PORTS_PER_POLICY: Final = 50
TENANTS: Final = 200
ENDPOINTS_PER_TENANT: Final = 5
RULES_PER_TENANT: Final = 50
"""Half of them ingress, half egress."""
MANY_DEVICES: Final = 250

_Made = TypeVar("_Made")


def measure(*, runs: int) -> dict[str, Any]:
    """Load and compile each cluster `runs` times."""
    cases = [(f"{count} devices", example_documents(count)) for count in DEVICES]
    cases.append((f"2 devices, {MANY_RULES:,} rules on each", many_rules_documents(MANY_RULES)))
    cases.append((f"{TENANTS} tenants, {TENANTS * RULES_PER_TENANT:,} rules", many_tenants_documents()))
    return {"rows": [_row(name, texts, runs) for name, texts in cases]}


def example_documents(devices: int) -> dict[str, str]:
    """Return the example policies, grown to that many devices, as file name -> text."""
    texts = {
        str(path.relative_to(EXAMPLE_POLICIES)).replace("/", "-"): path.read_text()
        for path in sorted(EXAMPLE_POLICIES.rglob("*.yaml"))
    }
    extra = generate_documents(load_directory(EXAMPLE_POLICIES), devices)
    if extra:
        texts["generated.yaml"] = "---\n".join(write_yaml(document) for document in extra)
    return texts


def many_rules_documents(rules: int) -> dict[str, str]:
    """Return two devices with one endpoint each, and policies that come to that many rows for each endpoint."""
    head = "apiVersion: ztdpu.dev/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n"
    parts = [head.format(kind="Tenant", name="blue", spec="{}")]
    for number in range(2):
        device = f"{{profile: bluefield-3, underlay: {{address: 10.90.0.{10 + number}}}}}"
        parts.append(head.format(kind="Device", name=f"dpu-{number}", spec=device))
        endpoint = f"{{tenant: blue, device: dpu-{number}, addresses: [10.1.0.{10 + number}]}}"
        parts.append(head.format(kind="Endpoint", name=f"blue-{number}", spec=endpoint))
    for first in range(0, rules, _PORTS_PER_POLICY):
        ports = ", ".join(
            f"{{protocol: TCP, port: {1024 + number}}}"
            for number in range(first, min(first + _PORTS_PER_POLICY, rules))
        )
        ingress = f"[{{from: [{{endpointSelector: {{}}}}], ports: [{ports}]}}]"
        spec = f"{{tenant: blue, endpointSelector: {{}}, ingress: {ingress}}}"
        parts.append(head.format(kind="NetworkPolicy", name=f"ports-{first}", spec=spec))
    return {"cluster.yaml": "---\n".join(parts)}


def many_tenants_documents() -> dict[str, str]:
    """Return a large cluster: each tenant's endpoints on several devices, its rules in five policies, and a test."""
    head = "apiVersion: ztdpu.dev/v1\nkind: {kind}\nmetadata: {meta}\nspec: {spec}\n"
    devices = (
        head.format(
            kind="Device",
            meta=f"{{name: dpu-{number}}}",
            spec=f"{{profile: bluefield-3, underlay: {{address: 10.90.{number // 250}.{number % 250 + 1}}}}}",
        )
        for number in range(MANY_DEVICES)
    )
    texts = {"devices.yaml": "---\n".join(devices)}
    for tenant in range(TENANTS):
        parts = [head.format(kind="Tenant", meta=f"{{name: t{tenant}}}", spec="{}")]
        for rank in range(ENDPOINTS_PER_TENANT):
            device = (tenant * ENDPOINTS_PER_TENANT + rank) % MANY_DEVICES
            spec = f"{{tenant: t{tenant}, device: dpu-{device}, addresses: [10.1.0.{10 + rank}]}}"
            meta = f"{{name: t{tenant}-{rank}, labels: {{role: worker}}}}"
            parts.append(head.format(kind="Endpoint", meta=meta, spec=spec))
        parts += [_policy(head, tenant, number) for number in range(5)]
        spec = f"{{pairs: [{{from: {{tenant: t{tenant}}}, to: {{notTenant: t{tenant}}}, expect: drop}}]}}"
        parts.append(head.format(kind="PolicyTest", meta=f"{{name: t{tenant}}}", spec=spec))
        texts[f"tenant-{tenant}.yaml"] = "---\n".join(parts)
    return texts


def _policy(head: str, tenant: int, number: int) -> str:
    peers = "[{endpointSelector: {matchLabels: {role: worker}}}]"
    first = 1024 + 100 * number
    ports = [
        f"ports: [{{port: {first + 10 * index}, endPort: {first + 10 * index + 3}}}]"
        for index in range(RULES_PER_TENANT // 10)
    ]
    ingress = ", ".join(f"{{from: {peers}, {one}}}" for one in ports)
    egress = ", ".join(f"{{to: {peers}, {one}}}" for one in ports)
    spec = f"{{tenant: t{tenant}, endpointSelector: {{}}, ingress: [{ingress}], egress: [{egress}]}}"
    return head.format(kind="NetworkPolicy", meta=f"{{name: t{tenant}-p{number}}}", spec=spec)


def _row(name: str, texts: dict[str, str], runs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ztdpu-bench-") as directory:
        for file, text in texts.items():
            Path(directory, file).write_text(text)
        cluster, load = _timed(lambda: load_directory(directory), runs)
    networks = assumed_networks(cluster)
    first = next(iter(cluster.devices))
    compiled, one = _timed(lambda: compile_tables(cluster, first, networks), runs)
    _, every = _timed(lambda: [*map(Compiler(cluster, networks).compile, cluster.devices)], runs)
    world, judge = _timed(lambda: build_world(cluster), runs)
    _, test = _timed(lambda: run_tests(cluster, world=world), runs)
    other = changed_cluster(texts)
    changes, compare = _timed(lambda: diff_worlds(build_world(cluster), build_world(other)), runs)
    _, apart = _timed(lambda: prove(world), runs)
    tables, decode = _timed(lambda: decode_tables(compiled.blob), runs)
    wall, build = _timed(lambda: Firewall(tables), runs)
    _, swap = _timed(lambda: wall.swap(tables, 1.0), runs)
    return {
        "cluster": name,
        "devices": len(cluster.devices),
        "rules_on_first": sum(len(endpoint.rules) for endpoint in tables.endpoints),
        "blob_octets": len(compiled.blob),
        "load_ms": load,
        "compile_one_ms": one,
        "compile_all_ms": every,
        "world_ms": judge,
        "test_ms": test,
        "changes": len(changes),
        "diff_ms": compare,
        "prove_ms": apart,
        "decode_ms": decode,
        "build_firewall_ms": build,
        "swap_same_ms": swap,
    }


def changed_cluster(texts: dict[str, str]) -> Cluster:
    """Return the cluster of the same documents with one port range of each tenth file another, in both directions."""
    changed = {
        name: text.replace("endPort: 1027", "endPort: 1028") if number % 10 == 1 else text
        for number, (name, text) in enumerate(sorted(texts.items()))
    }
    return load_files({name: text.encode() for name, text in changed.items()}, origin="changed")


def _timed(make: Callable[[], _Made], runs: int) -> tuple[_Made, dict[str, Any]]:
    costs = []
    for _ in range(max(runs, 1)):
        start = time.perf_counter()
        made = make()
        costs.append((time.perf_counter() - start) * 1e3)
    return made, spread(costs)
