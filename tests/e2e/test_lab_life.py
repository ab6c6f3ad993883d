"""A lab's own life: many devices, another MTU, crashes, two at once, and nothing left at the end."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ztdpu.lab import processes
from ztdpu.lab.documents import EXAMPLE_POLICIES
from ztdpu.lab.record import read_record

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
NOTHING = ([], [], [], False)


def leftovers(lab):
    """Names, mounts, processes and files of a lab."""
    names = Path("/run/netns")
    named = [path.name for path in names.iterdir() if path.name.startswith(f"{lab.prefix}-")] if names.exists() else []
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if lab.prefix in line]
    return named, mounts, sorted(processes.find_members(str(lab.state))), lab.state.exists()


def test_down_leaves_nothing_and_says_so_when_there_is_nothing(new_lab):
    lab = new_lab().up()
    assert leftovers(lab) != NOTHING
    assert lab.down().returncode == 0
    assert leftovers(lab) == NOTHING
    again = lab.down()
    assert (again.returncode, again.stderr.strip()) == (0, f"no lab in {lab.state}")


def test_up_refuses_a_lab_that_runs(new_lab):
    lab = new_lab().up()
    again = lab.ztdpu("lab", "up", "--state", str(lab.state), "--prefix", lab.prefix, check=False)
    assert again.returncode == 1
    assert "a lab is up" in again.stderr
    assert f"next: ztdpu lab down --state {lab.state} first" in again.stderr
    assert lab.ping("blue-0", "blue-1", count=1) == 1


def test_up_replaces_a_lab_that_is_dead_in_part_only_when_told_to(new_lab):
    lab = new_lab().up()
    for name in ("control", "factory", "dpu-0"):
        os.kill(read_record(lab.state).processes[name].pid, signal.SIGKILL)
    command = ("lab", "up", "--state", str(lab.state), "--prefix", lab.prefix)
    refused = lab.ztdpu(*command, check=False)
    assert refused.returncode == 1
    assert f"control of the lab in {lab.state} is dead (pid " in refused.stderr
    assert f"next: ztdpu lab down --state {lab.state}, or {' '.join(('ztdpu', *command))} --replace" in refused.stderr
    assert lab.exec("blue-0", "true").returncode == 0, "the refusal touched nothing"
    lab.ztdpu(*command, "--replace")
    assert lab.ping("blue-0", "blue-1", count=1) == 1
    lab.down()
    assert leftovers(lab) == NOTHING


@pytest.mark.parametrize("after_s", [0.3, 0.6, 1.0])
def test_a_lab_that_died_on_its_way_up_is_swept(new_lab, after_s):
    lab = new_lab()
    command = [sys.executable, "-m", "ztdpu", "lab", "up", "--state", str(lab.state), "--prefix", lab.prefix]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        time.sleep(after_s)
        process.kill()
    assert lab.down().returncode == 0
    assert leftovers(lab) == NOTHING


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGTERM, "manufacturing"),
        (signal.SIGINT, "namespaces"),
        (signal.SIGHUP, "namespaces"),
        (signal.SIGTERM, "plugging"),
        (signal.SIGHUP, "devices ready"),
    ],
)
def test_a_signal_takes_down_what_was_up(new_lab, number, moment):
    lab = new_lab()
    command = [sys.executable, "-m", "ztdpu", "lab", "up", "--state", str(lab.state), "--prefix", lab.prefix]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if moment in line:
                break
        process.send_signal(number)
        process.send_signal(signal.SIGTERM)  # an impatient second one changes nothing
        _, said = process.communicate()
    assert process.returncode in (128 + number, 128 + signal.SIGTERM), "two at once come in the order of numbers"
    assert "Traceback" not in said
    assert leftovers(lab) == NOTHING


@pytest.mark.soak
def test_two_labs_do_not_touch_each_other(new_lab):
    first, second = new_lab().up(), new_lab().up()
    assert first.ping("blue-0", "blue-1", count=1) == 1
    first.down()
    assert leftovers(first) == NOTHING
    assert second.ping("blue-0", "blue-1", count=1) == 1


def test_more_devices_and_a_smaller_mtu(new_lab):
    lab = new_lab("--devices", "3", "--mtu", "1500").up()
    assert lab.ping("blue-0", "blue-2", count=2) == 2
    assert lab.ping("blue-2", "blue-1", count=2) == 2
    assert "mtu 1440" in lab.exec("blue-2", "ip", "link", "show", "ztdpu0").stdout


def test_a_directory_that_is_not_a_labs_is_left_alone(new_lab):
    lab = new_lab()
    lab.state.mkdir()
    (lab.state / "thesis").write_text("precious")
    ended = lab.ztdpu("lab", "up", "--state", str(lab.state), "--prefix", lab.prefix, check=False)
    assert ended.returncode == 2
    lab.down()
    assert (lab.state / "thesis").read_text() == "precious"
    (lab.state / "thesis").unlink()
    lab.state.rmdir()


def test_a_policy_that_does_not_read_is_named_and_leaves_nothing(new_lab, tmp_path):
    lab = new_lab()
    (tmp_path / "device.yaml").write_text("apiVersion: ztdpu.dev/v1\nkind: Device\nmetadata: {name: a}\nspek: {}\n")
    ended = lab.ztdpu(
        "lab", "up", "--state", str(lab.state), "--prefix", lab.prefix, "--policy", str(tmp_path), check=False
    )
    assert ended.returncode == 1
    assert "device.yaml:4:" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert leftovers(lab) == NOTHING


def test_without_control_traffic_goes_on_until_the_lease_ends(new_lab):
    lab = new_lab("--interval", "1", "--lease", "12").up()
    assert lab.ping("blue-0", "blue-1", count=1) == 1
    os.kill(read_record(lab.state).processes["control"].pid, signal.SIGKILL)
    assert lab.ping("blue-0", "blue-1", count=2) == 2
    with lab.crew() as crew:
        capture = crew.start_capture("fabric", "br0")
        deadline = time.monotonic() + 60
        while lab.ping("blue-0", "blue-1", count=1):
            assert time.monotonic() < deadline, "the lease does not end"
        assert lab.ping("blue-0", "blue-1", count=3) == 0
        counts = capture.finish()
    assert counts["clear_packets"] == 0, counts["clear_samples"]


def test_an_underlay_of_ipv6_carries_the_same(new_lab, tmp_path):
    policy = tmp_path / "policy"
    shutil.copytree(EXAMPLE_POLICIES, policy)
    for number in (0, 1):
        file = policy / "devices" / f"dpu-{number}.yaml"
        file.write_text(file.read_text().replace(f"10.90.0.1{number}", f'"fd90::1{number}"'))
    lab = new_lab("--policy", str(policy)).up()
    with lab.crew() as crew:
        capture = crew.start_capture("fabric", "br0")
        assert lab.ping("blue-0", "blue-1", count=3) == 3
        counts = capture.finish()
    assert counts["psp_packets"] >= 6
    assert counts["clear_packets"] == 0, counts["clear_samples"]


def test_devices_that_do_not_match_the_reference_values_are_named_at_once(new_lab, tmp_path):
    policy = tmp_path / "policy"
    shutil.copytree(EXAMPLE_POLICIES, policy)
    file = policy / "attestation" / "bluefield-3.yaml"
    file.write_text(re.sub(r"\b[0-9a-f]{128}\b", "a" * 128, file.read_text(), count=1))
    lab = new_lab("--policy", str(policy))
    command = ("lab", "up", "--state", str(lab.state), "--prefix", lab.prefix, *lab.options)
    ended = lab.ztdpu(*command, check=False, timeout=60)
    assert ended.returncode == 1
    assert "contraindicated" in ended.stderr
    assert "its log ends:" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert leftovers(lab) == NOTHING
