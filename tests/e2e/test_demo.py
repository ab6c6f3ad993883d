"""`ztdpu demo`: what it prints, that it holds, and that it leaves nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ztdpu.lab import processes

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


def run_demo(*options):
    prefix = f"zt{os.getpid()}d"
    state = Path("/run") / prefix
    command = [sys.executable, "-m", "ztdpu", "demo", "--state", str(state), "--prefix", prefix, *options]
    return state, subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_demo_holds_and_leaves_nothing():
    pytest.importorskip("sklearn", reason="extra `demo` is not installed")
    state, ended = run_demo("-o", "json")
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    assert result["ok"] is True
    assert result["seconds"] < 60
    assert (result["fabric"], result["isolation"]) == ("netns", "full")
    assert {device["name"] for device in result["devices"]} == {"dpu-0", "dpu-1"}
    for training in result["tenants"].values():
        assert training["ranks"] == 2
        assert training["accuracy"] >= 0.9
        assert training["max_abs_diff_to_single_process"] <= 1e-5
    assert [attack["name"] for attack in result["attacks"]] == ["cross-tenant-tcp", "altered-firmware"]
    for attack in result["attacks"]:
        assert attack["seen"] == attack["attempts"] == attack["twin_delivered"] > 0
        assert attack["delivered"] == 0
    assert result["wire"]["psp_packets"] > 1_000
    assert (result["wire"]["clear_packets"], result["wire"]["canary_hits"]) == (0, 0)
    assert result["wire"]["canary_hits_without_encryption"] > 0
    assert result["revocation"]["pps_before"] >= 1_000
    assert result["revocation"]["ack_to_last_packet_ms"] <= 1_000
    assert not state.exists()
    assert not processes.find_members(str(state))


def test_a_demo_beside_a_lab_of_the_same_directory_fails_and_leaves_it_alone(lab):
    command = [sys.executable, "-m", "ztdpu", "demo", "--state", str(lab.state), "--prefix", lab.prefix, "-o", "json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert json.loads(ended.stdout)["ok"] is False
    assert "a lab is up" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert lab.ping("blue-0", "blue-1", count=1) == 1


@pytest.mark.parametrize("after_s", [0.7, 3.0])
def test_an_interrupted_demo_leaves_nothing(after_s):
    prefix = f"zt{os.getpid()}i"
    state = Path("/run") / prefix
    command = [sys.executable, "-m", "ztdpu", "demo", "--state", str(state), "--prefix", prefix]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        time.sleep(after_s)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert not state.exists()
    assert not processes.find_members(str(state))
