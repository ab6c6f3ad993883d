"""Network namespaces with names in /run/netns, so that `ip netns exec NAME` works as people expect.

Used by `cluster`, `links`, `factory` and `enter`. A name is a file with the namespace mounted on it, made
just as iproute2 makes it. Never touches a namespace that it was not given by name.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ztdpu.lab.namespaces.syscalls import Clone, Mount, mount, setns, umount, unshare

NAMES: Final = Path("/run/netns")


def prepare_names() -> None:
    """Make /run/netns a shared mount of its own, as iproute2 does, so that names show in every mount namespace."""
    NAMES.mkdir(parents=True, exist_ok=True)
    try:
        mount("", str(NAMES), flags=Mount.SHARED | Mount.REC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        mount(str(NAMES), str(NAMES), flags=Mount.BIND | Mount.REC)
        mount("", str(NAMES), flags=Mount.SHARED | Mount.REC)


def release_names() -> None:
    """Undo `prepare_names` when no namespace has a name any more."""
    try:
        if any(NAMES.iterdir()):
            return
        umount(str(NAMES))
        NAMES.rmdir()
    except OSError:  # not there, not a mount, or used again in between: nothing to undo
        return


def attach(name: str, source: str) -> None:
    """Give the namespace at `source` (for example /proc/PID/ns/net) a name. Raises FileExistsError."""
    target = NAMES / name
    target.touch(mode=0o444, exist_ok=False)
    try:
        mount(source, str(target), flags=Mount.BIND)
    except OSError:
        target.unlink(missing_ok=True)
        raise


def create(name: str) -> None:
    """Make a new network namespace under a name; the caller stays where it is."""
    with kept_network():
        unshare(Clone.NEWNET)
        attach(name, "/proc/self/ns/net")


def remove(name: str) -> None:
    """Take the name away; the namespace ends with its last process. Nothing happens when there is no such name."""
    target = NAMES / name
    try:
        umount(str(target))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EINVAL):
            raise
    target.unlink(missing_ok=True)


def exists(name: str) -> bool:
    """Tell whether the name is taken."""
    return (NAMES / name).exists()


@contextmanager
def kept_network() -> Iterator[None]:
    """Return to the present network namespace at the end of the block. Single-threaded callers only."""
    here = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        setns(here, Clone.NEWNET)
        os.close(here)


@contextmanager
def inside(name: str) -> Iterator[None]:
    """Run the block inside a named namespace. Raises FileNotFoundError when there is none of that name."""
    there = os.open(NAMES / name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with kept_network():
            setns(there, Clone.NEWNET)
            yield
    finally:
        os.close(there)
