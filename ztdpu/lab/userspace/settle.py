"""Where everybody stands in a lab without privilege: the plan of any lab, with addresses that need none.

Called by `cluster` after the plan is made and after the start-up files are written. In such a plan a device's
out-of-band address is where its processes stand, its underlay address is its face of the wire.
"""

from __future__ import annotations

import os
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

from ztdpu.errors import UsageError
from ztdpu.lab.documents import write_yaml
from ztdpu.lab.layout import ENROLMENT_PORT, MAIN_PORT, METRICS_PORT, LabPlan
from ztdpu.lab.manufacture import AGENT_FILE, CONTROL_FILE, agent_document, control_document, write_private
from ztdpu.lab.userspace.faces import write_policy_with_faces
from ztdpu.lab.userspace.ground import PSP_PORT, Ground, choose_ground
from ztdpu.lab.userspace.places import WIRE


def settle(plan: LabPlan) -> LabPlan:
    """Return the plan on a free piece of 127/8, with a policy that says so. UsageError, MachineError, OSError."""
    if WIRE in plan.inhabitants:
        raise UsageError(f"the name {WIRE!r} is the lab's own on the userspace fabric", remedy="name it otherwise")
    ground = choose_ground(plan.state, len(plan.devices))
    devices = tuple(
        replace(
            device,
            underlay_address=ground.face(index),
            oob_address=ground.device(index),
            uid_base=os.geteuid(),
        )
        for index, device in enumerate(plan.devices)
    )
    endpoints = tuple(replace(endpoint, uid_base=os.geteuid()) for endpoint in plan.endpoints)
    faces = {device.name: device.underlay_address for device in devices}
    write_policy_with_faces(Path(plan.policy), plan.paths.policy, faces)
    return replace(plan, policy=str(plan.paths.policy), devices=devices, endpoints=endpoints)


def ground_of(plan: LabPlan) -> Ground:
    """Return the piece that a plan stands on."""
    return Ground((int(ip_address(plan.devices[0].oob_address)) >> 8) & 0xFFFF)


def write_settled_files(plan: LabPlan, *, interval_s: float, lease_s: float) -> None:
    """Write the start-up files anew, with the addresses and the port of this fabric."""
    control = ground_of(plan).control
    document = control_document(plan, interval_s=interval_s, lease_s=lease_s)
    document["spec"]["listen"] = {"enrolment": f"{control}:{ENROLMENT_PORT}", "main": f"{control}:{MAIN_PORT}"}
    document["spec"]["metricsListen"] = f"{control}:{METRICS_PORT}"
    (plan.paths.control / CONTROL_FILE).write_text(write_yaml(document))
    for device in plan.devices:
        document = agent_document(plan, device)
        document["spec"]["control"]["enrolment"] = f"{device.underlay_address}:{ENROLMENT_PORT}"
        document["spec"]["control"]["main"] = f"{control}:{MAIN_PORT}"
        document["spec"]["underlay"] |= {"address": device.oob_address, "port": PSP_PORT}
        write_private(plan.paths.device(device.name) / AGENT_FILE, write_yaml(document))
