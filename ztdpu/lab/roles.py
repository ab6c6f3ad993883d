"""Which process of a device is what: told by the command line. Read by `status` and `restart`."""

from __future__ import annotations

from typing import Final

from ztdpu.lab import processes

ROLES: Final = {"agent run": "agent", "ztdpu.agent.worker": "worker", "ztdpu.agent.root_of_trust": "root_of_trust"}
"""Words in a command line -> what that process is."""


def find_roles(holder: int) -> dict[str, int | None]:
    """Role -> pid (of the host) in the pid namespace of `holder`, None for what does not run."""
    found: dict[str, int | None] = dict.fromkeys(ROLES.values())
    for pid in processes.find_in_namespace(holder):
        words = " ".join(processes.command_line(pid))
        for mark, role in ROLES.items():
            if mark in words and found[role] is None:
                found[role] = pid
    return found
