"""Start, find and end the processes of a lab, also after a crash that left no record of them.

Every process that the lab starts carries `ZTDPU_LAB=<state directory>` in its environment; whoever lives in
a pid namespace of such a process belongs to the lab too. Used by `cluster`, `enter`,
`takedown`, `restart`, `status` and `userspace`.
Ends nothing else.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ztdpu.errors import MachineError

MARKER: Final = "ZTDPU_LAB"
_END_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Process:
    """A pid that cannot be mistaken for a later process of the same number."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat."""


def identify(pid: int) -> Process | None:
    """Return the process of that pid, None when there is none (or only a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else Process(pid, int(fields[19]))


def is_alive(process: Process) -> bool:
    """Tell whether exactly this process still runs."""
    return identify(process.pid) == process


def base_environment(state: str, *, home: str = "/root") -> dict[str, str]:
    """Environment of what runs in a lab: ours first in PATH, the lab's marker, the caller's language and terminal."""
    kept = {key: os.environ[key] for key in ("LANG", "LC_ALL", "TERM", "NO_COLOR", "PYTHONPATH") if key in os.environ}
    path = f"{Path(sys.prefix) / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {**kept, "PATH": path, "HOME": home, MARKER: state, "PYTHONUNBUFFERED": "1"}


def spawn_daemon(argv: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
    """Start a program with its own session and log, and default signals; returns its pid. Raises OSError."""
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    fresh = (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT)
    return os.posix_spawn(argv[0], list(argv), environment, file_actions=actions, setsid=True, setsigdef=fresh)


def find_all() -> list[int]:
    """Pids of all processes that we see."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]  # noqa: PTH208 - a thousand strings


def find_members(state: str) -> set[int]:
    """Pids of every process of the lab in `state`, ourselves excepted."""
    marker = f"{MARKER}={state}".encode()
    own_namespace = pid_namespace(os.getpid())
    pids = find_all()
    namespaces = {pid: pid_namespace(pid) for pid in pids}
    marked = {pid for pid in pids if marker in _environment(pid)}
    inhabited = {namespaces[pid] for pid in marked} - {own_namespace, ""}
    members = marked | {pid for pid in pids if namespaces[pid] in inhabited}
    closed = {pid: parent for pid, parent in _parents(pids).items() if pid not in members and _is_closed(pid)}
    return _with_descendants(members, closed) - {os.getpid()}


def _parents(pids: Iterable[int]) -> dict[int, int]:
    """Pid -> pid of its parent."""
    found = {}
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            found[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found


def _with_descendants(pids: Collection[int], parents: Mapping[int, int]) -> set[int]:
    """`pids` and all that descend from them."""
    found, fresh = set(pids), set(pids)
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


def _is_closed(pid: int) -> bool:
    """Tell whether a process of ours keeps its memory, and with it its environment, from us: workers and roots do."""
    with suppress(OSError):
        Path(f"/proc/{pid}/environ").open("rb").close()
        return False
    return identify(pid) is not None


def find_in_namespace(holder: int) -> list[int]:
    """Pids (of the host) of all processes in the pid namespace of `holder`, in order of start.

    Of a holder that has none of its own: itself and its descendants.
    """
    wanted = pid_namespace(holder)
    if wanted == pid_namespace(os.getpid()):
        found = list(_with_descendants({holder}, _parents(find_all()))) if identify(holder) else []
    else:
        found = [pid for pid in find_all() if wanted and pid_namespace(pid) == wanted]
    return sorted(found, key=lambda pid: (process.start_ticks if (process := identify(pid)) else 0, pid))


def find_children() -> set[int]:
    """Pids of our own children: those that `lab up` forked and that bear no marker yet."""
    tasks = os.listdir("/proc/self/task")  # noqa: PTH208 - numbers, not paths
    with suppress(OSError):
        return {int(pid) for task in tasks for pid in Path(f"/proc/self/task/{task}/children").read_text().split()}
    return set()


def network_namespace(pid: int) -> int:
    """Inode of the network namespace that a process is in, 0 when it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    return 0


def find_in_network(inodes: Collection[int]) -> list[int]:
    """Pids of all processes in these network namespaces, ourselves excepted."""
    return [pid for pid in find_all() if network_namespace(pid) in inodes and pid != os.getpid()]


def command_line(pid: int) -> list[str]:
    """Arguments of a process, empty when it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    return []


def resident_octets(pid: int) -> int:
    """Resident memory of a process, 0 when it is gone."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def ask_to_end(pids: Collection[int], *, patience_s: float = 5.0) -> None:
    """Send SIGTERM, wait, and kill what is still there. MachineError names what stays."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    while any(identify(pid) is not None for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    end_members(pid for pid in pids if identify(pid) is not None)


def end_members(pids: Iterable[int]) -> None:
    """Kill and wait until all are gone, zombies of ours included. MachineError names what stays."""
    remaining = set(pids)
    for pid in remaining:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _END_TIMEOUT_S
    while remaining:
        for pid in list(remaining):
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            if identify(pid) is None:
                remaining.discard(pid)
        if remaining and time.monotonic() > deadline:
            raise MachineError(f"processes do not end: {sorted(remaining)}", remedy="look at them with ps, then retry")
        if remaining:
            time.sleep(0.005)


def pid_namespace(pid: int) -> str:
    """Name of the pid namespace of a process, empty when it is gone or not ours to see."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")  # noqa: PTH115 - not a path, a name of a namespace
    except OSError:
        return ""


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
