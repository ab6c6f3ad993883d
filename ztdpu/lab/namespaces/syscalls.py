"""The few Linux calls that Python 3.11 lacks: unshare, setns, mount, umount2, mount_setattr.

Called by the other lab modules that make namespaces. Each function raises OSError with the path or flag
in its text; none keeps state.
"""

from __future__ import annotations

import ctypes
import os
from enum import IntFlag
from typing import Final


class Clone(IntFlag):
    """Namespace kinds, for unshare(2) and setns(2)."""

    NEWNS = 0x00020000
    NEWUTS = 0x04000000
    NEWIPC = 0x08000000
    NEWUSER = 0x10000000
    NEWPID = 0x20000000
    NEWNET = 0x40000000


class Mount(IntFlag):
    """Flags of mount(2)."""

    NONE = 0
    RDONLY = 1
    NOSUID = 2
    NODEV = 4
    NOEXEC = 8
    BIND = 4096
    REC = 16384
    PRIVATE = 1 << 18
    SHARED = 1 << 20


MNT_DETACH: Final = 2
_AT_RECURSIVE: Final = 0x8000
_AT_FDCWD: Final = -100
_MOUNT_ATTR_RDONLY: Final = 1
_SYS_MOUNT_SETATTR: Final = 442
"""The same number on every architecture (added after the tables were unified)."""

_PR_SET_CHILD_SUBREAPER: Final = 36

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(kinds: Clone) -> None:
    """New namespaces for this process (NEWPID: for its next children), see the manual page of the call."""
    _check(_libc.unshare(int(kinds)), f"unshare {kinds!r}")


def setns(descriptor: int, kind: Clone) -> None:
    """Enter the namespace behind `descriptor`."""
    _check(_libc.setns(descriptor, int(kind)), f"setns {kind!r}")


def adopt_orphans() -> None:
    """From now on processes below us whose parent ends become our children."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0), "prctl PR_SET_CHILD_SUBREAPER")


def become_root(*, keep_groups: bool = False) -> None:
    """Be root of the present user namespace. One that was not made by root does not let further groups go."""
    if not keep_groups:
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def mount(source: str, target: str, kind: str = "", flags: Mount = Mount.NONE, data: str = "") -> None:
    """Attach a file system or change a mount; empty strings stand for NULL."""
    result = _libc.mount(
        source.encode() or None,
        target.encode(),
        kind.encode() or None,
        ctypes.c_ulong(int(flags)),
        data.encode() or None,
    )
    _check(result, f"mount {source or kind} on {target}")


def umount(target: str) -> None:
    """Detach the top mount at `target` and what is below it (MNT_DETACH)."""
    _check(_libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def set_read_only(target: str, *, read_only: bool, recursive: bool) -> None:
    """Set or clear read-only on a mount (not on its file system), with everything below when `recursive`."""
    attributes = _MountAttributes(
        attr_set=_MOUNT_ATTR_RDONLY if read_only else 0, attr_clr=0 if read_only else _MOUNT_ATTR_RDONLY
    )
    result = _libc.syscall(
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(target.encode()),
        ctypes.c_uint(_AT_RECURSIVE if recursive else 0),
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    _check(result, f"mount_setattr {target}")
