"""Start one part of a running lab anew: control, the factory, or the agent of a device.

Called by `ztdpu lab restart`, so that a person can mend a dead part without taking the lab down. A part that
still runs is asked to end first. Forks before grpc is imported.
"""

from __future__ import annotations

from pathlib import Path

from ztdpu.errors import StateError, UsageError
from ztdpu.lab import processes
from ztdpu.lab.cluster import (
    Progress,
    agent_command,
    silent,
    start_control,
    start_factory,
    start_plain_agent,
    start_wire,
)
from ztdpu.lab.enter import start_inside
from ztdpu.lab.fabric.choice import Fabric
from ztdpu.lab.layout import SERVICES, lab_command, real_path
from ztdpu.lab.namespaces.enclosure import enter_enclosure
from ztdpu.lab.namespaces.roles import find_roles, with_found_services
from ztdpu.lab.processes import base_environment
from ztdpu.lab.record import LabRecord, require_record
from ztdpu.lab.takedown import locked, require_owner
from ztdpu.lab.userspace.places import WIRE


def restart_part(state: Path, name: str, progress: Progress = silent) -> None:
    """Restart `control`, `factory` or the agent of the device `name`; returns when it works again.

    Raises UsageError for other names, StateError when there is no lab or what it lives in is gone, MachineError when
    it does not come back (with the end of its log).
    """
    state = real_path(state)
    require_owner(state)
    enter_enclosure(require_record(state))
    with locked(state):
        record = with_found_services(require_record(state))
        if name == "control":
            _restart_control(record, progress)
        elif name == "factory":
            _restart_factory(record, progress)
        elif name == WIRE and record.fabric is Fabric.USERSPACE:
            _end(record, name, progress)
            start_wire(record)
        elif name in {device.name for device in record.plan.devices}:
            _restart_agent(record, name, progress)
        else:
            wire = (WIRE,) if record.fabric is Fabric.USERSPACE else ()
            names = (*SERVICES, *wire, *(device.name for device in record.plan.devices))
            raise UsageError(f"{name!r} is no part that can be restarted", remedy=f"parts: {', '.join(names)}")


def _restart_control(record: LabRecord, progress: Progress) -> None:
    _end(record, "control", progress)
    record.plan.paths.admin_socket.unlink(missing_ok=True)
    start_control(record)
    from ztdpu.lab import readiness  # the last fork is behind us: grpc may come

    with readiness.connected(record, progress):
        return


def _restart_factory(record: LabRecord, progress: Progress) -> None:
    _end(record, "factory", progress)
    start_factory(record)
    if record.fabric is Fabric.USERSPACE and processes.is_alive(record.processes["control"]):
        from ztdpu.lab import readiness

        # The endpoints ended with the old one: wait until the agents have asked for them again.
        wanted = [one.name for one in record.plan.devices if one.name not in record.strangers]
        with readiness.connected(record, progress) as control:
            readiness.wait_ready(record, control, wanted, progress)


def _end(record: LabRecord, service: str, progress: Progress) -> None:
    process = record.processes.get(service)
    if process is not None and processes.is_alive(process):
        progress(f"ending {service} (pid {process.pid})")
        processes.ask_to_end([process.pid])


def _restart_agent(record: LabRecord, device: str, progress: Progress) -> None:
    plan = record.plan
    is_plain = record.fabric is Fabric.USERSPACE
    first = record.processes.get(device) if is_plain else record.holder(device)
    running = [pid for pid in find_roles(first.pid).values() if pid is not None] if first is not None else []
    if running:
        progress(f"ending the agent of {device}")
        processes.ask_to_end(running)
    progress(f"starting the agent of {device}")
    if is_plain:
        start_plain_agent(record, device)
    else:
        start_inside(
            record,
            device,
            agent_command(plan, device),
            environment=base_environment(plan.state),
            log=plan.paths.agent_log(device),
        )
    record.strangers = tuple(name for name in record.strangers if name != device)
    record.write()
    if not processes.is_alive(record.processes["control"]):
        raise StateError(
            f"the agent of {device} runs, but control is dead and leases nothing",
            remedy=lab_command("restart", plan.state, "control"),
        )
    from ztdpu.lab import readiness  # the last fork is behind us: grpc may come

    with readiness.connected(record, progress) as control:
        readiness.wait_ready(record, control, [device], progress)
