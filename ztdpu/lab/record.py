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
from ztdpu.lab.layout import LabPaths, LabPlan, decode_plan, encode_plan, read_json
from ztdpu.lab.processes import Process, is_alive


@dataclass(slots=True, kw_only=True)
class LabRecord:
    """What `lab up` knows so far."""

    plan: LabPlan
    complete: bool = False
    """All devices were attested and ready once."""
    processes: dict[str, Process] = field(default_factory=dict)
    """`control`, `factory`, and the first process of each device and endpoint by name."""

    def write(self) -> None:
        """Replace the file in one step."""
        path = self.plan.paths.record
        document = {
            "plan": encode_plan(self.plan),
            "complete": self.complete,
            "processes": {name: [process.pid, process.start_ticks] for name, process in self.processes.items()},
        }
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(document, indent=1))
        os.replace(fresh, path)  # noqa: PTH105 - the atomic call by its name

    def holder(self, name: str) -> Process:
        """Return the first process of a device or endpoint; StateError when it is gone."""
        process = self.processes.get(name)
        if process is None or not is_alive(process):
            raise StateError(f"{name} does not run", remedy="ztdpu lab down, then ztdpu lab up")
        return process


def read_record(state: Path) -> LabRecord | None:
    """Return the record in a state directory, None when there is none or it is torn."""
    document = read_json(LabPaths(state).record)
    if document is None or "plan" not in document:
        return None
    return LabRecord(
        plan=decode_plan(document["plan"]),
        complete=bool(document.get("complete")),
        processes={name: Process(*entry) for name, entry in document.get("processes", {}).items()},
    )


def require_record(state: Path) -> LabRecord:
    """Return the record or raise StateError: no lab there."""
    record = read_record(state)
    if record is None:
        raise StateError(f"no lab in {state}", remedy="ztdpu lab up (or name its directory with --state)")
    return record


def tail(log: Path, *, lines: int = 12) -> str:
    """Return the last lines of a log, indented; empty when there is none."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])
