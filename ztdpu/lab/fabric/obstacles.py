"""What forbids a fabric on this machine: tried by doing it, explained by what is set.

Called by `fabric`. What a kernel allows is not read off its version or settings: `fabric.trial`, a program of its own,
does once what a lab would do and says where it was stopped. Only then settings tell who it was.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ztdpu.lab.layout import FIRST_UID, LAST_UID


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Why a fabric does not work here."""

    why: str
    remedy: str = ""
    """A command; empty when nothing less than root of the host, or a container with more rights, helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What this machine says about itself, as far as it explains a refusal."""

    uid: int
    in_container: bool = False
    namespaces_limit: str = ""
    """user.max_user_namespaces; empty where there is no such setting, as below."""
    clone_allowed: str = ""
    """kernel.unprivileged_userns_clone (Debian)."""
    apparmor_restricts: str = ""
    """kernel.apparmor_restrict_unprivileged_userns (Ubuntu)."""
    seccomp: bool = False
    """A filter watches our calls."""
    profile: str = ""
    """Name of the AppArmor profile or SELinux domain that confines us; empty when unconfined."""


_TRIAL_TIMEOUT_S: Final = 20.0
_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"
_FIRST_USER_NAMESPACE: Final = "user:[4026531837]"
"""The kernel's own names of the namespaces that it boots with."""
_RUNTIMES: Final = ("docker", "kubepods", "libpod", "containerd", "lxc")
_STEPS: Final = {
    "unshare": "make namespaces",
    "map": "map a uid into a user namespace",
    "fork": "start a process in a pid namespace",
    "mount": "mount",
    "proc": "mount /proc",
    "sysctl": "set what its own network does",
}


def netns_obstacle() -> Obstacle | None:
    """Say what forbids the netns fabric here, None when nothing does."""
    if os.geteuid() != 0:
        return Obstacle(why="only root may build it")
    if not has_uids(_read("/proc/self/uid_map")):
        return Obstacle(
            why="this root may not give out uid ranges (it is root of a user namespace)",
            remedy="run it as root of the host, or with --fabric userns",
        )
    return explain(_try("netns"), look_around())


def userns_obstacle() -> Obstacle | None:
    """Say what forbids the userns fabric here, None when nothing does."""
    if os.geteuid() == 0 and _link("/proc/self/ns/user") == _FIRST_USER_NAMESPACE:
        return Obstacle(
            why="you are root, and the devices would be the very root of this machine",
            remedy="leave --fabric away (netns keeps them apart), or run it as another user",
        )
    return explain(_try("userns"), look_around())


def in_container() -> bool:
    """Tell whether we are in a container: its runtime left a mark, and our namespaces are not the machine's own."""
    if _link("/proc/self/ns/pid") == _FIRST_PID_NAMESPACE and _link("/proc/self/ns/user") == _FIRST_USER_NAMESPACE:
        return False
    marked = any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv"))
    return marked or any(word in _read("/proc/1/cgroup") for word in _RUNTIMES) or "container" in os.environ


def has_uids(uid_map: str) -> bool:
    """Tell whether a uid_map covers all uids that labs hand out."""
    ranges = [(int(inside), int(count)) for inside, _, count in (line.split() for line in uid_map.splitlines())]
    return any(first <= FIRST_UID and first + count > LAST_UID for first, count in ranges)


def look_around() -> Surroundings:
    """Read what explains a refusal."""
    profile = (_read("/proc/self/attr/apparmor/current") or _read("/proc/self/attr/current")).strip("\0\n ")
    return Surroundings(
        uid=os.geteuid(),
        in_container=in_container(),
        namespaces_limit=_read("/proc/sys/user/max_user_namespaces").strip(),
        clone_allowed=_read("/proc/sys/kernel/unprivileged_userns_clone").strip(),
        apparmor_restricts=_read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").strip(),
        seccomp="Seccomp:\t2" in _read("/proc/self/status"),
        profile="" if profile.startswith("unconfined") else profile.split(" ")[0],
    )


def explain(stop: dict[str, Any], around: Surroundings) -> Obstacle | None:
    """Turn the place where a trial stopped into who forbids it and what to do; None when it did not stop. Pure."""
    if not stop:
        return None
    step, number, said = str(stop["step"]), int(stop["errno"]), str(stop.get("said", ""))
    if step == "trial":
        return Obstacle(why=f"trying it failed ({said or os.strerror(number)})")
    if step.startswith("tun"):
        return _explain_tun(number, around)
    if step == "ip":
        if number == errno.ENOENT:
            return Obstacle(why="the program `ip` is missing", remedy="make setup-system (package iproute2)")
        return Obstacle(
            why=f"no bridge and no virtual cable can be made ({said})", remedy="sudo modprobe -a bridge veth"
        )
    if number in {errno.ENOSPC, errno.EUSERS}:
        limit = f"user.max_user_namespaces is {around.namespaces_limit or 'too small'}"
        return Obstacle(
            why=f"no further user namespace is allowed ({limit})",
            remedy="sudo sysctl -w user.max_user_namespaces=10000",
        )
    if number in {errno.ENOSYS, errno.EINVAL}:
        return Obstacle(why=f"this kernel cannot {_STEPS.get(step, step)} as needed ({os.strerror(number)})")
    return _explain_refusal(step, number, around)


def _explain_refusal(step: str, number: int, around: Surroundings) -> Obstacle:
    """Name who says no, from the most to the least telling."""
    if around.uid != 0 and around.clone_allowed == "0":
        return Obstacle(
            why="kernel.unprivileged_userns_clone forbids namespaces here",
            remedy="sudo sysctl -w kernel.unprivileged_userns_clone=1",
        )
    if around.uid != 0 and around.apparmor_restricts == "1":
        return Obstacle(
            why="AppArmor forbids namespaces here",
            remedy="sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        )
    if step == "proc":
        return Obstacle(why="parts of /proc are covered, so no new /proc may be mounted")
    if step == "sysctl" and number == errno.EROFS:
        return Obstacle(why="/proc/sys is read-only here")
    if around.profile:
        return Obstacle(why=f"the security profile {around.profile} forbids namespaces here")
    if around.seccomp:
        return Obstacle(why="a seccomp filter forbids namespaces here")
    who = "this root may not" if around.uid == 0 else "the kernel does not let you"
    return Obstacle(why=f"{who} {_STEPS.get(step, step)} ({os.strerror(number)})")


def _explain_tun(number: int, around: Surroundings) -> Obstacle:
    if number in {errno.ENOENT, errno.ENODEV, errno.ENXIO}:
        return Obstacle(why="/dev/net/tun is missing", remedy="" if around.in_container else "sudo modprobe tun")
    if number == errno.EACCES:
        return Obstacle(why="you may not open /dev/net/tun", remedy="sudo chmod 0666 /dev/net/tun")
    return Obstacle(why=f"no TUN device can be made ({os.strerror(number)})")


def _try(kind: str) -> dict[str, Any]:
    """Let a program of its own do what a lab would do; returns where it was stopped, empty when nowhere."""
    command = [sys.executable, "-m", "ztdpu.lab.fabric.trial", kind]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_TRIAL_TIMEOUT_S, check=False)
        document: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"step": "trial", "errno": errno.ETIMEDOUT}
    except (ValueError, IndexError):
        return {"step": "trial", "errno": 0, "said": ended.stderr.strip()[-200:] or f"status {ended.returncode}"}
    return document


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
