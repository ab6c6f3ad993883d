"""Run a program inside a target of the lab: endpoint, device, fabric or control.

Called by `ztdpu lab exec`, and as a program of its own by the demo and the tests, which have threads:

    python -m ztdpu.lab.enter STATE TARGET PROGRAM [ARGUMENT...]

In an endpoint or device the program is root of that one's user namespace, never of the host. Forks: callers of
the functions have no threads and no grpc.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from ztdpu.errors import MachineError, UsageError, ZtdpuError
from ztdpu.lab.fabric.choice import Fabric, Isolation
from ztdpu.lab.layout import PLACES
from ztdpu.lab.namespaces.enclosure import enter_enclosure
from ztdpu.lab.namespaces.netns import NAMES
from ztdpu.lab.namespaces.syscalls import Clone, become_root, setns
from ztdpu.lab.processes import base_environment, spawn_daemon
from ztdpu.lab.record import LabRecord, require_record

SIDECAR_SOCKET: Final = "unix:///run/ztdpu/sidecar/api.sock"
"""What an endpoint finds in SPIFFE_ENDPOINT_SOCKET: its own sidecar, at the place where `cluster` binds it."""
_NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126
_ORDER: Final = (
    ("pid", Clone.NEWPID), ("ipc", Clone.NEWIPC), ("uts", Clone.NEWUTS), ("net", Clone.NEWNET),
    ("mnt", Clone.NEWNS), ("user", Clone.NEWUSER),
)  # fmt: skip
"""The user namespace last: until then host root may enter the others."""
_PASSED_ON: Final = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH)


def enter_target(record: LabRecord, target: str) -> bool:
    """Move this process into `target`; True when only its next child is in the pid namespace as well.

    In `fabric`, `oob` and `control` what runs stays root of the host (or of the enclosure): they are network
    namespaces and nothing more.
    """
    enter_enclosure(record)
    if target in PLACES:
        descriptor = os.open(NAMES / record.plan.namespace(target), os.O_RDONLY | os.O_CLOEXEC)
        setns(descriptor, Clone.NEWNET)
        os.close(descriptor)
        return False
    names = record.plan.inhabitants
    if target not in names:
        raise UsageError(f"no {target!r} in this lab", remedy=f"targets: {', '.join([*PLACES, *names])}")
    holder = record.holder(target)
    held = [(os.open(f"/proc/{holder.pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), kind) for name, kind in _ORDER]
    record.holder(target)  # still the same process: its namespaces, not those of a successor
    for descriptor, kind in held:
        setns(descriptor, kind)
        os.close(descriptor)
    become_root(keep_groups=record.isolation is Isolation.SHARED_UID)
    return True


def run_inside(record: LabRecord, target: str, argv: Sequence[str], *, environment: Mapping[str, str]) -> int:
    """Run `argv` in `target` with our descriptors and terminal; return its exit status as a shell would.

    The process enters `target` itself and does not come back: call it last, or in a child.
    """
    if record.fabric is Fabric.USERSPACE:
        from ztdpu.lab.userspace.enter import run_plainly

        return run_plainly(record, target, argv)
    here = _working_directory()
    if any(one.name == target for one in record.plan.endpoints):
        environment = {"SPIFFE_ENDPOINT_SOCKET": SIDECAR_SOCKET, **environment}
    if enter_target(record, target):
        _return_to(here, target)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        # A session of its own: whoever has the caller's as well can type into the caller's terminal (TIOCSTI).
        os.setsid()
        _exec(argv, environment)

    def pass_on(number: int, _: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(pid, number)

    # What the terminal tells its own session we hand on; and we stay to report how it ended.
    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def start_inside(
    record: LabRecord, target: str, argv: Sequence[str], *, environment: Mapping[str, str], log: Path
) -> None:
    """Start a daemon in a device: own session, `log` as the device sees it, a child of the first process there.

    Returns when it was started. Raises MachineError. The caller has no threads.
    """
    record.holder(target)
    pid = os.fork()
    if pid == 0:
        try:
            enter_target(record, target)
            # The next child is inside the pid namespace; its own child falls to the first process there.
            _end_as(os.fork() or _start_daemon(argv, environment, log))
        except BaseException as error:  # noqa: BLE001 - a child must not go on as if it were the caller
            os.write(2, f"{target}: {error}\n".encode())
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    if status:
        raise MachineError(f"{target}: {argv[0]} cannot be started")


def _end_as(child: int) -> None:
    """Wait for a child and end as it ended."""
    _, status = os.waitpid(child, 0)
    os._exit(min(abs(os.waitstatus_to_exitcode(status)), 255))


def _start_daemon(argv: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
    """Leave the daemon behind and end. Never returns."""
    try:
        os.chdir("/")
        os.setsid()
        spawn_daemon(argv, environment, log)
        os._exit(0)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(1)


def _working_directory() -> str:
    """Where the caller stands; empty when the directory is gone."""
    try:
        return os.getcwd()  # noqa: PTH109 - a string for chdir
    except OSError:
        return ""


def _return_to(directory: str, target: str) -> None:
    """Go where the caller stood, so that relative paths mean the same, or to / and say so."""
    try:
        os.chdir(directory)  # "" is refused like any other that is not there
    except OSError:
        os.chdir("/")
        named = directory or "the present directory"
        print(f"note: {named} is not visible in {target}; the program starts in /", file=sys.stderr)


def _exec(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    try:
        os.execvpe(argv[0], list(argv), dict(environment))  # noqa: S606 - a program with its arguments is what is wanted
    except FileNotFoundError:
        os.write(2, f"error: {argv[0]}: no such program there\n".encode())
        os._exit(_NOT_FOUND)
    except OSError as error:
        os.write(2, f"error: {argv[0]}: {error.strerror}\n".encode())
    os._exit(_NOT_EXECUTABLE)


def main() -> None:
    """Run from the command line; see the module."""
    if len(sys.argv) < 4:
        raise SystemExit("usage: python -m ztdpu.lab.enter STATE TARGET PROGRAM [ARGUMENT...]")
    try:
        record = require_record(Path(sys.argv[1]))
        environment = base_environment(record.plan.state)
        sys.exit(run_inside(record, sys.argv[2], sys.argv[3:], environment=environment))
    except ZtdpuError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
