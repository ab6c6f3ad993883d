"""Root of trust and worker as child processes: started, watched, started again, ended.

1. `start_processes` runs before gRPC is imported, so that the first children come from a small, single-threaded
   process. Restarts use posix_spawn too: no fork handler of any library runs, gRPC loaded or not.
2. `Supervisor.keep_worker` and `keep_root` own one child each for as long as the daemon lives: wait for its
   end, tell the daemon, start the next one. The first restart comes at once, then the pause doubles from
   0.1 s to RESTART_LIMIT_S; ten quiet seconds forgive everything.
3. Children end with the daemon, however it ends: the worker at the end of its mailbox, the root of trust at the
   end of the pipe whose other side only the daemon holds.

Called by `agent.run` and `agent.daemon`. Never decides about leases and never looks into messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ztdpu.agent import mailbox
from ztdpu.agent.journal import warn
from ztdpu.agent.mailbox_channel import MailboxChannel
from ztdpu.agent.socket_files import is_served, remove_unserved
from ztdpu.errors import ConfigurationError, StateError

FIRST_PAUSE_S: Final = 0.1
RESTART_LIMIT_S: Final = 1.5
"""With the start itself a dead worker is back within 2 s."""
FORGIVE_AFTER_S: Final = 10.0
END_GRACE_S: Final = 0.8
ROOT_START_LIMIT_S: Final = 10.0
LEFTOVER_LIMIT_S: Final = 3.0
"""How long the root of trust of an agent that was killed may take to notice."""
CANNOT_START: Final = 2
"""Exit status of a root of trust whose secrets or profile are unusable."""
_RESET_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """Where the root of trust listens."""

    spdm_socket: Path
    binding_socket: Path

    @property
    def paths(self) -> tuple[Path, Path]:
        """Both."""
        return self.spdm_socket, self.binding_socket

    @property
    def are_open(self) -> bool:
        """Whether somebody listens at both."""
        return all(is_served(path) for path in self.paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """What to run. Tests put small programs here."""

    worker: tuple[str, ...]
    """The mailbox descriptor's number is appended."""
    root_of_trust: tuple[str, ...]
    """The parent descriptor's number is appended."""
    doors: Doors


@dataclass(slots=True, kw_only=True)
class Child:
    """One running process and the daemon's end of its lifeline."""

    pid: int
    pidfd: int
    lifeline: socket.socket
    """Mailbox of the worker; for the root of trust a socket whose closing tells it to end."""
    started_s: float


def programs(
    *, state_dir: Path, secrets_file: Path, profile: str, fault: str | None = None, fault_socket: Path | None = None
) -> Programs:
    """Name the real programs."""
    doors = Doors(spdm_socket=state_dir / "spdm.sock", binding_socket=state_dir / "binding.sock")
    root = (
        sys.executable, "-m", "ztdpu.agent.root_of_trust",
        "--secrets", str(secrets_file), "--profile", profile,
        "--spdm-socket", str(doors.spdm_socket), "--binding-socket", str(doors.binding_socket),
        *(("--fault", fault) if fault else ()),
        *(("--fault-socket", str(fault_socket)) if fault_socket else ()), "--parent-fd",
    )  # fmt: skip
    worker = (sys.executable, "-m", "ztdpu.agent.worker", "--mailbox-fd")
    return Programs(worker=worker, root_of_trust=root, doors=doors)


def spawn(program: Sequence[str], *, kind: socket.SocketKind) -> Child:
    """Start `program` with the number of its end of a fresh socket pair as last argument."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    with theirs:
        theirs.set_inheritable(True)
        arguments = [*program, str(theirs.fileno())]
        pid = os.posix_spawn(arguments[0], arguments, os.environ, setsigmask=[], setsigdef=_RESET_SIGNALS)
    return Child(pid=pid, pidfd=os.pidfd_open(pid), lifeline=ours, started_s=time.monotonic())


def start_processes(wanted: Programs) -> tuple[Child, Child]:
    """Start root of trust and worker, in this order, before anything heavy is imported.

    Raises StateError when another root of trust serves the doors.
    """
    for path in wanted.doors.paths:
        remove_unserved(path, wait_s=LEFTOVER_LIMIT_S)
    return spawn(wanted.root_of_trust, kind=socket.SOCK_STREAM), spawn(wanted.worker, kind=socket.SOCK_SEQPACKET)


class Supervisor:
    """Keeps both children alive. One per daemon; callbacks run on the event loop."""

    def __init__(
        self,
        wanted: Programs,
        *,
        on_worker_message: Callable[[mailbox.Message], None],
        on_worker_down: Callable[[], None],
        on_root_up: Callable[[], None],
        on_root_down: Callable[[], None],
    ) -> None:
        self._wanted = wanted
        self._on_worker_message = on_worker_message
        self._on_worker_down = on_worker_down
        self._on_root_up = on_root_up
        self._on_root_down = on_root_down
        self.channel: MailboxChannel | None = None
        """Mailbox of the worker that runs; None between two workers."""
        self._root: Child | None = None
        self._worker: Child | None = None

    async def keep_worker(self, first: Child | None = None) -> None:
        """Run workers, one after the other, until cancelled."""
        pause_s = FIRST_PAUSE_S
        while True:
            child = first or spawn(self._wanted.worker, kind=socket.SOCK_SEQPACKET)
            first, self._worker = None, child
            lost = asyncio.Event()
            self.channel = MailboxChannel(child.lifeline, on_message=self._on_worker_message, on_lost=lost.set)
            try:
                await _first_of(lost.wait(), _ended(child))
            finally:
                self.channel.close()
                self.channel = None
            status = await end(child)
            self._worker = None
            warn("worker-ended", status=status)
            self._on_worker_down()
            pause_s = await _pause(child, pause_s)

    async def keep_root(self, first: Child | None = None) -> None:
        """Run the root of trust, boot after boot, until cancelled.

        Raises ConfigurationError when the very first boot says that its secrets or profile are unusable.
        """
        pause_s, was_up = FIRST_PAUSE_S, False
        while True:
            child = first or spawn(self._wanted.root_of_trust, kind=socket.SOCK_STREAM)
            first, self._root = None, child
            watching = asyncio.ensure_future(_ended(child))
            try:
                if await self._doors_open(watching):
                    was_up = True
                    self._on_root_up()
                await watching
            finally:
                watching.cancel()
            status = await end(child)
            self._root = None
            if status == CANNOT_START and not was_up:
                raise ConfigurationError(
                    "the root of trust cannot start, it said why", remedy="mend rootOfTrust in the start-up file"
                )
            warn("root-of-trust-ended", status=status)
            for path in self._wanted.doors.paths:
                with contextlib.suppress(StateError):  # the next one says so and is tried again until the other ends
                    remove_unserved(path)
            self._on_root_down()
            pause_s = await _pause(child, pause_s)

    def reboot_root(self, *, hangs: bool = False) -> None:
        """End the present boot; `keep_root` starts a newer one. A process that hangs would not hear a kind word."""
        if self._root is not None:
            self._root.lifeline.close()
            _signal(self._root, signal.SIGKILL if hangs else signal.SIGTERM)

    def replace_worker(self) -> None:
        """Give up a worker that does not answer; `keep_worker` starts another."""
        if self._worker is not None:
            _signal(self._worker, signal.SIGKILL)

    async def end_worker(self) -> None:
        """Return once the present worker is dead for certain; `keep_worker` reaps it and starts another."""
        child = self._worker
        if child is not None:
            _signal(child, signal.SIGKILL)
            await _ended(child)

    async def end_leaving_worker(self) -> None:
        """Return once a worker that lost its mailbox is dead; one that has it is left alone."""
        if self.channel is None:
            await self.end_worker()

    async def stop(self) -> None:
        """End both children, by force after END_GRACE_S. Call after `keep_*` were cancelled."""
        await asyncio.gather(*(end(child) for child in (self._root, self._worker) if child is not None))
        self._root = self._worker = None

    async def _doors_open(self, watching: asyncio.Future[None]) -> bool:
        deadline_s = time.monotonic() + ROOT_START_LIMIT_S
        while time.monotonic() < deadline_s and not watching.done():
            if self._wanted.doors.are_open:
                return True
            await asyncio.sleep(0.01)
        if not watching.done():
            warn("root-of-trust-silent", limit_s=ROOT_START_LIMIT_S)
            self.reboot_root(hangs=True)
        return False


async def end(child: Child) -> int:
    """Close the lifeline, wait END_GRACE_S, kill if needed, reap. Returns the exit status as waitid gives it."""
    child.lifeline.close()
    try:
        async with asyncio.timeout(END_GRACE_S):
            await _ended(child)
    except TimeoutError:
        _signal(child, signal.SIGKILL)
        await _ended(child)
    result = os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED)  # noqa: ASYNC222 - it ended, this only reaps
    os.close(child.pidfd)
    return result.si_status if result is not None else -1


async def _ended(child: Child) -> None:
    """Return when the process is a zombie; reaping is left to `end`."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    descriptor = os.dup(child.pidfd)
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def _first_of(*waits: Coroutine[object, object, object]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _pause(child: Child, pause_s: float) -> float:
    """Wait before the next start and return the pause after that one."""
    if time.monotonic() - child.started_s > FORGIVE_AFTER_S:
        pause_s = FIRST_PAUSE_S
    await asyncio.sleep(pause_s)
    return min(pause_s * 2, RESTART_LIMIT_S)


def _signal(child: Child, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(child.pidfd, number)
