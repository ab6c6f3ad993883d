"""Changes on a running lab: policy edited, device revoked and restored, keys rotated, control restarted."""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from ztdpu.lab import processes
from ztdpu.lab.documents import EXAMPLE_POLICIES
from ztdpu.lab.record import read_record

LOST_WITH_A_KEY = ("no_sa", "unknown_spi", "sa_mismatch", "bad_tag", "replay_too_old", "send_failed")
pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


def wait_for(condition, *, seconds=60, every=0.1):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(every)


def start_ping(crew, source, target):
    """Ping until the crew ends; returns the list that the numbers of the answers are added to."""
    numbers = "sed -un 's/.*bytes from.*icmp_seq=\\([0-9]*\\).*/\\1/p'"
    answers = []
    running = crew.start(source, "sh", "-c", f"stdbuf -oL ping -w 300 -i 0.1 -W 1 {target} | {numbers}")
    running.follow(lambda answer: answers.append(answer["value"]))
    wait_for(lambda: len(answers) >= 5)
    return answers


@pytest.fixture
def lab(new_lab, tmp_path):
    policy = tmp_path / "policy"
    shutil.copytree(EXAMPLE_POLICIES, policy)
    made = new_lab("--policy", str(policy), "--interval", "1", "--lease", "5").up()
    made.policy = policy
    return made


def test_an_edited_policy_takes_a_running_conversation_away_and_gives_it_back(lab):
    file = lab.policy / "network" / "blue.yaml"
    before = file.read_text()
    assert lab.ping("blue-0", "blue-1") == 3
    file.write_text(before.replace("        - {protocol: ICMP}\n", ""))
    with lab.crew() as crew:
        answers = start_ping(crew, "blue-0", "blue-1")
        lab.ztdpu("policy", "sync")

        def is_silent():
            heard = len(answers)
            assert lab.ping("red-0", "red-1") == 3, "red is not concerned"
            return len(answers) == heard

        wait_for(is_silent)
        assert lab.ping("blue-0", "blue-1", count=1) == 0
        heard = len(answers)
        file.write_text(before)
        lab.ztdpu("policy", "sync")
        wait_for(lambda: len(answers) >= heard + 5)


def test_a_broken_policy_changes_nothing(lab):
    (lab.policy / "network" / "blue.yaml").write_text("kind: NetworkPolicy\n")
    ended = lab.ztdpu("policy", "sync", check=False)
    assert ended.returncode != 0
    assert "blue.yaml:1" in ended.stdout + ended.stderr
    assert lab.ping("blue-0", "blue-1") == 3


def test_a_revoked_device_comes_back_by_restore_and_fresh_evidence_only(lab):
    lab.ztdpu("device", "revoke", "dpu-1", "--reason", "test", "--yes")

    def attestations_refused():
        leaves = json.loads(lab.ztdpu("audit", "list", "-o", "json").stdout)
        return sum((one["action"], one["subject"], one["outcome"]) == ("attest", "dpu-1", "refused") for one in leaves)

    wait_for(lambda: attestations_refused() >= 2)
    assert lab.ping("blue-0", "blue-1", count=2) == 0, "two more attestations have not helped it"
    boots = json.loads(lab.ztdpu("device", "show", "dpu-1", "-o", "json").stdout)["boot_counter"]
    lab.ztdpu("device", "restore", "dpu-1", "--reason", "test")
    lab.wait_ready("dpu-0", "dpu-1")
    wait_for(lambda: lab.ping("blue-0", "blue-1", count=1) == 1)
    assert json.loads(lab.ztdpu("device", "show", "dpu-1", "-o", "json").stdout)["boot_counter"] > boots


def packets(lab):
    """Device -> reason -> number, as it was last reported."""
    return {
        name: json.loads(lab.ztdpu("device", "show", name, "-o", "json").stdout)["packets_by_reason"]
        for name in ("dpu-0", "dpu-1")
    }


def test_rotation_loses_no_packet(lab):
    with lab.crew() as crew:
        answers = start_ping(crew, "blue-0", "blue-1")
        wait_for(lambda: packets(lab)["dpu-1"].get("flow_established", 0) >= 5)
        before = packets(lab)
        lab.ztdpu("key", "rotate", "--device", "dpu-1")
        answered = len(answers)
        wait_for(lambda: len(answers) >= answered + 20)
        # What is reported by then includes the time of the rotation.
        wait_for(lambda: packets(lab)["dpu-1"]["flow_established"] >= before["dpu-1"]["flow_established"] + 40)
    for device, counted in packets(lab).items():
        lost = {reason: counted.get(reason, 0) - before[device].get(reason, 0) for reason in LOST_WITH_A_KEY}
        assert not any(lost.values()), (device, lost)


def test_control_comes_back_and_so_does_everybody(lab):
    os.kill(read_record(lab.state).processes["control"].pid, signal.SIGKILL)
    wait_for(lambda: lab.ping("blue-0", "blue-1", count=1) == 0)  # the leases are over
    config = lab.plan.paths.control / "control.yaml"
    again = (
        f"exec {sys.executable} -m ztdpu control run --config {config} >>{lab.plan.paths.control_log} 2>&1 </dev/null"
    )
    lab.exec("control", "sh", "-c", f"setsid sh -c '{again}' &")
    wait_for(lambda: lab.ping("blue-0", "blue-1", count=1) == 1)
    lab.wait_ready("dpu-0", "dpu-1")


@pytest.mark.soak
def test_the_root_of_trust_may_die_too(lab):
    root = lab.device("dpu-0")["root_of_trust_pid"]
    os.kill(root, signal.SIGKILL)
    wait_for(lambda: lab.device("dpu-0")["root_of_trust_pid"] not in (None, root))
    assert lab.ping("blue-0", "blue-1") == 3
    time.sleep(5)
    assert lab.ping("blue-0", "blue-1") == 3, "it attested again with its new boot"


def test_a_tenant_that_deletes_its_interface_gets_it_back_and_hurts_nobody(lab):
    lab.exec("blue-0", "ip", "link", "del", "ztdpu0")
    assert lab.ping("red-0", "red-1") == 3
    wait_for(lambda: lab.ping("blue-0", "blue-1", count=1) == 1)


def test_every_process_of_a_device_is_of_its_own_uid_range(lab):
    for device in lab.status()["devices"]:
        for pid in processes.find_in_namespace(device["pid"]):
            uid = int(Path(f"/proc/{pid}/status").read_text().split("Uid:")[1].split()[0])
            assert device["uid_base"] <= uid < device["uid_base"] + 65_536
