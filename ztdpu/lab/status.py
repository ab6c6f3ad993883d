"""How a lab stands: processes from /proc, devices from control, and what to do about what is dead.

Called by `ztdpu lab status` and the demo. What only control knows is None when control does not answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ztdpu.errors import ZtdpuError
from ztdpu.lab.fabric.choice import Fabric
from ztdpu.lab.layout import ENCLOSURE, lab_command
from ztdpu.lab.namespaces.roles import ROLES, find_roles, with_found_services
from ztdpu.lab.record import LabRecord
from ztdpu.lab.userspace.places import WIRE
from ztdpu.model.device import DeviceStatus

Document = dict[str, Any]


def describe_lab(record: LabRecord) -> Document:
    """Return the whole lab as one document. `trouble` has an entry for each part that is dead or does not answer."""
    record = with_found_services(record)
    plan = record.plan
    alive = frozenset(record.alive)
    standing, silence = _ask_control(record) if "control" in alive else ({}, "control is dead")
    devices = [
        {
            "name": device.name,
            "namespace": plan.namespace(device.name),
            "pid": _pid(record, device.name, alive),
            **_roles(record, device.name, alive),
            **_standing(standing.get(device.name)),
            "trouble": "",
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
            "ready": ready[endpoint.device] if endpoint.name in alive else False,
            "trouble": "" if endpoint.name in alive else "dead",
            "addresses": list(endpoint.addresses),
            "mtu_octets": endpoint.mtu_octets,
            "uid_base": endpoint.uid_base,
        }
        for endpoint in plan.endpoints
    ]
    document = {
        "state": plan.state,
        "prefix": plan.prefix,
        "isolation": str(record.isolation),
        "fabric": str(record.fabric),
        "mtu_octets": plan.mtu_octets,
        "policy": plan.policy,
        "ready": bool(devices) and all(ready.values()) and len(alive) == len(record.processes),
        "control": {
            "pid": _pid(record, "control", alive),
            "answers": not silence,
            "trouble": silence,
            "admin_socket": str(plan.paths.admin_socket),
            "log": str(plan.paths.control_log),
        },
        "factory": {"pid": _pid(record, "factory", alive), "log": str(plan.paths.factory_log)},
        "enclosure": {"pid": _pid(record, ENCLOSURE, alive)},
        "wire": {"pid": _pid(record, WIRE, alive), "log": str(plan.paths.wire_log)},
        "devices": devices,
        "endpoints": endpoints,
    }
    document["trouble"] = list(_troubles(record, document, alive))
    return document


def _troubles(record: LabRecord, document: Document, alive: frozenset[str]) -> Iterator[Document]:
    """What is wrong, the log that tells more, the command that mends it. Marks the devices' rows on the way."""
    plan = record.plan
    control = document["control"]
    restart = lab_command("restart", plan.state, "control")
    if not record.complete:
        again = lab_command("up", plan.state, prefix=plan.prefix)
        yield _trouble("lab", "the lab was never ready: `lab up` still works on it, or died", "", again)
    if "control" not in alive:
        words = f"control is dead ({_was(record, 'control')}); traffic goes on until leases end"
        yield _trouble("control", words, control["log"], restart)
    elif not control["answers"]:
        words = f"control (pid {control['pid']}) does not answer: {control['trouble']}"
        yield _trouble("control", words, control["log"], restart)
    if "factory" not in alive:
        words = f"the factory is dead ({_was(record, 'factory')}); no endpoint gets a new interface"
        yield _trouble("factory", words, document["factory"]["log"], lab_command("restart", plan.state, "factory"))
    if record.fabric is Fabric.USERNS and ENCLOSURE not in alive:
        words = f"the enclosure is dead ({_was(record, ENCLOSURE)}): what runs in the lab goes on, nothing can enter it"
        yield _trouble(ENCLOSURE, words, "", _anew(record))
    for device in document["devices"]:
        yield from _device_troubles(record, device, alive)
    if record.fabric is Fabric.USERSPACE and WIRE not in alive:
        words = f"the wire is dead ({_was(record, WIRE)}); nothing passes between devices"
        yield _trouble(WIRE, words, document["wire"]["log"], lab_command("restart", plan.state, WIRE))
    for endpoint in document["endpoints"] if record.fabric is not Fabric.USERSPACE else ():  # they live in the factory
        if endpoint["name"] not in alive:
            words = f"{endpoint['name']} is dead ({_was(record, endpoint['name'])}), and its namespaces with it"
            yield _trouble(endpoint["name"], words, "", _anew(record))


def _device_troubles(record: LabRecord, device: Document, alive: frozenset[str]) -> Iterator[Document]:
    name, log = device["name"], device["log"]
    restart = lab_command("restart", record.plan.state, name)
    if name not in alive and record.fabric is not Fabric.USERSPACE:
        device["trouble"] = "dead"
        words = f"{name} is dead ({_was(record, name)}), and its namespaces with it"
        yield _trouble(name, words, log, _anew(record))
    elif name in record.strangers:
        return
    elif device["agent_pid"] is None:
        device["trouble"] = "agent dead"
        yield _trouble(name, f"the agent of {name} is dead: no traffic", log, restart)
    elif device["worker_pid"] is None:
        device["trouble"] = "worker dead"
        words = f"the worker of {name} is dead: no traffic until its agent starts another"
        yield _trouble(name, words, log, f"wait a second, or {restart}")
    elif device["ready"] is False:
        device["trouble"] = "not ready"


def _trouble(part: str, words: str, log: str, following: str) -> Document:
    return {"part": part, "what": words, "log": log, "next": following}


def _was(record: LabRecord, name: str) -> str:
    return f"pid {record.processes[name].pid}" if name in record.processes else "never started"


def _anew(record: LabRecord) -> str:
    return lab_command("up", record.plan.state, "--replace", prefix=record.plan.prefix)


def _ask_control(record: LabRecord) -> tuple[Mapping[str, DeviceStatus], str]:
    from ztdpu.rpc.client import ControlClient

    try:
        with ControlClient.connect(f"unix:{record.plan.paths.admin_socket}") as client:
            return {status.name: status for status in client.list_devices()}, ""
    except ZtdpuError as error:
        return {}, str(error)


def _pid(record: LabRecord, name: str, alive: frozenset[str]) -> int | None:
    return record.processes[name].pid if name in alive else None


def _roles(record: LabRecord, device: str, alive: frozenset[str]) -> dict[str, int | None]:
    found = find_roles(record.processes[device].pid) if device in alive else dict.fromkeys(ROLES.values())
    return {f"{role}_pid": pid for role, pid in found.items()}


def _standing(status: DeviceStatus | None) -> Document:
    if status is None:
        return dict.fromkeys(("state", "tier", "ready", "lease_s", "waiting_for"))
    return {
        "state": str(status.state),
        "tier": status.tier,
        "ready": status.ready,
        "lease_s": round(status.lease_s, 1),
        "waiting_for": status.waiting_for,
    }
