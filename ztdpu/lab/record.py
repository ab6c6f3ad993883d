"""The lab's record: plan and processes in `lab.json`, written before anything else is made.

`cluster` writes it, `enter`, `factory` and the demo read it. What is not in it is found by the marker of
`processes`.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from ztdpu.errors import StateError
from ztdpu.lab.fabric.choice import Fabric, Isolation
from ztdpu.lab.layout import LabPaths, LabPlan, decode_plan, encode_plan, lab_command, real_path
from ztdpu.lab.processes import Process, is_alive


@dataclass(slots=True, kw_only=True)
class LabRecord:
    """What `lab up` knows so far."""

    plan: LabPlan
    fabric: Fabric = Fabric.NETNS
    isolation: Isolation = Isolation.FULL
    complete: bool = False
    """All devices were attested and ready once."""
    strangers: tuple[str, ...] = ()
    """Devices whose agent was not started, on purpose."""
    processes: dict[str, Process] = field(default_factory=dict)
    """`control`, `factory`, and the first process of each device and endpoint by name."""

    def write(self) -> None:
        """Replace the file in one step."""
        path = self.plan.paths.record
        document = {
            "plan": encode_plan(self.plan),
            "fabric": str(self.fabric),
            "isolation": str(self.isolation),
            "complete": self.complete,
            "strangers": list(self.strangers),
            "processes": {name: [process.pid, process.start_ticks] for name, process in self.processes.items()},
        }
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(document, indent=1))
        os.replace(fresh, path)  # noqa: PTH105 - the atomic call by its name

    def holder(self, name: str) -> Process:
        """Return the first process of a device or endpoint; StateError when it is gone."""
        process = self.processes.get(name)
        if process is None or not is_alive(process):
            again = lab_command("up", self.plan.state, "--replace", prefix=self.plan.prefix)
            raise StateError(f"{name} is dead: its first process ended, and its namespaces with it", remedy=again)
        return process

    @property
    def alive(self) -> tuple[str, ...]:
        """Names of the recorded processes that run."""
        return tuple(name for name, process in self.processes.items() if is_alive(process))

    @property
    def dead(self) -> dict[str, int]:
        """Names and pids of the recorded processes that ended."""
        return {name: process.pid for name, process in self.processes.items() if not is_alive(process)}


def read_record(state: Path) -> LabRecord | None:
    """Return the record in a state directory, None when no lab was planned there.

    StateError when there is one that cannot be read: torn, of another version or of another directory.
    """
    path = LabPaths(state).record
    remedy = f"{lab_command('down', state)} finds the lab's processes and namespaces without it"
    try:
        document = json.loads(path.read_text())
        if document == {}:  # claimed, not planned yet
            return None
        record = LabRecord(
            plan=decode_plan(document["plan"]),
            fabric=Fabric(document.get("fabric", Fabric.NETNS)),
            isolation=Isolation(document.get("isolation", Isolation.FULL)),
            complete=bool(document.get("complete")),
            strangers=tuple(document.get("strangers", ())),
            processes={name: Process(int(pid), int(start)) for name, (pid, start) in document["processes"].items()},
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise StateError(f"{path} cannot be read: {error.strerror}", remedy="run it with sudo") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StateError) as error:
        raise StateError(f"the lab's record {path} is not readable: {error}", remedy=remedy) from error
    if real_path(Path(record.plan.state)) != real_path(state):
        raise StateError(f"the lab's record {path} is that of {record.plan.state}", remedy=remedy)
    return record


def require_record(state: Path) -> LabRecord:
    """Return the record or raise StateError: no lab there, or none that can be read."""
    record = read_record(state)
    if record is None:
        remedy = f"{lab_command('up', state)} (or name its directory with --state)"
        raise StateError(f"no lab in {state}", remedy=remedy)
    return record


def tail(log: Path, *, lines: int = 12) -> str:
    """Return the last lines of a log, indented; empty when there is none."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])
