"""Which fabric a lab can be built on here, why, and what to type for more. Tries the machine, changes nothing on it.

    netns      root of the host: namespaces and a uid range of its own for every device and endpoint
    userns     no root, where the kernel lets users make namespaces: the same, but all of one uid
    userspace  no namespaces at all: processes on 127.0.0.1 with endpoints in memory

Called by `ztdpu demo` and `ztdpu lab up`. `fabric.obstacles` finds out what does not work and who forbids it.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ztdpu.errors import MachineError
from ztdpu.lab.fabric.obstacles import Obstacle, in_container, netns_obstacle, userns_obstacle


class Fabric(StrEnum):
    """What carries packets between devices, and what keeps inhabitants apart."""

    NETNS = "netns"
    USERNS = "userns"
    USERSPACE = "userspace"


class Isolation(StrEnum):
    """How far devices and endpoints are kept apart on the machine that emulates them."""

    FULL = "full"
    """User, network, mount and pid namespaces, and a uid range of each one's own."""
    SHARED_UID = "shared-uid"
    """To the kernel all of them are the one user who started the lab."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricChoice:
    """A fabric that works here."""

    fabric: Fabric
    isolation: Isolation
    why: str
    """Half a sentence: why not the next better one, or why this one is the best there is."""
    more: str = ""
    """A sentence without its full stop: what to type for a better one; empty when there is none."""

    @property
    def sentence(self) -> str:
        """What to tell a person."""
        return f"{self.fabric} fabric: {self.why}." + (f" {self.more}" if self.more else "")


ISOLATION: Final = {
    Fabric.NETNS: Isolation.FULL,
    Fabric.USERNS: Isolation.SHARED_UID,
    Fabric.USERSPACE: Isolation.SHARED_UID,
}
BETWEEN: Final = {
    Fabric.NETNS: "each device and endpoint has namespaces and a uid range of its own",
    Fabric.USERNS: "each device and endpoint has namespaces of its own; to the kernel all are one user",
    Fabric.USERSPACE: "devices are processes of one user on 127.0.0.1; endpoints live in memory",
}
"""What stands between devices and endpoints, for people."""
CONTAINER_OPTIONS: Final = (
    "--cap-add NET_ADMIN --cap-add SYS_ADMIN --device /dev/net/tun"
    " --security-opt apparmor=unconfined --security-opt systempaths=unconfined"
)
"""What a container needs for the netns fabric; docs/fabrics.md says which of them for what."""


def choose_fabric(wanted: Fabric | None = None, *, command: str = "make demo") -> FabricChoice:
    """Return the fabric asked for, or the best that works here; `command` is what a person typed.

    Raises MachineError with the reason and the remedy when the one asked for does not work, or none does.
    """
    if sys.platform != "linux":
        raise MachineError(
            f"no fabric works on {sys.platform}: the worker needs Linux (epoll, UDP segmentation offload, "
            "CLOCK_BOOTTIME, SOCK_SEQPACKET)",
            remedy=f"in a container: {_container_line(command)}",
        )
    if wanted is Fabric.USERSPACE:
        return _choice(wanted, why="as asked for")
    root_first = {Fabric.NETNS: netns_obstacle, Fabric.USERNS: userns_obstacle}
    found: dict[Fabric, Obstacle] = {}
    for fabric, find in root_first.items():
        if wanted not in {None, fabric}:
            continue
        obstacle = find()
        if obstacle is None:
            return _describe(fabric, command, asked=wanted is not None)
        found[fabric] = obstacle
    if wanted is not None:
        obstacle = found[wanted]
        remedy = obstacle.remedy or full_line(command)
        raise MachineError(f"the {wanted} fabric does not work here: {obstacle.why}", remedy=remedy)
    telling = found[Fabric.NETNS if os.geteuid() == 0 else Fabric.USERNS]
    return _choice(Fabric.USERSPACE, why=telling.why, more=f"Full {_noun(command)}: {full_line(command)}")


def _describe(fabric: Fabric, command: str, *, asked: bool) -> FabricChoice:
    if fabric is Fabric.NETNS:
        return _choice(fabric, why="as asked for" if asked else "root, with all that it needs")
    why = "as asked for" if asked else "not root; one uid for all devices and endpoints"
    return _choice(fabric, why=why, more=f"With a uid range for each: {full_line(command)}")


def _choice(fabric: Fabric, *, why: str, more: str = "") -> FabricChoice:
    return FabricChoice(fabric=fabric, isolation=ISOLATION[fabric], why=why, more=more)


def _noun(command: str) -> str:
    return command.split()[1]


def full_line(command: str) -> str:
    """Return what to type for the full thing: `sudo`, or a container with more rights where we are in one."""
    return _container_line(command) if in_container() else f"sudo {command}"


def _container_line(command: str) -> str:
    return f"docker run {CONTAINER_OPTIONS} IMAGE {command}"
