"""Section policy: files to tables for small and large clusters, and what the worker does with them.

Documents are written into a temporary directory and read as control reads them.
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
from ztdpu.policy.compile import compile_tables
from ztdpu.policy.example import EXAMPLE_POLICIES
from ztdpu.policy.explain import assumed_networks
from ztdpu.policy.load import load_directory

DEVICES: Final = (2, 64)
MANY_RULES: Final = 10_000
_PORTS_PER_POLICY: Final = 50

_Made = TypeVar("_Made")


def measure(*, runs: int) -> dict[str, Any]:
    """Load and compile each cluster `runs` times."""
    cases = [(f"{count} devices", example_documents(count)) for count in DEVICES]
    cases.append((f"2 devices, {MANY_RULES:,} rules on each", many_rules_documents(MANY_RULES)))
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


def _row(name: str, texts: dict[str, str], runs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ztdpu-bench-") as directory:
        for file, text in texts.items():
            Path(directory, file).write_text(text)
        cluster, load = _timed(lambda: load_directory(directory), runs)
    networks = assumed_networks(cluster)
    first = next(iter(cluster.devices))
    compiled, one = _timed(lambda: compile_tables(cluster, first, networks), runs)
    _, every = _timed(lambda: [compile_tables(cluster, device, networks) for device in cluster.devices], runs)
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
        "decode_ms": decode,
        "build_firewall_ms": build,
        "swap_same_ms": swap,
    }


def _timed(make: Callable[[], _Made], runs: int) -> tuple[_Made, dict[str, Any]]:
    costs = []
    for _ in range(max(runs, 1)):
        start = time.perf_counter()
        made = make()
        costs.append((time.perf_counter() - start) * 1e3)
    return made, spread(costs)
