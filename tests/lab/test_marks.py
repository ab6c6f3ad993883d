"""Marks in network namespaces: read back, told apart by prefix, and nobody else's."""

import os
import subprocess

import pytest

from ztdpu.lab import marks
from ztdpu.lab.namespaces import netns

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


@pytest.fixture
def make():
    made = []

    def one(name, state=""):
        netns.prepare_names()
        netns.create(name)
        made.append(name)
        if state:
            with netns.inside(name):
                marks.write_mark(state)

    yield one
    for name in made:
        netns.remove(name)
    netns.release_names()


def test_a_mark_reads_back_and_iproute2_shows_it(make):
    name, state = f"zt{os.getpid()}m-fabric", "/run/some where/ü" + "x" * 150
    make(name, state)
    with netns.inside(name):
        assert marks.read_mark() == state
    shown = subprocess.run(["ip", "-n", name, "link", "show", "lo"], capture_output=True, text=True, check=True).stdout
    assert state in shown
    assert marks.Mark(f"zt{os.getpid()}m", state) in marks.read_marks()


def test_a_namespace_without_a_mark_is_nobodys(make):
    make(f"zt{os.getpid()}m-fabric")
    with netns.inside(f"zt{os.getpid()}m-fabric"):
        assert marks.read_mark() == ""
        subprocess.run(["ip", "link", "set", "lo", "alias", "my own words"], check=True)
        assert marks.read_mark() == ""
    assert not [mark for mark in marks.read_marks() if mark.prefix == f"zt{os.getpid()}m"]


def test_the_longest_prefix_owns_a_name(make):
    prefix = f"zt{os.getpid()}m"
    make(f"{prefix}-fabric", "/run/a")
    make(f"{prefix}-two-fabric", "/run/b")
    make(f"{prefix}-two-oob")
    make(f"{prefix}-mine")
    owners = marks.owners(marks.read_marks())
    assert {name: state for name, state in owners.items() if name.startswith(prefix)} == {
        f"{prefix}-fabric": "/run/a",
        f"{prefix}-two-fabric": "/run/b",
    }


def test_a_mark_that_is_too_long_is_refused(make):
    name = f"zt{os.getpid()}m-fabric"
    make(name)
    with netns.inside(name), pytest.raises(OSError, match="mark of the lab"):
        marks.write_mark("/" + "x" * 300)
