"""A whole lab and the whole demo without any privilege: the userspace fabric, used by uid 65534.

On a kernel that would let that user make namespaces the fabric is asked for; nothing here makes one.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ztdpu.lab import processes

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")]

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
FABRIC = ("--fabric", "userspace")


def wait_for(condition, *, seconds=30, every=0.1):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(every)
    return value


def leftovers(nobody, state):
    """Processes and files of a lab: found by what they are called, too, as nobody hides its workers from nobody."""
    speaking = {pid for pid in processes.find_all() if state in " ".join(processes.command_line(pid))}
    members = processes.find_members(state) | speaking
    return sorted(members), (nobody.root / state.lstrip("/")).exists()


def test_the_demo_of_nobody_holds_and_leaves_nothing(nobody):
    state = f"/tmp/zt{os.getpid()}d"
    ended = nobody.ztdpu("demo", *FABRIC, "--state", state, "-o", "json", timeout=120)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    assert result["ok"] is True
    others = os.getloadavg()[0] / (os.cpu_count() or 1)
    assert result["seconds"] < 30 * max(1, others), "30 s on a machine that does nothing else"
    assert (result["fabric"], result["isolation"]) == ("userspace", "shared-uid")
    assert {device["tier"] for device in result["devices"]} == {"affirming"}
    assert result["tenants"] == {}
    assert result["no_training"].startswith("not on this fabric")
    assert "make demo" in result["no_training"]
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
    assert result["revocation"]["red_packets_during_revocation"] > 0
    assert leftovers(nobody, state) == ([], False)


@pytest.mark.parametrize(
    ("number", "after"),
    [
        (signal.SIGKILL, "canary through the fabric"),
        pytest.param(signal.SIGINT, "attack: fragment", marks=pytest.mark.soak),
        pytest.param(signal.SIGKILL, "lab up", marks=pytest.mark.soak),
        pytest.param(signal.SIGTERM, "lab up", marks=pytest.mark.soak),
        pytest.param(signal.SIGKILL, "userspace fabric", marks=pytest.mark.soak),
    ],
)
def test_a_demo_that_is_ended_leaves_nothing(nobody, number, after):
    """Killed outright too: without namespaces no kernel takes the rest away."""
    state = f"/tmp/zt{os.getpid()}k"
    command = nobody.command(sys.executable, "-m", "ztdpu", "demo", *FABRIC, "--state", state)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        said = ""
        while after not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        process.send_signal(number)
        process.stderr.read()
    wait_for(lambda: leftovers(nobody, state) == ([], False), seconds=40, every=0.2)


def test_the_lab_says_what_it_is_and_runs_as_one_user(plain_lab):
    status = plain_lab.status()
    assert (status["fabric"], status["isolation"], status["trouble"]) == ("userspace", "shared-uid", [])
    pids = [status[part]["pid"] for part in ("control", "factory", "wire")]
    pids += [one[role] for one in status["devices"][:2] for role in ("agent_pid", "worker_pid", "root_of_trust_pid")]
    assert len(set(pids)) == 9
    for pid in pids:
        fields = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        assert fields["Uid"].split() == ["65534"] * 4
        assert int(fields["CapEff"], 16) == 0
    state = plain_lab.nobody.root / str(plain_lab.state).lstrip("/")
    assert state.stat().st_mode & 0o777 == 0o700


@pytest.mark.soak
def test_what_may_pass_does_and_no_attack_does(plain_lab):
    ended = plain_lab.ztdpu("check", "connectivity", "--state", str(plain_lab.state), "-o", "json", timeout=120)
    result = json.loads(ended.stdout)
    assert result["ok"]
    assert len(result["flows"]) == 28
    assert all(flow["seen"] == flow["delivered"] == flow["attempts"] == 5 for flow in result["flows"])
    assert {attack["name"]: attack["reason"] for attack in result["attacks"]} == REASONS
    assert list(result["skipped"]) == ["sidecar-of-another-endpoint by path, /proc and abstract name"]


def test_commands_without_a_network_are_refused_with_the_way_out(plain_lab):
    assert plain_lab.ping("blue-0", "blue-1", count=2) == 2
    assert plain_lab.ping("blue-0", "10.3.0.1", count=1) == 0
    unknown = plain_lab.exec("blue-0", "ping", "-c1", "red-0", check=False)
    assert "error: no endpoint 'red-0' for blue-0" in unknown.stderr
    refused = plain_lab.exec("blue-0", "ls", check=False)
    assert refused.returncode == 2
    assert "blue-0 lives in memory, without a network stack" in refused.stderr
    assert "next: ztdpu lab exec" in refused.stderr
    plain = plain_lab.exec("dpu-0", "echo", "here")
    assert plain.stdout == "here\n"
    assert "note: no namespaces on the userspace fabric" in plain.stderr


SOAKED = [pytest.param(part, marks=pytest.mark.soak) for part in ("wire", "control", "dpu-0")]


@pytest.mark.parametrize("part", ["factory", *SOAKED])
def test_a_part_that_was_killed_is_started_anew(plain_lab, part):
    status = plain_lab.status()
    pid = status[part]["pid"] if part in status else status["devices"][0]["agent_pid"]
    os.kill(pid, signal.SIGKILL)
    assert [one["part"] for one in wait_for(lambda: plain_lab.status()["trouble"])] == [part]
    plain_lab.ztdpu("lab", "restart", part, "--state", str(plain_lab.state))
    wait_for(lambda: plain_lab.status()["trouble"] == [])
    wait_for(lambda: plain_lab.ping("blue-0", "blue-1", count=1) == 1)


@pytest.mark.soak
def test_two_labs_stand_side_by_side_and_a_killed_one_is_swept(plain_lab, new_plain_lab):
    new_plain_lab.up()
    assert new_plain_lab.ping("blue-0", "blue-1", count=1) == 1
    addresses = [{one["underlay_address"] for one in lab.status()["devices"]} for lab in (plain_lab, new_plain_lab)]
    assert not addresses[0] & addresses[1]
    status = new_plain_lab.status()
    os.kill(status["devices"][0]["agent_pid"], signal.SIGKILL)
    os.kill(status["control"]["pid"], signal.SIGKILL)
    assert new_plain_lab.down().returncode == 0
    assert leftovers(new_plain_lab.nobody, str(new_plain_lab.state)) == ([], False)
    assert plain_lab.ping("blue-0", "blue-1", count=1) == 1


@pytest.mark.soak
def test_up_that_was_interrupted_leaves_nothing(new_plain_lab):
    lab = new_plain_lab
    command = lab.nobody.command(sys.executable, "-m", "ztdpu", "lab", "up", *FABRIC, "--state", str(lab.state))
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if "agents" in line:
                break
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
    deadline = time.monotonic() + 20
    while leftovers(lab.nobody, str(lab.state)) != ([], False) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert leftovers(lab.nobody, str(lab.state)) == ([], False)
