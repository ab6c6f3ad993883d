"""Which process is what: told by the command line. Read by `status`, `restart` and `takedown`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ztdpu.lab import processes
from ztdpu.lab.layout import SERVICES, LabPlan
from ztdpu.lab.manufacture import CONTROL_FILE
from ztdpu.lab.record import LabRecord

ROLES: Final = {
    ("agent", "run"): "agent",
    ("ztdpu.agent.worker",): "worker",
    ("ztdpu.agent.root_of_trust",): "root_of_trust",
}
"""Neighbouring words in a command line -> what that process of a device is."""


def find_roles(holder: int) -> dict[str, int | None]:
    """Role -> pid (of the host) in the pid namespace of `holder`, None for what does not run."""
    found: dict[str, int | None] = dict.fromkeys(ROLES.values())
    for pid in processes.find_in_namespace(holder):
        words = processes.command_line(pid)
        for mark, role in ROLES.items():
            if found[role] is None and _has(words, mark):
                found[role] = pid
    return found


def service_words(plan: LabPlan, service: str) -> tuple[str, ...]:
    """How the command line of control or the factory ends."""
    if service == "control":
        return ("control", "run", "--config", str(plan.paths.control / CONTROL_FILE))
    return ("ztdpu.lab.factory", plan.state)


def with_found_services(record: LabRecord) -> LabRecord:
    """Return the record with those of its dead services that somebody started again by hand."""
    missing = [service for service in SERVICES if service in record.dead]
    found = {}
    for pid in processes.find_all() if missing else ():
        words = processes.command_line(pid)
        for service in missing:
            process = processes.identify(pid) if _has(words, service_words(record.plan, service)) else None
            if process is not None:
                found[service] = process
    return replace(record, processes=record.processes | found)


def _has(words: Sequence[str], mark: Sequence[str]) -> bool:
    return any(tuple(words[i : i + len(mark)]) == tuple(mark) for i in range(len(words) - len(mark) + 1))
