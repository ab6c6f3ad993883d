"""How a lab stands: processes from /proc, devices from control. Called by `ztdpu lab status` and the demo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ztdpu.errors import ZtdpuError
from ztdpu.lab import processes
from ztdpu.lab.record import LabRecord
from ztdpu.model.device import DeviceStatus

ROLES: Final = {"agent run": "agent", "ztdpu.agent.worker": "worker", "ztdpu.agent.root_of_trust": "root_of_trust"}
"""Words in a command line -> what that process is."""
ISOLATION: Final = "full"
"""Every device and endpoint has user, network, mount and pid namespaces and a uid range of its own."""
FABRIC: Final = "netns"


def describe_lab(record: LabRecord) -> dict[str, Any]:
    """Return the whole lab as one document; control being away makes devices not ready, it is no error."""
    plan = record.plan
    standing, trouble = _ask_control(record)
    alive = {name: processes.is_alive(process) for name, process in record.processes.items()}
    devices = [
        {
            "name": device.name,
            "namespace": plan.namespace(device.name),
            "pid": _pid(record, device.name, alive),
            **_roles(record, device.name, alive),
            **_standing(standing.get(device.name)),
            "underlay_address": device.underlay_address,
            "oob_address": device.oob_address,
            "uid_base": device.uid_base,
            "log": str(plan.paths.agent_log(device.name)),
        }
        for device in plan.devices
    ]
    ready = {device["name"]: device["ready"] for device in devices}
    endpoints = [
        {
            "name": endpoint.name,
            "tenant": endpoint.tenant,
            "device": endpoint.device,
            "namespace": plan.namespace(endpoint.name),
            "pid": _pid(record, endpoint.name, alive),
            "ready": bool(ready.get(endpoint.device)) and alive.get(endpoint.name, False),
            "addresses": list(endpoint.addresses),
            "mtu_octets": endpoint.mtu_octets,
            "uid_base": endpoint.uid_base,
        }
        for endpoint in plan.endpoints
    ]
    return {
        "state": plan.state,
        "prefix": plan.prefix,
        "isolation": ISOLATION,
        "fabric": FABRIC,
        "mtu_octets": plan.mtu_octets,
        "policy": plan.policy,
        "ready": bool(devices) and all(ready.values()),
        "control": {
            "pid": _pid(record, "control", alive),
            "answers": not trouble,
            "trouble": trouble,
            "admin_socket": str(plan.paths.admin_socket),
            "log": str(plan.paths.control_log),
        },
        "factory": {"pid": _pid(record, "factory", alive), "log": str(plan.paths.factory_log)},
        "devices": devices,
        "endpoints": endpoints,
    }


def _ask_control(record: LabRecord) -> tuple[Mapping[str, DeviceStatus], str]:
    from ztdpu.rpc.client import ControlClient

    try:
        with ControlClient.connect(f"unix:{record.plan.paths.admin_socket}") as client:
            return {status.name: status for status in client.list_devices()}, ""
    except ZtdpuError as error:
        return {}, str(error)


def _pid(record: LabRecord, name: str, alive: Mapping[str, bool]) -> int | None:
    return record.processes[name].pid if alive.get(name) else None


def _roles(record: LabRecord, device: str, alive: Mapping[str, bool]) -> dict[str, int | None]:
    found: dict[str, int | None] = {f"{role}_pid": None for role in ROLES.values()}
    if not alive.get(device):
        return found
    for pid in processes.find_in_namespace(record.processes[device].pid):
        words = " ".join(processes.command_line(pid))
        for mark, role in ROLES.items():
            if mark in words and found[f"{role}_pid"] is None:
                found[f"{role}_pid"] = pid
    return found


def _standing(status: DeviceStatus | None) -> dict[str, Any]:
    if status is None:
        return {"state": "unknown", "tier": "none", "ready": False, "lease_s": 0.0, "waiting_for": "control"}
    return {
        "state": str(status.state),
        "tier": status.tier,
        "ready": status.ready,
        "lease_s": round(status.lease_s, 1),
        "waiting_for": status.waiting_for,
    }
