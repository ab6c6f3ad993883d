"""Ask control how the devices stand: join tokens, and waiting until all are ready.

Called by `cluster` after its last fork, because this is where grpc comes in. On failure it says which
device waits for what and shows the end of that agent's log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from ztdpu.errors import MachineError, UnreachableError
from ztdpu.lab import processes
from ztdpu.lab.fabric.choice import Fabric
from ztdpu.lab.layout import DevicePlan, LabPlan
from ztdpu.lab.manufacture import JOIN_TOKEN, write_private
from ztdpu.lab.record import LabRecord, tail
from ztdpu.model.device import DeviceState, DeviceStatus
from ztdpu.rpc.client import ControlClient

CONTROL_TIMEOUT_S: Final = 20.0
READY_TIMEOUT_S: Final = 30.0
READY_PER_DEVICE_S: Final = 2.0
_POLL_S: Final = 0.03
_REFUSED: Final = frozenset({DeviceState.CONTRAINDICATED, DeviceState.QUARANTINED, DeviceState.REVOKED})


@contextmanager
def connected(record: LabRecord, progress: Callable[[str], None]) -> Iterator[ControlClient]:
    """Return a client of the lab's control once it answers; MachineError with its log when it does not."""
    progress("waiting for control")
    deadline = time.monotonic() + CONTROL_TIMEOUT_S
    socket = record.plan.paths.admin_socket
    while not socket.exists():
        _check_control(record, deadline)
        time.sleep(_POLL_S)
    with ControlClient.connect(f"unix:{socket}") as client:
        while True:
            try:
                client.status()
                break
            except UnreachableError:
                _check_control(record, deadline)
                time.sleep(_POLL_S)
        yield client


def _check_control(record: LabRecord, deadline: float) -> None:
    ended = not processes.is_alive(record.processes["control"])
    if ended or time.monotonic() > deadline:
        log = tail(record.plan.paths.control_log)
        raise MachineError(f"control {'ended' if ended else 'does not answer'}; its log ends:\n{log}")


def give_token(record: LabRecord, control: ControlClient, device: DevicePlan) -> None:
    """Put a fresh single-use join token where the agent of the device looks for it."""
    token = control.create_join_token(device.name)
    path = record.plan.paths.device(device.name) / JOIN_TOKEN
    write_private(path, f"{token.token}\n", owner=device.uid_base)


def wait_ready(
    record: LabRecord, control: ControlClient, wanted: Collection[str], progress: Callable[[str], None]
) -> Mapping[str, DeviceStatus]:
    """Return when all wanted devices are leased and ready; MachineError says who waits for what."""
    deadline = time.monotonic() + READY_TIMEOUT_S + READY_PER_DEVICE_S * len(wanted)
    said = ""
    while True:
        standing = {status.name: status for status in control.list_devices() if status.name in wanted}
        waiting = [name for name in wanted if name not in standing or not standing[name].ready]
        if not waiting:
            return standing
        word = f"{len(wanted) - len(waiting)} of {len(wanted)} devices ready"
        if word != said:
            progress(word)
            said = word
        hopeless = any(_agent_ended(record, name) or _is_refused(standing.get(name)) for name in waiting)
        if hopeless or time.monotonic() > deadline:
            raise MachineError(_explain(record.plan, standing, waiting))
        time.sleep(_POLL_S)


def _is_refused(status: DeviceStatus | None) -> bool:
    """Tell whether waiting will not help: control looked and said no."""
    return status is not None and status.state in _REFUSED


def _agent_ended(record: LabRecord, device: str) -> bool:
    """Tell whether only the first process of the device is left."""
    if record.fabric is Fabric.USERSPACE:  # the agent is that first process
        return not processes.is_alive(record.processes[device])
    return len(processes.find_in_namespace(record.processes[device].pid)) <= 1


def _explain(plan: LabPlan, standing: Mapping[str, DeviceStatus], waiting: Collection[str]) -> str:
    lines = ["not every device is ready"]
    for name in waiting:
        status = standing.get(name)
        if status is None:
            lines.append(f"  {name}: control does not know it")
        else:
            lines.append(f"  {name}: {status.state} ({status.reason}); waits for {status.waiting_for or 'nothing'}")
        lines += ["  its log ends:", tail(plan.paths.agent_log(name))]
    return "\n".join(lines)
