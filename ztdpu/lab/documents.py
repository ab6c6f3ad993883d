"""Policy documents of a lab: read the directory, and add documents when more devices are wanted than it has.

Called by `cluster` before anything is made. A directory that suffices is used where it lies, so that edits
and `ztdpu policy sync` work; otherwise a copy with generated documents goes into the state directory.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any, Final

from ztdpu.errors import UsageError
from ztdpu.lab.layout import (
    DevicePlan,
    EndpointPlan,
    LabPlan,
    PeeringPlan,
    check_names,
    oob_address,
    uid_base,
)
from ztdpu.model.endpoint import Endpoint
from ztdpu.policy import example
from ztdpu.policy.cluster import Cluster
from ztdpu.policy.compile import Compiler
from ztdpu.policy.load import load_directory

MOST_DEVICES: Final = 64
EXAMPLE_POLICIES: Final = example.EXAMPLE_POLICIES
_GENERATED: Final = "generated.yaml"
Address = IPv4Address | IPv6Address


def plan_lab(
    *,
    state: Path,
    prefix: str,
    mtu_octets: int,
    policy: Path,
    devices: int | None,
    strangers: Iterable[str] = (),
    shared_uid: bool = False,
) -> LabPlan:
    """Return the plan for a lab; writes generated documents under `state` when the directory has too few devices.

    `strangers` are further devices without endpoints; with `shared_uid` nobody gets uids of its own.
    Raises PolicyRefusedError, UsageError.
    """
    cluster = load_directory(policy)
    wanted = len(cluster.devices) if devices is None else devices
    _check_count(cluster, wanted)
    extra = generate_documents(cluster, wanted, tuple(strangers))
    if extra:
        copied = state / "policy"
        shutil.copytree(policy, copied)
        (copied / _GENERATED).write_text("---\n".join(write_yaml(document) for document in extra))
        policy, cluster = copied, load_directory(copied)
    resolved = policy.resolve()
    return make_plan(cluster, state=state, prefix=prefix, mtu_octets=mtu_octets, policy=resolved, shared_uid=shared_uid)


def make_plan(
    cluster: Cluster, *, state: Path, prefix: str, mtu_octets: int, policy: Path, shared_uid: bool = False
) -> LabPlan:
    """Return names, addresses and uid ranges for everybody in the cluster. Pure."""
    check_names((*cluster.devices, *cluster.endpoints))

    def base(slot: int) -> int:
        return 0 if shared_uid else uid_base(str(state), prefix, slot)

    devices = tuple(
        DevicePlan(
            name=name,
            profile=document.spec.profile,
            underlay_address=str(document.spec.underlay.address),
            oob_address=oob_address(index),
            uid_base=base(index),
        )
        for index, (name, document) in enumerate(cluster.devices.items())
    )
    compiler = Compiler(cluster, {}, underlay_mtu_octets=mtu_octets)
    endpoints = tuple(
        EndpointPlan(
            name=endpoint.name,
            tenant=endpoint.tenant,
            device=endpoint.device,
            addresses=tuple(str(address) for address in endpoint.addresses),
            mtu_octets=compiler.mtu_octets(endpoint.tenant),
            endpoint_id=endpoint.endpoint_id.hex(),
            uid_base=base(len(devices) + index),
        )
        for index, endpoint in enumerate(cluster.endpoints.values())
    )
    return LabPlan(
        state=str(state),
        prefix=prefix,
        mtu_octets=mtu_octets,
        policy=str(policy),
        devices=devices,
        endpoints=endpoints,
        peerings=tuple(
            PeeringPlan(
                name=name, tenants=tuple(sides), members=tuple(one.name for side in sides.values() for one in side)
            )
            for name, sides in compiler.topology.members.items()
        ),
    )


def generate_documents(cluster: Cluster, wanted: int, strangers: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Return the documents that bring the cluster to `wanted` devices. Pure.

    Each new device hosts one more endpoint of every tenant that has endpoints on two devices or more.
    """
    documents: list[dict[str, Any]] = []
    profile = next(iter(cluster.devices.values())).spec.profile
    underlay: set[Address] = {document.spec.underlay.address for document in cluster.devices.values()}
    taken = {endpoint.name: endpoint for endpoint in cluster.endpoints.values()}
    names = set(cluster.devices)
    for index in range(len(cluster.devices), wanted):
        device = _free_name("dpu", index, names)
        documents.append(_device(device, profile, underlay))
        names.add(device)
        for tenant in cluster.tenants:
            own = [endpoint for endpoint in taken.values() if endpoint.tenant == tenant]
            if len({endpoint.device for endpoint in own}) < 2:
                continue
            endpoint = _next_endpoint(own, _free_name(tenant, index, set(taken)), device)
            taken[endpoint.name] = endpoint
            documents.append(_endpoint(endpoint))
    documents += [_device(name, profile, underlay) for name in strangers]
    return documents


def write_yaml(value: Mapping[str, Any], depth: int = 0) -> str:
    """Return a mapping as block YAML; texts are quoted, so every value reads back as what it was."""
    lines: list[str] = []
    for key, item in value.items():
        pad = "  " * depth
        if isinstance(item, Mapping):
            lines.append(f"{pad}{key}:" if item else f"{pad}{key}: {{}}")
            lines += write_yaml(item, depth + 1).splitlines()
        elif isinstance(item, (list, tuple)):
            lines.append(f"{pad}{key}: [{', '.join(_scalar(entry) for entry in item)}]")
        else:
            lines.append(f"{pad}{key}: {_scalar(item)}")
    return "\n".join(lines) + "\n"


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    text = str(value)
    return text if re.fullmatch(r"[A-Za-z/][A-Za-z0-9/._-]*", text) and text.lower() not in _WORDS else f'"{text}"'


_WORDS: Final = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def _check_count(cluster: Cluster, wanted: int) -> None:
    if not cluster.devices:
        raise UsageError("the policy directory has no Device document", remedy="add one, or leave --policy away")
    if not len(cluster.devices) <= wanted <= MOST_DEVICES:
        raise UsageError(
            f"{wanted} devices are wanted, the policy directory has {len(cluster.devices)}",
            remedy=f"ask for {len(cluster.devices)} to {MOST_DEVICES}; what is missing is generated",
        )


def _free_name(stem: str, index: int, taken: set[str]) -> str:
    while f"{stem}-{index}" in taken:
        index += 1
    return f"{stem}-{index}"


def _next_address(taken: set[Address]) -> Address:
    """Return the address after the highest of the first one's family, and take it."""
    first = min(taken, key=lambda address: address.version)
    highest = max((address for address in taken if address.version == first.version), key=int)
    following: Address = highest + 1
    taken.add(following)
    return following


def _next_endpoint(own: list[Endpoint], name: str, device: str) -> Endpoint:
    addresses: list[Address] = []
    for version in (4, 6):
        family = {address for endpoint in own for address in endpoint.addresses if address.version == version}
        if family:
            addresses.append(_next_address(family))
    return Endpoint(name=name, tenant=own[0].tenant, device=device, addresses=tuple(addresses), labels=own[0].labels)


def _device(name: str, profile: str, underlay: set[Address]) -> dict[str, Any]:
    spec = {"profile": profile, "underlay": {"address": str(_next_address(underlay))}}
    return {"apiVersion": "ztdpu.dev/v1", "kind": "Device", "metadata": {"name": name}, "spec": spec}


def _endpoint(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "apiVersion": "ztdpu.dev/v1",
        "kind": "Endpoint",
        "metadata": {"name": endpoint.name, "labels": dict(endpoint.labels)},
        "spec": {
            "tenant": endpoint.tenant,
            "device": endpoint.device,
            "addresses": [str(address) for address in endpoint.addresses],
        },
    }
