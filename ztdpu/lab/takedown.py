"""Take a lab down, whole or half built, running or crashed: nothing of it stays, and nothing is claimed that is not so.

    end every process of the lab -> take the namespaces' names away -> delete the state directory -> count again

What belongs to a lab is found three ways, so that each may be lost: the record in its state directory, the marker
in the environment of its processes (and who lives in their pid namespaces), the marks in its namespaces. Called by
`cluster` (which sweeps before it builds), `ztdpu lab down` and the tests. Ends and deletes nothing else.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ztdpu.errors import MachineError, StateError, UsageError
from ztdpu.lab import marks, processes
from ztdpu.lab.fabric.choice import Fabric
from ztdpu.lab.layout import LabPaths, lab_command, real_path
from ztdpu.lab.namespaces import netns
from ztdpu.lab.namespaces.roles import with_found_services
from ztdpu.lab.record import LabRecord, read_record
from ztdpu.rpc.places import RUNTIME_DIRECTORY, make_runtime_directory

Say = Callable[[str], None]


def say_on_stderr(words: str) -> None:
    """Tell a person; one who hung up or closed the pipe is no reason to stop half way."""
    with suppress(OSError):
        print(words, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Belongings:
    """All that is found of one lab."""

    record: LabRecord | None
    trouble: str
    """Why there is no record although there is a file; empty otherwise."""
    members: frozenset[int]
    """Pids."""
    names: frozenset[str]
    """Names in /run/netns."""

    @property
    def nothing(self) -> bool:
        """Whether no process and no namespace was found."""
        return not self.members and not self.names


def find_belongings(state: Path) -> Belongings:
    """Look for everything that the lab in `state` has. The caller has no threads."""
    record, trouble = None, ""
    try:
        record = read_record(state)
        if record is not None:
            record = with_found_services(record)
    except StateError as error:
        trouble = error.message
    members = processes.find_members(str(state))
    owners = marks.owners(marks.read_marks())
    names = {name for name, owner in owners.items() if owner == str(state)}
    if record is not None:
        members |= {record.processes[name].pid for name in record.alive}
        if record.fabric is Fabric.NETNS:  # those of a userns lab end with its processes, out of our sight
            names |= {name for name in record.plan.namespaces if netns.exists(name) and name not in owners}
    names |= marks.inhabited_names({processes.network_namespace(pid) for pid in members})
    return Belongings(record=record, trouble=trouble, members=frozenset(members), names=frozenset(names))


def require_owner(state: Path) -> None:
    """Raise MachineError when the lab in `state` is not ours to touch: root's, or another user's."""
    try:
        owner = state.stat().st_uid
    except FileNotFoundError:
        return
    except OSError as error:
        raise MachineError(f"{state}: {error.strerror}", remedy="do it as the user who started the lab") from error
    if os.geteuid() not in {0, owner}:
        remedy = "sudo" if owner == 0 else f"do it as user {owner}, who started it, or with sudo"
        raise MachineError(f"the lab in {state} is not yours", remedy=remedy)


@contextmanager
def locked(state: Path) -> Iterator[None]:
    """Hold the state directory (made when missing): two commands that build or clear it do not mix."""
    try:
        if state.parent in {RUNTIME_DIRECTORY, real_path(RUNTIME_DIRECTORY)}:  # a link there was followed to get here
            make_runtime_directory(RUNTIME_DIRECTORY)
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(
            f"{state} cannot hold a lab: {error.strerror}", remedy="name another directory with --state"
        ) from error
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
    """Tell whether there is a lab that came up and that somebody may still use, parts of it dead or not."""
    return record.complete and bool(record.alive)


def sweep(state: Path, prefix: str, *, replace: bool = False, say: Say = say_on_stderr) -> None:
    """Make room for a new lab: remove what a crashed one left in `state` or under `prefix`, and say so.

    A lab that is up, or that is dead in part, is removed only with `replace`; StateError says how it stands.
    """
    found = find_belongings(state)
    if not replace:
        _refuse_what_lives(state, found)
    if found.record is not None or not found.nothing:
        count = f"{len(found.members)} processes, {len(found.names)} namespaces"
        say(f"{'replacing the' if replace else 'removing what is left of a crashed'} lab in {state} ({count})")
    clear(state)
    for other in {mark.state for mark in marks.read_marks() if mark.prefix == prefix} - {str(state)}:
        _sweep_other(Path(other), prefix, say)


def _refuse_what_lives(state: Path, found: Belongings) -> None:
    down = lab_command("down", state)
    if found.trouble and found.members:
        raise StateError(
            f"{found.trouble}; {len(found.members)} processes of that lab still run", remedy=_ways_out(state)
        )
    record = found.record
    if record is None or not is_running(record):
        return
    if not record.dead:
        raise StateError(f"a lab is up in {state}", remedy=f"{down} first, or name another --state and --prefix")
    named = "; ".join(f"{name} of the lab in {state} is dead (pid {pid})" for name, pid in record.dead.items())
    mendable = [name for name in record.dead if name in ("control", "factory")]
    restart = f"{lab_command('restart', state, mendable[0])}, or " if len(mendable) == len(record.dead) == 1 else ""
    raise StateError(named, remedy=restart + _ways_out(state, record.plan.prefix))


def _ways_out(state: Path, prefix: str = "") -> str:
    again = lab_command("up", state, "--replace", **({"prefix": prefix} if prefix else {}))
    return f"{lab_command('down', state)}, or {again}"


def _sweep_other(other: Path, prefix: str, say: Say) -> None:
    """The prefix is held by the lab of another directory: remove what is left of it when nothing of it lives."""
    if find_belongings(other).members:
        raise StateError(
            f"the namespaces {prefix}-* are those of the lab in {other}",
            remedy=f"{lab_command('down', other)} first, or choose another --prefix",
        )
    say(f"removing what is left of a crashed lab in {other}")
    stop_lab(other)


def stop_lab(state: Path, *, say: Say = say_on_stderr) -> bool:
    """Take everything of the lab in `state` away; False when there was nothing. Works after any crash.

    MachineError names what could not be taken away.
    """
    state = real_path(state)
    require_owner(state)
    if not state.exists() and find_belongings(state).nothing:
        return False
    with locked(state):
        found = clear(state, say=say)
        forget(state)
    left = find_belongings(state)
    if not left.nothing:
        parts = [f"process {pid}" for pid in sorted(left.members)]
        parts += [f"namespace {name}" for name in sorted(left.names)]
        remains = f"the lab in {state} is not down, this remains: {', '.join(parts)}"
        raise MachineError(remains, remedy=f"{lab_command('down', state)} again")
    return found


def clear(state: Path, *, say: Say = say_on_stderr) -> bool:
    """End the lab's processes, take its names away, empty its directory; False when there was nothing of a lab."""
    found = find_belongings(state)
    if found.trouble:
        say(f"{found.trouble}: going by its processes and namespaces")
    guests = _guests(found)
    processes.end_members(found.members)
    for name in found.names:
        netns.remove(name)
    netns.release_names()
    for pid, words in guests.items():
        say(f"{words} (pid {pid}) still runs in a namespace of the lab, which ends with it")
    record = LabPaths(state).record
    ours = os.path.lexists(record) or not found.nothing
    if ours and state.is_dir():
        # The record goes last: as long as it is there, what is left can be found again.
        for entry in sorted(state.iterdir(), key=lambda path: path == record):
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    return ours


def _guests(found: Belongings) -> dict[int, str]:
    """Processes that somebody put into the lab's namespaces by other means than ours: not ours to end."""
    inodes = {(netns.NAMES / name).stat().st_ino for name in found.names}
    inodes |= {processes.network_namespace(pid) for pid in found.members} - {
        0,
        processes.network_namespace(os.getpid()),
    }
    pids = [pid for pid in processes.find_in_network(inodes) if pid not in found.members]
    return {pid: (processes.command_line(pid) or ["a process"])[0] for pid in pids}


def forget(state: Path) -> None:
    """Remove the directory when it is empty: one that is not was never ours."""
    with suppress(OSError):
        state.rmdir()
        if state.parent == RUNTIME_DIRECTORY:
            state.parent.rmdir()
