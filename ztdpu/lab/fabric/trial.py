"""Do once what a lab would do, in namespaces that end with this process, and print where it was stopped.

    python -m ztdpu.lab.fabric.trial netns|userns   ->   {}   or   {"step": "unshare", "errno": 1}

Run by `fabric` as a program of its own, so that nothing of its namespaces reaches the caller.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ztdpu.lab.namespaces.syscalls import Clone, Mount, mount, set_read_only, unshare

_SYSCTL: Final = "/proc/sys/net/ipv4/ip_forward"
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_BATCH: Final = "link add br0 type bridge\nlink add v0 type veth peer name v1\nlink set v0 master br0\n"
_INSIDE: Final = Clone.NEWNS | Clone.NEWNET | Clone.NEWPID | Clone.NEWIPC | Clone.NEWUTS


class _StoppedError(Exception):
    """The kernel said no at a step."""

    def __init__(self, step: str, number: int, said: str = "") -> None:
        super().__init__(step)
        self.document = {"step": step, "errno": number, "said": said}


@contextmanager
def _step(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _StoppedError(name, error.errno or 0) from error


def _try_all(kind: str) -> None:
    uid, gid = os.geteuid(), os.getegid()
    with _step("unshare"):
        unshare(_INSIDE | (Clone.NEWUSER if kind == "userns" else Clone(0)))
    if kind == "userns":
        with _step("map"):
            map_own_ids(uid, gid)
    with _step("sysctl"):  # here by the /proc that is there, as for the namespaces that nobody lives in
        Path(_SYSCTL).write_text("0")
    with _step("fork"):
        pid = os.fork()
    if pid == 0:
        _report(_try_inside)
        os._exit(0)
    os.waitpid(pid, 0)


def map_own_ids(uid: int, gid: int) -> None:
    """Be root of the user namespace just made: the one uid and gid that anybody may map. Raises OSError."""
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1\n")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1\n")


def _try_inside() -> None:
    """As the first process of the new pid namespace."""
    with _step("mount"):
        mount("", "/", flags=Mount.REC | Mount.PRIVATE)
        set_read_only("/", read_only=True, recursive=True)
        mount("tmpfs", "/tmp", "tmpfs", Mount.NOSUID | Mount.NODEV)  # noqa: S108 - covered, not used
    with _step("proc"):
        mount("proc", "/proc", "proc", Mount.NOSUID | Mount.NODEV | Mount.NOEXEC)
    with _step("sysctl"):
        Path(_SYSCTL).write_text("0")
    with _step("tun"):
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    with _step("tun-make"):
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", b"trial", _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR))
    try:
        ended = subprocess.run(["ip", "-batch", "-"], input=_BATCH, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise _StoppedError("ip", errno.ENOENT, "no such program") from error
    if ended.returncode != 0:
        raise _StoppedError("ip", 0, ended.stderr.strip().splitlines()[0] if ended.stderr.strip() else "no word")


def _report(work: Callable[[], None]) -> None:
    try:
        work()
    except _StoppedError as stopped:
        print(json.dumps(stopped.document), flush=True)
        os._exit(0)


def main() -> None:
    """See the module."""
    kinds = {"netns", "userns"}
    if len(sys.argv) != 2 or sys.argv[1] not in kinds:
        raise SystemExit("usage: python -m ztdpu.lab.fabric.trial netns|userns")
    print("{}", flush=True)
    _report(lambda: _try_all(sys.argv[1]))


if __name__ == "__main__":
    main()
