"""A capture without a program of its own says what the program says."""

import os
import subprocess
import sys
import time

import pytest

from ztdpu.errors import MachineError
from ztdpu.lab.crew import Crew
from ztdpu.lab.userspace.places import endpoint_tap


@pytest.fixture
def factory(plan):
    command = [sys.executable, "-m", "ztdpu.lab.userspace.factory", plan.state]
    with subprocess.Popen(command) as process:
        deadline = time.monotonic() + 10
        while not endpoint_tap(plan).exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield process
        process.kill()


def test_a_crew_counts_and_starts_programs_without_entering_anything(plan, factory):
    with Crew(plan.paths.state) as crew:
        [capture] = crew.start_captures([("blue-0", "ztdpu0", ["--mark", "a=aabb", "--direction", "out"])])
        program = crew.start_python(
            "blue-0", "ztdpu.lab.capture", "--interface", "ztdpu0", "--mark", "a=aabb", "--direction", "out"
        )
        program.read_line()
        assert capture.ask() == program.ask()
        assert capture.ask()["marks"] == {"a": [0, 0]}
        assert capture.finish() == program.finish()
        assert capture.has_ended
        with pytest.raises(MachineError):
            capture.ask()
        with pytest.raises(MachineError):
            crew.start_capture("dpu-0", "oob0")
    assert "ZTDPU_LAB_TAP" not in os.environ


def test_a_factory_that_dies_is_said(plan, factory):
    with Crew(plan.paths.state) as crew:
        capture = crew.start_capture("blue-0", "ztdpu0")
        factory.kill()
        factory.wait()
        with pytest.raises(MachineError):
            capture.ask()
