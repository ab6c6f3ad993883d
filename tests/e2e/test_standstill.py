"""Everything stands still for longer than every lease and SVID lives, then goes on: nobody has to help."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ztdpu.rpc.client import ControlClient

pytestmark = [
    pytest.mark.netns,
    pytest.mark.soak,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]

SVID_S = 5
RECOVERY_LIMIT_S = 15


def ztdpu(*words):
    return subprocess.run([sys.executable, "-m", "ztdpu", *words], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    state = Path("/run/ztdpu") / f"still-{os.getpid()}"
    ztdpu("lab", "up", "--prefix", "still", "--state", str(state), "--interval", "1", "--lease", "4")
    try:
        file = state / "control" / "control.yaml"
        file.write_text(file.read_text().replace("intervalS: 1.0\n", f"intervalS: 1.0\n    svidS: {SVID_S}\n"))
        ztdpu("lab", "restart", "control", "--state", str(state))
        yield state
    finally:
        ztdpu("lab", "down", "--state", str(state))


def family(pid):
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in family(int(child)))]


def processes(state):
    """Control, agents, roots of trust and workers of this lab."""
    found = subprocess.run(
        ["pgrep", "-f", f"run --config {state}/"], capture_output=True, text=True, check=True
    ).stdout.split()  # fmt: skip
    return sorted({one for pid in found for one in family(int(pid))})


def test_it_recovers_by_itself(lab):
    stopped = processes(lab)
    assert len(stopped) >= 7
    with ControlClient.connect(str(lab / "control" / "admin.sock")) as client:

        def ready():
            return all(one.ready and str(one.state) == "affirming" for one in client.list_devices())

        def await_ready():
            began = time.monotonic()
            while not ready():
                assert time.monotonic() - began < RECOVERY_LIMIT_S
                time.sleep(0.1)

        await_ready()
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(2 * SVID_S + 2)
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        await_ready()
    answered = ztdpu("lab", "exec", "--state", str(lab), "blue-0", "--", "ping", "-c", "3", "-i", "0.2", "blue-1")
    assert " 0% packet loss" in answered
