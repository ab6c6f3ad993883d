from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ztdpu.agent import mailbox
from ztdpu.agent.supervisor import Doors, Programs, Supervisor, end, spawn, start_processes
from ztdpu.errors import ConfigurationError

SMALL_WORKER = (sys.executable, str(Path(__file__).with_name("small_worker.py")))
SMALL_ROOT = """
import os, selectors, socket, sys
doors = []
for path in sys.argv[1:3]:
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door.bind(path)
    door.listen(8)
    doors.append(door)
selector = selectors.DefaultSelector()
selector.register(int(sys.argv[3]), selectors.EVENT_READ)
selector.select()
"""


@pytest.fixture
def wanted(tmp_path: Path) -> Programs:
    doors = Doors(spdm_socket=tmp_path / "spdm.sock", binding_socket=tmp_path / "binding.sock")
    root = (sys.executable, "-c", SMALL_ROOT, str(doors.spdm_socket), str(doors.binding_socket))
    return Programs(worker=SMALL_WORKER, root_of_trust=root, doors=doors)


class Watch:
    """A supervisor with everything it said."""

    def __init__(self, wanted: Programs) -> None:
        self.events: list[object] = []
        self.supervisor = Supervisor(
            wanted,
            on_worker_message=self.events.append,
            on_worker_down=lambda: self.events.append("worker-down"),
            on_root_up=lambda: self.events.append("root-up"),
            on_root_down=lambda: self.events.append("root-down"),
        )

    def ready(self) -> list[mailbox.WorkerReady]:
        return [event for event in self.events if isinstance(event, mailbox.WorkerReady)]

    async def until(self, condition, limit_s: float = 30.0) -> None:
        async with asyncio.timeout(limit_s):
            while True:
                if condition():
                    return
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def running(wanted: Programs):
    watch = Watch(wanted)
    root, worker = start_processes(wanted)
    tasks = [
        asyncio.create_task(watch.supervisor.keep_root(root)),
        asyncio.create_task(watch.supervisor.keep_worker(worker)),
    ]
    try:
        yield watch, root, worker
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await watch.supervisor.stop()


async def test_both_come_up_and_answer(wanted):
    async with running(wanted) as (watch, _, _):
        await watch.until(lambda: "root-up" in watch.events and watch.ready())
        channel = watch.supervisor.channel
        assert channel is not None
        answer = await channel.ask(mailbox.GetStatistics(5), mailbox.Statistics, key=5)
        assert answer.packets_by_reason == {"no_sa": 1}


async def test_killed_worker_is_back_as_another_instance(wanted):
    async with running(wanted) as (watch, _, worker):
        await watch.until(watch.ready)
        os.kill(worker.pid, signal.SIGKILL)
        await watch.until(lambda: len(watch.ready()) == 2)
        assert "worker-down" in watch.events
        first, second = watch.ready()
        assert first.instance != second.instance


async def test_worker_that_keeps_crashing_is_started_more_and_more_rarely(wanted):
    async with running(wanted) as (watch, _, _):
        times = []
        for count in range(1, 5):
            await watch.until(lambda count=count: len(watch.ready()) == count)
            times.append(time.monotonic())
            channel = watch.supervisor.channel
            assert channel is not None
            channel.send(mailbox.RotateMasterKey(True))
        gaps = [after - before for before, after in itertools.pairwise(times)]
        assert gaps[1] > 0.15
        assert gaps[2] > 0.35


async def test_reboot_gives_a_newer_boot(wanted):
    async with running(wanted) as (watch, root, _):
        await watch.until(lambda: "root-up" in watch.events)
        watch.supervisor.reboot_root()
        await watch.until(lambda: watch.events.count("root-up") == 2)
        assert [event for event in watch.events if isinstance(event, str)][:3] == ["root-up", "root-down", "root-up"]
        assert not _alive(root.pid)


async def test_stop_ends_both_and_leaves_no_zombie(wanted):
    async with running(wanted) as (watch, root, worker):
        await watch.until(lambda: "root-up" in watch.events and watch.ready())
    assert not _alive(root.pid)
    assert not _alive(worker.pid)


async def test_child_that_ignores_its_lifeline_is_killed():
    child = spawn((sys.executable, "-c", "import time; time.sleep(600)"), kind=socket.SOCK_STREAM)
    async with asyncio.timeout(60):  # it would sleep for ten minutes
        assert await end(child) == signal.SIGKILL


def test_children_end_when_the_daemon_is_killed(wanted, tmp_path):
    """Not even SIGKILL of the daemon leaves a child behind."""
    program = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from ztdpu.errors import ConfigurationError
from ztdpu.agent.supervisor import Doors, Programs, start_processes
wanted = {wanted!r}
root, worker = start_processes(wanted)
print(root.pid, worker.pid, flush=True)
time.sleep(600)
"""
    program = program.replace("PosixPath", "Path")
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        children = [int(word) for word in daemon.stdout.readline().split()]
        assert all(_alive(pid) for pid in children)
        daemon.kill()
    deadline_s = time.monotonic() + 30
    while any(_alive(pid) for pid in children) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not any(_alive(pid) for pid in children)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_root_that_cannot_start_ends_the_agent_with_words(wanted):
    broken = replace(wanted, root_of_trust=(sys.executable, "-c", "import sys; sys.exit(2)"))
    watch = Watch(broken)
    with pytest.raises(ConfigurationError):
        await watch.supervisor.keep_root()
