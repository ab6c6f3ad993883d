"""Take a lab down, whole or half built, running or crashed: nothing of it stays.

    end every process of the lab -> take the namespaces' names away -> delete the state directory

Called by `cluster` (which sweeps before it builds), `ztdpu lab down` and the tests. Ends and deletes only what
bears the lab's marker, stands in its record or lies in a directory that a lab claimed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ztdpu.errors import StateError
from ztdpu.lab import netns, processes
from ztdpu.lab.layout import DEFAULT_STATE, LabPaths
from ztdpu.lab.record import LabRecord, read_record


@contextmanager
def locked(state: Path) -> Iterator[None]:
    """Hold the state directory (made when missing): two commands that build or clear it do not mix."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise StateError(
            f"another lab command works in {state}", remedy="wait for it, or name another --state"
        ) from error
    finally:
        os.close(handle)


def is_running(record: LabRecord) -> bool:
    """Tell whether the lab came up and everything that it started still runs (agents excepted)."""
    return record.complete and all(processes.is_alive(process) for process in record.processes.values())


def sweep(state: Path, prefix: str) -> None:
    """Remove what a crashed lab left; StateError when the lab there runs."""
    record = read_record(state)
    if record is not None and is_running(record):
        raise StateError(f"a lab is up in {state}", remedy="ztdpu lab down first, or name another --state and --prefix")
    clear(state)
    _drop_dead_names(prefix)


def _drop_dead_names(prefix: str) -> None:
    """Names of a lab whose state directory is lost: no process of any lab lives behind them."""
    fabric = netns.NAMES / f"{prefix}-fabric"
    if not fabric.exists():
        return
    alive = {Path(path).stat().st_ino for path in _network_namespaces()}
    names = [name for name in netns.NAMES.iterdir() if name.name.startswith(f"{prefix}-")]
    if not any(name.stat().st_ino in alive for name in names):
        for name in names:
            netns.remove(name.name)


def _network_namespaces() -> Iterator[str]:
    for entry in os.listdir("/proc"):  # noqa: PTH208 - a thousand strings
        path = f"/proc/{entry}/ns/net"
        if entry.isdecimal() and os.path.exists(path):  # noqa: PTH110 - follows what may vanish
            yield path


def stop_lab(state: Path) -> bool:
    """Take everything of the lab in `state` away; False when there was nothing. Works after any crash."""
    state = state.absolute()
    if not state.is_dir() and not processes.find_members(str(state)):
        return False
    with locked(state):
        found = clear(state)
        forget(state)
    return found


def clear(state: Path) -> bool:
    """End the lab's processes, take its names away, empty its directory; False when there was nothing of a lab."""
    record = read_record(state)
    members = processes.find_members(str(state))
    recorded = record.processes.values() if record else ()
    members |= {process.pid for process in recorded if processes.is_alive(process)}
    processes.end_members(members)
    if record is not None:
        for name in record.plan.namespaces:
            netns.remove(name)
    netns.release_names()
    ours = LabPaths(state).record.exists()
    if ours:
        for entry in sorted(state.iterdir(), key=lambda path: path == LabPaths(state).record):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    return ours or bool(members)


def forget(state: Path) -> None:
    """Remove the directory when it is empty: one that is not was never ours."""
    with suppress(OSError):
        state.rmdir()
        if state.parent == DEFAULT_STATE.parent:
            state.parent.rmdir()
