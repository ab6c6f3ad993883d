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

REASONS = {
    "cross-tenant-tcp": "no_rule",
    "cross-tenant-udp": "no_rule",
    "spoofed-source": "spoofed_source",
    "fragment": "fragment",
    "bad-offload-header": "bad_offload_header",
    "flipped-packet": "bad_tag",
    "replayed-packet": "replay_duplicate",
    "sidecar-of-another-endpoint": "permission-denied",
    "altered-firmware": "fwid_unexpected, measurement_unexpected",
    "relayed-attestation": "binding",
}


def run_demo(*options):
    prefix = f"zt{os.getpid()}d"
    state = Path("/run") / prefix
    command = [sys.executable, "-m", "ztdpu", "demo", "--state", str(state), "--prefix", prefix, *options]
    return state, subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_the_demo_holds_and_leaves_nothing():
    pytest.importorskip("sklearn", reason="extra `demo` is not installed")
    state, ended = run_demo("-o", "json")
    assert ended.returncode == 0, ended.stderr
    check_figures(json.loads(ended.stdout), fabric="netns", isolation="full")
    assert not find_leftovers(state.name, state)


def test_nobody_has_the_same_demo_on_the_userns_fabric(namespaced_nobody):
    """`make demo` without root, home, sudo or option is the whole demo, with the same figures."""
    pytest.importorskip("sklearn", reason="extra `demo` is not installed")
    session = f"/tmp/zt{os.getpid()}s"
    namespaced_nobody.run("mkdir", "-m", "700", session)
    command = ("make", "--silent", "--old-file=.venv/.ready", "-C", "/tmp/checkout", "demo", "ARGS=-o json")
    ended = namespaced_nobody.run(*command, timeout=240, XDG_RUNTIME_DIR=session)
    assert ended.returncode == 0, ended.stderr
    check_figures(json.loads(ended.stdout), fabric="userns", isolation="shared-uid")
    assert not processes.find_members(f"{session}/ztdpu/demo")
    assert list((namespaced_nobody.root / session.lstrip("/")).iterdir()) == []


def check_figures(result, *, fabric, isolation):
    assert result["ok"] is True
    assert (result["fabric"], result["isolation"]) == (fabric, isolation)
    assert {device["name"] for device in result["devices"]} == {"dpu-0", "dpu-1", "dpu-2"}
    for training in result["tenants"].values():
        assert training["ranks"] == 2
        assert training["accuracy"] >= 0.9
        assert training["max_abs_diff_to_single_process"] <= 1e-5
    assert {attack["name"]: attack["reason"] for attack in result["attacks"]} == REASONS
    for attack in result["attacks"]:
        assert attack["reason"] == attack["expected"]
        assert attack["seen"] == attack["attempts"] == attack["twin_delivered"] > 0
        assert attack["delivered"] == 0
    assert result["wire"]["psp_packets"] > 1_000
    assert (result["wire"]["clear_packets"], result["wire"]["canary_hits"]) == (0, 0)
    assert result["wire"]["canary_hits_without_encryption"] > 0
    assert result["revocation"]["pps_before"] >= 1_000
    assert result["revocation"]["ack_to_last_packet_ms"] <= 1_000
    assert result["revocation"]["red_steps_during_revocation"] > 0
    assert result["revocation"]["red_accuracy"] >= 0.9


def test_a_demo_beside_a_lab_of_the_same_directory_is_refused_once_and_leaves_it_alone(lab):
    command = [sys.executable, "-m", "ztdpu", "demo", "--state", str(lab.state), "--prefix", lab.prefix]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        f"error: a lab is up in {lab.state}",
        f"  next: ztdpu lab down --state {lab.state}, or name another --state and --prefix",
    ]
    assert ended.stdout == ""
    assert lab.ping("blue-0", "blue-1", count=1) == 1


def test_a_demo_beside_a_lab_that_is_being_built_leaves_it_alone(new_lab):
    """The other lab has its directory when the demo looks, and is up when the demo is refused."""
    lab = new_lab()
    state = ("--state", str(lab.state), "--prefix", lab.prefix)
    with subprocess.Popen([sys.executable, "-m", "ztdpu", "lab", "up", *state], stderr=subprocess.PIPE) as building:
        assert any(b"reading policy" in line for line in building.stderr)
        ended = subprocess.run(
            [sys.executable, "-m", "ztdpu", "demo", *state], capture_output=True, text=True, timeout=60, check=False
        )
        building.communicate(timeout=60)
    assert (ended.returncode, building.returncode) == (1, 0)
    assert f"another lab command works in {lab.state}" in ended.stderr or f"a lab is up in {lab.state}" in ended.stderr
    assert "lab down\n" not in ended.stderr
    assert lab.ping("blue-0", "blue-1", count=1) == 1


@pytest.mark.parametrize(
    ("number", "after", "then_s"),
    [
        pytest.param(signal.SIGTERM, "", 0.2, marks=pytest.mark.soak),
        pytest.param(signal.SIGTERM, "", 0.9, marks=pytest.mark.soak),
        pytest.param(signal.SIGINT, "", 1.6, marks=pytest.mark.soak),
        (signal.SIGTERM, "lab up", 0.0),
        (signal.SIGINT, "canary through the fabric", 0.5),
        pytest.param(signal.SIGKILL, "lab up", 0.5, marks=pytest.mark.soak),
        (signal.SIGKILL, "canary through the fabric", 0.2),
        pytest.param(signal.SIGTERM, "attack: bad-offload-header", 0.8, marks=pytest.mark.soak),
    ],
)
def test_a_signal_to_the_demo_alone_leaves_nothing(number, after, then_s):
    """At several moments: while the lab is built, right after, in the middle of attacks."""
    prefix = f"zt{os.getpid()}i"
    state = Path("/run") / prefix
    command = [sys.executable, "-m", "ztdpu", "demo", "--state", str(state), "--prefix", prefix, "--keep"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        said = ""
        while after and after not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        time.sleep(then_s)
        os.kill(process.pid, number)
        said += process.communicate(timeout=40)[1]
    caught = said and number is not signal.SIGKILL
    assert process.returncode == (128 + number if caught else -number), said
    assert "Traceback" not in said
    deadline = time.monotonic() + 30
    while find_leftovers(prefix, state) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not find_leftovers(prefix, state)


def find_leftovers(prefix, state):
    """Everything that a lab could leave: directory, processes, namespaces' names, interfaces."""
    names = [name.name for name in Path("/run/netns").glob(f"{prefix}-*")]
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    speaking = {pid for pid in pids if str(state) in processes.command_line(pid)}
    members = processes.find_members(str(state)) | speaking
    return [*names, *members, *([state] if state.exists() else [])]
