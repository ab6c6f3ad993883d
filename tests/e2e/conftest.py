"""Labs of the end-to-end tests: own prefix, own state directory, taken down whatever happens."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ztdpu.lab.crew import Crew
from ztdpu.lab.record import require_record


class Lab:
    """One lab, used as a person does: through the command line."""

    def __init__(self, name, *options):
        self.prefix = f"zt{os.getpid()}{name}"
        self.state = Path("/run") / self.prefix
        self.options = options
        self.seconds = 0.0

    def ztdpu(self, *words, check=True, timeout=90):
        command = [sys.executable, "-m", "ztdpu", *words]
        environment = os.environ | {"ZTDPU_SERVER": f"unix:{self.state}/control/admin.sock", "NO_COLOR": "1"}
        ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment, check=False)
        assert not check or ended.returncode == 0, f"{words}: {ended.stdout}{ended.stderr}"
        return ended

    def up(self):
        start = time.monotonic()
        self.ztdpu("lab", "up", "--state", str(self.state), "--prefix", self.prefix, *self.options)
        self.seconds = time.monotonic() - start
        return self

    def down(self):
        return self.ztdpu("lab", "down", "--state", str(self.state), check=False)

    def status(self):
        """The document, also when something in it is dead (exit status 1)."""
        return json.loads(self.ztdpu("lab", "status", "--state", str(self.state), "-o", "json", check=False).stdout)

    def device(self, name):
        return next(device for device in self.status()["devices"] if device["name"] == name)

    def exec(self, target, *command, check=True, timeout=60):
        return self.ztdpu(
            "lab", "exec", target, "--state", str(self.state), "--", *command, check=check, timeout=timeout
        )

    def ping(self, source, target, *, count=3):
        """Return how many answers came."""
        ended = self.exec(source, "ping", "-c", str(count), "-i", "0.2", "-W", "1", target, check=False)
        return sum("bytes from" in line for line in ended.stdout.splitlines())

    @property
    def plan(self):
        return require_record(self.state).plan

    def crew(self):
        return Crew(self.state)

    def wait_ready(self, *devices, seconds=60):
        """Return once these devices are ready again."""
        wait_for(
            lambda: all(d["ready"] for d in self.status()["devices"] if d["name"] in devices),
            seconds=seconds,
            every=0.2,
        )


def wait_for(condition, *, seconds=60, every=0.05):
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(every)


def make_lab(name, *options):
    """Use as a generator fixture: a lab that is up, and nothing of it afterwards."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    lab = Lab(name, *options)
    try:
        yield lab.up()
    finally:
        lab.down()


@pytest.fixture(scope="module")
def lab():
    yield from make_lab("e")


@pytest.fixture
def new_lab():
    """Return a maker of labs that are not up yet; all are taken down at the end of the test."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    labs = []

    def make(*options):
        labs.append(Lab(f"n{len(labs)}", *options))
        return labs[-1]

    yield make
    for lab in labs:
        lab.down()
