"""The enclosure of a userns lab: one user, mount, network, IPC and UTS namespace around the whole lab.

Whoever made it is root in it, and nowhere else. Its uid map has one line of one uid, because that is what the kernel
lets anybody write; so every device and endpoint, in user namespaces of their own below, is that same uid to the kernel
(isolation `shared-uid`). It has a /run of its own, and so a /run/netns of its own: namespaces have the same names as
with the netns fabric, and nobody else sees them.

    make_enclosure     by `lab up`, which moves into it and leaves `holder` behind
    enter_enclosure    by every later command that needs to be root in it

Nothing is undone: when its last process ends, the enclosure and all its mounts and interfaces are gone. There is no
pid namespace around it, so pids are the host's, for `lab status` and for people.
"""

from __future__ import annotations

import os
import socket
import stat
import sys
from pathlib import Path
from typing import Final

from ztdpu.errors import MachineError
from ztdpu.lab.fabric.choice import Fabric
from ztdpu.lab.fabric.trial import map_own_ids
from ztdpu.lab.layout import ENCLOSURE
from ztdpu.lab.namespaces.syscalls import Clone, Mount, become_root, mount, setns, unshare
from ztdpu.lab.processes import MARKER
from ztdpu.lab.record import LabRecord

_KINDS: Final = (
    ("user", Clone.NEWUSER), ("net", Clone.NEWNET), ("mnt", Clone.NEWNS), ("ipc", Clone.NEWIPC), ("uts", Clone.NEWUTS),
)  # fmt: skip
"""The user namespace first: only its root may enter the others."""
_READY_S: Final = 10.0
_RUN: Final = Path("/run")


def make_enclosure(state: str) -> int:
    """Move this process into a new enclosure and return the pid of the process that holds it.

    The caller has no threads. Raises OSError, and MachineError when the holder does not start.
    """
    uid, gid = os.geteuid(), os.getegid()
    unshare(Clone.NEWUSER | Clone.NEWNS | Clone.NEWNET | Clone.NEWIPC | Clone.NEWUTS)
    map_own_ids(uid, gid)
    mount("", "/", flags=Mount.REC | Mount.PRIVATE)
    _make_own_run()
    return _start_holder(state)


def enter_enclosure(record: LabRecord) -> None:
    """Become root of the lab's enclosure; nothing happens where there is none, or where we are in it.

    The caller has no threads. StateError when its first process is gone, MachineError when the kernel says no.
    """
    if record.fabric is not Fabric.USERNS:
        return
    holder = record.holder(ENCLOSURE)
    try:
        held = [(os.open(f"/proc/{holder.pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), kind) for name, kind in _KINDS]
        record.holder(ENCLOSURE)  # still the same process
        if os.fstat(held[0][0]).st_ino != Path("/proc/self/ns/user").stat().st_ino:
            here = os.open(".", os.O_PATH | os.O_CLOEXEC)
            for descriptor, kind in held:
                setns(descriptor, kind)
            become_root(keep_groups=True)
            _return_to(here)
        for descriptor, _ in held:
            os.close(descriptor)
    except OSError as error:
        raise MachineError(
            f"the lab in {record.plan.state} cannot be entered: {error.strerror}",
            remedy="do it as the user who started the lab",
        ) from error


def _return_to(here: int) -> None:
    """Stand where we stood, seen from inside: entering a mount namespace leads to its root."""
    try:
        path = os.readlink(f"/proc/self/fd/{here}")  # noqa: PTH115 - a descriptor
        os.chdir(path)
    except OSError:
        os.chdir("/")
    finally:
        os.close(here)


def _make_own_run() -> None:
    """Cover /run by one that is ours, with all that was in it except the named namespaces of others."""
    names = [name for name in os.listdir(_RUN) if name != "netns"]  # noqa: PTH208 - names
    links = {name: os.readlink(_RUN / name) for name in names if (_RUN / name).is_symlink()}  # noqa: PTH115
    held = {name: os.open(_RUN / name, os.O_PATH | os.O_CLOEXEC) for name in names if name not in links}
    mount("tmpfs", str(_RUN), "tmpfs", Mount.NOSUID | Mount.NODEV, "mode=755,size=16m")
    for name, goal in links.items():
        (_RUN / name).symlink_to(goal)
    for name, descriptor in held.items():
        target = _RUN / name
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            target.mkdir()
        else:
            target.touch()
        mount(f"/proc/self/fd/{descriptor}", str(target), flags=Mount.BIND | Mount.REC)
        os.close(descriptor)


def _start_holder(state: str) -> int:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.settimeout(_READY_S)
        interpreter = os.path.realpath(sys.executable)
        program = str(Path(__file__).resolve().with_name("holder.py"))
        null = os.devnull
        pid = os.posix_spawn(
            interpreter,
            [interpreter, "-I", "-S", program, ENCLOSURE],
            {MARKER: state},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
                (os.POSIX_SPAWN_OPEN, 1, null, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, null, os.O_WRONLY, 0),
            ],
            setsid=True,
        )
        theirs.close()
        try:
            answer = ours.recv(4096)
        except TimeoutError as error:
            raise MachineError("the first process of the enclosure does not answer") from error
        if not answer:
            raise MachineError("the first process of the enclosure ended at once")
    return pid
