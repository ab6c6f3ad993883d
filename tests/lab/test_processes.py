"""Processes of a lab are found by their marker and nobody else is."""

import os
import subprocess
import sys

import pytest

from ztdpu.lab import processes


@pytest.fixture
def marked(tmp_path):
    environment = os.environ | {processes.MARKER: str(tmp_path)}
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment)
    yield tmp_path, child
    child.kill()
    child.wait()


def test_marked_processes_are_found_and_ended(marked):
    state, child = marked
    assert processes.find_members(str(state)) == {child.pid}
    processes.end_members([child.pid])
    assert processes.identify(child.pid) is None
    assert processes.find_members(str(state)) == set()


def test_a_state_directory_that_only_begins_the_same_is_another_lab(marked):
    state, _ = marked
    assert processes.find_members(str(state)[:-1]) == set()
    assert processes.find_members(f"{state}/x") == set()


def test_a_pid_that_was_used_again_is_not_the_same_process():
    here = processes.identify(os.getpid())
    assert processes.is_alive(here)
    assert not processes.is_alive(processes.Process(here.pid, here.start_ticks - 1))


def test_a_zombie_is_not_alive(marked):
    _, child = marked
    process = processes.identify(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not processes.is_alive(process)


def test_a_gone_process_has_no_command_line_and_no_memory():
    child = subprocess.Popen(["true"])
    child.wait()
    assert processes.command_line(child.pid) == []
    assert processes.resident_octets(child.pid) == 0
    assert processes.resident_octets(os.getpid()) > 1_000_000


def test_without_a_namespace_of_its_own_a_holder_is_itself_and_its_descendants(tmp_path):
    """As in a lab without privilege; the twin is a process that somebody else started."""
    nested = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import sys; print(1, flush=True); sys.stdin.read()'])"
    with (
        subprocess.Popen([sys.executable, "-c", nested], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder,
        subprocess.Popen(["sleep", "60"]) as stranger,
    ):
        assert holder.stdout.readline() == b"1\n"
        found = processes.find_in_namespace(holder.pid)
        stranger.kill()
        holder.stdin.close()
    assert found[0] == holder.pid
    assert len(found) == 2
    assert processes.find_in_namespace(holder.pid) == []
