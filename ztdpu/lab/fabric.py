"""Which fabric a lab can be built on here, why, and what to type for more. Tries the machine, changes nothing on it.

    netns      root of the host: a uid range and namespaces of its own for every device and endpoint
    userns     no root, where the kernel lets users make namespaces: the same, but all of one uid
    userspace  no namespaces at all: processes on 127.0.0.1 with endpoints in memory

Called by `ztdpu demo` and `ztdpu lab up`. What a kernel allows is not read off its version or settings: a program
of one's own (`fabric_trial`) does what the lab would do and says where it was stopped; settings only explain why.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from ztdpu.errors import MachineError
from ztdpu.lab.layout import FIRST_UID, LAST_UID


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
    """A sentence: what to type for a better one; empty when there is none."""

    @property
    def sentence(self) -> str:
        """What to tell a person."""
        return f"{self.fabric} fabric: {self.why}." + (f" {self.more}" if self.more else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Why a fabric does not work here."""

    why: str
    remedy: str


ISOLATION: Final = {
    Fabric.NETNS: Isolation.FULL,
    Fabric.USERNS: Isolation.SHARED_UID,
    Fabric.USERSPACE: Isolation.SHARED_UID,
}
CONTAINER_OPTIONS: Final = (
    "--cap-add NET_ADMIN --cap-add SYS_ADMIN --device /dev/net/tun"
    " --security-opt apparmor=unconfined --security-opt systempaths=unconfined"
)
"""What a container needs for the netns fabric; docs/fabrics.md says which of them for what."""
_CONTAINER_LINE: Final = f"docker run {CONTAINER_OPTIONS} IMAGE make demo"
_SUDO_LINE: Final = "sudo make demo"
_TRIAL_TIMEOUT_S: Final = 20.0
_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"
_FIRST_USER_NAMESPACE: Final = "user:[4026531837]"
"""The kernel's own names of the namespaces that it boots with."""


def choose_fabric(wanted: Fabric | None = None) -> FabricChoice:
    """Return the fabric asked for, or the best that works here.

    Raises MachineError with the reason and the remedy when the one asked for does not work, or none does.
    """
    if sys.platform != "linux":
        raise MachineError(
            f"no fabric works on {sys.platform}: the worker needs Linux (epoll, UDP segmentation offload, "
            "CLOCK_BOOTTIME, SOCK_SEQPACKET)",
            remedy=f"in a container: {_CONTAINER_LINE}",
        )
    if wanted is Fabric.USERSPACE:
        return _choice(wanted, why="as asked for", more="")
    tried: dict[Fabric, Obstacle] = {}
    for fabric, find in _FINDERS.items():
        if wanted not in (None, fabric):
            continue
        obstacle = find()
        if obstacle is None:
            return _describe(fabric, asked=wanted is not None)
        tried[fabric] = obstacle
    if wanted is not None:
        obstacle = tried[wanted]
        raise MachineError(f"the {wanted} fabric does not work here: {obstacle.why}", remedy=obstacle.remedy)
    more = tried[Fabric.NETNS] if os.geteuid() == 0 or in_container() else tried[Fabric.USERNS]
    return _choice(Fabric.USERSPACE, why=more.why, more=f"Full demo: {_full_line()}")


def in_container() -> bool:
    """Tell whether we are in a container: its runtime left a mark, and our pid namespace is not the machine's own."""
    if _link("/proc/self/ns/pid") == _FIRST_PID_NAMESPACE and _link("/proc/self/ns/user") == _FIRST_USER_NAMESPACE:
        return False
    marked = any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv"))
    groups = _read("/proc/1/cgroup")
    named = any(word in groups for word in ("docker", "kubepods", "libpod", "containerd", "lxc"))
    return marked or named or bool(os.environ.get("container"))  # noqa: SIM112 - as runtimes spell it


def is_host_root() -> bool:
    """Tell whether we are root outside every user namespace."""
    return os.geteuid() == 0 and _link("/proc/self/ns/user") == _FIRST_USER_NAMESPACE


def has_uids(uid_map: str) -> bool:
    """Tell whether a uid_map covers all uids that labs hand out."""
    ranges = [(int(inside), int(count)) for inside, _, count in (line.split() for line in uid_map.splitlines())]
    return any(first <= FIRST_UID and first + count > LAST_UID for first, count in ranges)


def netns_obstacle() -> Obstacle | None:
    """Say what forbids the netns fabric here, None when nothing does."""
    if os.geteuid() != 0:
        return Obstacle(why="only root may build it", remedy=_full_line())
    if not has_uids(_read("/proc/self/uid_map")):
        return Obstacle(
            why="this root may not give out uid ranges (it is root of a user namespace)",
            remedy="run it as root of the host, or with --fabric userns",
        )
    return _explain(_try("netns"))


def userns_obstacle() -> Obstacle | None:
    """Say what forbids the userns fabric here, None when nothing does."""
    if is_host_root():
        return Obstacle(
            why="you are root, and root's files would be the lab's",
            remedy="leave --fabric away (netns isolates more), or run it as another user",
        )
    return _explain(_try("userns"))


_FINDERS: Final[dict[Fabric, Callable[[], Obstacle | None]]] = {
    Fabric.NETNS: netns_obstacle,
    Fabric.USERNS: userns_obstacle,
}
"""The better first."""


def _describe(fabric: Fabric, *, asked: bool) -> FabricChoice:
    if fabric is Fabric.NETNS:
        return _choice(fabric, why="as asked for" if asked else "root, with all that it needs")
    why = "as asked for" if asked else "no root, but namespaces of your own; one uid for all"
    return _choice(fabric, why=why, more=f"With a uid range for each: {_full_line()}")


def _choice(fabric: Fabric, *, why: str, more: str = "") -> FabricChoice:
    return FabricChoice(fabric=fabric, isolation=ISOLATION[fabric], why=why, more=more)


def _full_line() -> str:
    return _CONTAINER_LINE if in_container() else _SUDO_LINE


def _try(kind: str) -> dict[str, Any]:
    """Let a program of its own do what the lab would do; returns where it was stopped, empty when nowhere."""
    command = [sys.executable, "-m", "ztdpu.lab.fabric_trial", kind]
    try:
        # No preexec and no pipe to its standard input: subprocess comes down to posix_spawn or vfork and exec.
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_TRIAL_TIMEOUT_S, check=False)
        document: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"step": "trial", "errno": errno.ETIMEDOUT}
    except (ValueError, IndexError):
        return {"step": "trial", "errno": 0, "said": ended.stderr.strip()[-200:]}
    return document


def _explain(stop: dict[str, Any]) -> Obstacle | None:
    """Turn the place where a trial stopped into who forbids it and what to do."""
    if not stop:
        return None
    step, number = str(stop["step"]), int(stop["errno"])
    if step == "trial":
        return Obstacle(why=f"trying it failed ({stop.get('said') or os.strerror(number)})", remedy=_full_line())
    if step.startswith("tun"):
        return _explain_tun(number)
    if step == "ip":
        return Obstacle(why=f"`ip` fails: {stop.get('said', '')}", remedy="make setup-system (iproute2)")
    if number in (errno.ENOSPC, errno.EUSERS):
        return Obstacle(
            why="the kernel's limit of user namespaces is reached"
            + (" (user.max_user_namespaces is 0)" if _setting("user/max_user_namespaces") == "0" else ""),
            remedy="sudo sysctl -w user.max_user_namespaces=10000",
        )
    if number in {errno.ENOSYS, errno.EINVAL}:
        return Obstacle(why=f"the kernel has no {step}", remedy="a kernel with user namespaces, or another machine")
    return _explain_refusal(step, number)


def _explain_refusal(step: str, number: int) -> Obstacle:
    """Name who says no: what is set, from the most to the least telling."""
    remedy = _full_line()
    if _setting("kernel/unprivileged_userns_clone") == "0" and os.geteuid() != 0:
        return Obstacle(
            why="kernel.unprivileged_userns_clone forbids namespaces here",
            remedy=f"sudo sysctl -w kernel.unprivileged_userns_clone=1, or {remedy}",
        )
    if _setting("kernel/apparmor_restrict_unprivileged_userns") == "1" and os.geteuid() != 0:
        return Obstacle(
            why="AppArmor forbids namespaces here",
            remedy=f"sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or {remedy}",
        )
    if step == "proc":
        return Obstacle(why="parts of /proc are covered, so that no new /proc may be mounted", remedy=remedy)
    if "Seccomp:\t2" in _read("/proc/self/status"):
        return Obstacle(why="a seccomp filter forbids namespaces here", remedy=remedy)
    confined = _read("/proc/self/attr/apparmor/current") or _read("/proc/self/attr/current")
    if confined.strip() and not confined.startswith("unconfined"):
        return Obstacle(why=f"the profile {confined.split()[0]} forbids namespaces here", remedy=remedy)
    if os.geteuid() == 0:
        return Obstacle(why=f"this root may not {_STEPS.get(step, step)} ({os.strerror(number)})", remedy=remedy)
    return Obstacle(why=f"the kernel forbids to {_STEPS.get(step, step)} ({os.strerror(number)})", remedy=remedy)


_STEPS: Final = {
    "unshare": "make namespaces",
    "map": "map a uid into a user namespace",
    "fork": "start a process in a pid namespace",
    "mount": "mount",
    "proc": "mount /proc",
    "sysctl": "set what its own network does",
}


def _explain_tun(number: int) -> Obstacle:
    if number in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
        device = "pass --device /dev/net/tun to the container" if in_container() else "sudo modprobe tun"
        return Obstacle(why="/dev/net/tun is missing", remedy=device)
    if number == errno.EACCES:
        return Obstacle(
            why="/dev/net/tun may not be opened by you", remedy=f"sudo chmod 0666 /dev/net/tun, or {_full_line()}"
        )
    return Obstacle(why=f"no TUN device can be made ({os.strerror(number)})", remedy=_full_line())


def _setting(path: str) -> str:
    return _read(f"/proc/sys/{path}").strip()


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - not a path, a name of a namespace
    except OSError:
        return ""
