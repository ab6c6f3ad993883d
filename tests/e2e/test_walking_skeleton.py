"""What the first issue promises, on a real lab: real namespaces, real processes, real packets."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from ztdpu.lab import processes

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
ROOT = Path(__file__).parents[2]


def wait_for(condition, *, seconds=60, every=0.05):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(every)


def capture_fabric(crew, *options):
    return crew.start_capture("fabric", "br0", *options)


def test_the_lab_comes_up_attested_and_ready(lab):
    status = lab.status()
    assert (status["isolation"], status["fabric"]) == ("full", "netns")
    assert [(d["name"], d["tier"], d["ready"]) for d in status["devices"]] == [
        ("dpu-0", "affirming", True),
        ("dpu-1", "affirming", True),
    ]
    assert all(endpoint["ready"] for endpoint in status["endpoints"])
    assert all(d["agent_pid"] and d["worker_pid"] and d["root_of_trust_pid"] for d in status["devices"])


@pytest.mark.parametrize("family", ["-4", "-6"])
def test_ping_is_answered_and_the_fabric_shows_only_psp_arp_and_nd(lab, family):
    with lab.crew() as crew:
        capture = capture_fabric(crew)
        ended = lab.exec("blue-0", "ping", family, "-c3", "-i", "0.2", "-W", "1", "blue-1")
        counts = capture.finish()
    assert " 0% packet loss" in ended.stdout
    assert counts["psp_packets"] >= 6
    assert counts["clear_packets"] == 0, counts["clear_samples"]
    assert counts["lost"] == 0


def test_exec_passes_status_environment_and_words(lab):
    assert lab.exec("blue-0", "sh", "-c", "exit 7", check=False).returncode == 7
    assert lab.exec("blue-0", "no-such-program", check=False).returncode == 127
    assert lab.exec("nobody", "true", check=False).returncode == 2
    assert lab.exec("fabric", "ip", "-br", "link", "show", "br0").stdout.startswith("br0")
    assert "10.91.0.1" in lab.exec("control", "ip", "-4", "-o", "addr").stdout
    where = lab.exec("dpu-0", "sh", "-c", "hostname; id -u; command -v python").stdout.split()
    assert where == ["dpu-0", "0", f"{sys.prefix}/bin/python"]


def test_a_tenant_cannot_leave_its_place(lab):
    code = "import os; print(os.path.exists('/dev/net/tun'), os.listdir('/run/ztdpu'), [p for p in os.listdir('/proc') if p.isdigit()][:1])"
    said = lab.exec("blue-0", "python", "-c", code).stdout.split(maxsplit=1)
    assert said[0] == "False"
    assert "['sidecar'] ['1']" in said[1]
    agent = lab.device("dpu-0")["agent_pid"]
    assert lab.exec("blue-0", "kill", "-0", str(agent), check=False).returncode != 0
    assert lab.exec("blue-0", "cat", str(lab.state / "lab.json"), check=False).returncode != 0


def attempts(crew, source, target, port, *, count=20):
    """SYN packets from an endpoint's own IPv4 address."""
    own = {"red-0": "10.1.0.10", "blue-0": "10.1.0.10", "blue-1": "10.1.0.11", "green-0": "10.2.0.10"}[source]
    tool = (sys.executable, "-m", "ztdpu.lab.attacks.cross_tenant_tcp", "--source", own, "--attempts", str(count))
    return crew.start(source, *tool, "--target", target, "--port", str(port))


def test_another_tenant_is_out_of_reach_and_the_own_is_not(lab):
    with lab.crew() as crew:
        entered, victim, same_address, twin = crew.start_captures(
            [
                ("red-0", "ztdpu0", ["--direction", "out", "--tcp", "2049"]),
                ("green-0", "ztdpu0", ["--direction", "in", "--tcp", "2049"]),
                ("blue-1", "ztdpu0", ["--direction", "in", "--tcp", "2049"]),
                ("red-1", "ztdpu0", ["--direction", "in", "--tcp", "2049"]),
            ]
        )
        attempts(crew, "red-0", "10.2.0.10", 2049).finish()
        attempts(crew, "red-0", "10.1.0.11", 2049).finish()
        assert entered.finish()["matched"] == 40
        assert victim.finish()["matched"] == 0
        assert same_address.finish()["matched"] == 0, "blue has the address that red was allowed to reach"
        assert twin.finish()["matched"] == 20


def test_a_peering_carries_the_port_that_both_tenants_name_and_nothing_else(lab):
    """blue-0 is on green-0's device, blue-1 on another: one way through the fence alone, one sealed under its own SA."""
    with lab.crew() as crew:
        storage, other_port, back = crew.start_captures(
            [
                ("green-0", "ztdpu0", ["--direction", "in", "--tcp", "2049"]),
                ("green-0", "ztdpu0", ["--direction", "in", "--tcp", "5005"]),
                ("blue-1", "ztdpu0", ["--direction", "in", "--tcp", "2049"]),
            ]
        )
        for source in ("blue-0", "blue-1"):
            attempts(crew, source, "10.2.0.10", 2049, count=7).finish()
            attempts(crew, source, "10.2.0.10", 5005, count=7).finish()
        attempts(crew, "green-0", "10.1.0.11", 2049, count=7).finish()
        assert storage.finish()["matched"] == 14
        assert other_port.finish()["matched"] == 0
        assert back.finish()["matched"] == 0, "a Peering opens nothing by itself"


def test_ports_that_policy_does_not_name_are_closed(lab):
    tool = (sys.executable, "-m", "ztdpu.lab.attacks.cross_tenant_tcp", "--source", "10.1.0.10", "--attempts", "5")
    with lab.crew() as crew:
        closed, opened = crew.start_captures(
            [("blue-1", "ztdpu0", ["--direction", "in", "--tcp", port]) for port in ("22", "2222")]
        )
        for port in ("22", "2222"):
            crew.start("blue-0", *tool, "--target", "10.1.0.11", "--port", port).finish()
        assert closed.finish()["matched"] == 0
        assert opened.finish()["matched"] == 5


def test_training_over_the_fabric_equals_one_process(lab):
    pytest.importorskip("sklearn", reason="extra `demo` is not installed")
    program = str(ROOT / "examples" / "train_digits.py")
    with lab.crew() as crew:
        ranks = [
            crew.start(
                f"red-{rank}", sys.executable, program, "--rank", str(rank), "--world-size", "2",
                "--hosts", "red-0,red-1", "--steps", "100",
            )
            for rank in range(2)
        ]  # fmt: skip
        reports = [rank.finish(timeout_s=40) for rank in ranks]
    assert reports[0]["max_abs_diff_to_single_process"] <= 1e-5
    assert reports[0]["loss_last"] == reports[1]["loss_last"] < reports[0]["loss_first"]


def test_memory_stays_small(lab):
    for device in lab.status()["devices"]:
        assert processes.resident_octets(device["worker_pid"]) < 80 * 2**20
        assert processes.resident_octets(device["agent_pid"]) < 150 * 2**20


def test_a_dead_worker_costs_packets_but_never_shows_one(lab):
    worker = lab.device("dpu-0")["worker_pid"]
    with lab.crew() as crew:
        capture = capture_fabric(crew)
        sender = crew.start_python(
            "blue-0", "ztdpu.lab.traffic", "send", "--host", "blue-1", "--port", "5001", "--rate", "500"
        )
        sender.read_line()
        wait_for(lambda: lab.ping("red-0", "red-1", count=1) == 1)
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: lab.device("dpu-0")["worker_pid"] not in (None, worker))
        lab.wait_ready("dpu-0", "dpu-1")
        wait_for(lambda: lab.ping("blue-0", "blue-1", count=1) == 1)
        sender.finish()
        counts = capture.finish()
    assert counts["clear_packets"] == 0, counts["clear_samples"]
    assert counts["psp_packets"] > 0


def test_a_dead_agent_stops_its_device_and_shows_nothing(lab):
    agent = lab.device("dpu-1")["agent_pid"]
    with lab.crew() as crew:
        capture = capture_fabric(crew)
        os.kill(agent, signal.SIGKILL)
        wait_for(lambda: lab.device("dpu-1")["worker_pid"] is None)
        sent = lab.ping("blue-1", "blue-0", count=2) + lab.ping("blue-0", "blue-1", count=2)
        counts = capture.finish()
    assert sent == 0
    assert counts["clear_packets"] == 0, counts["clear_samples"]
    config = lab.plan.paths.device("dpu-1") / "agent.yaml"
    again = f"exec {sys.executable} -m ztdpu agent run --config {config} >>{config.parent}/agent.log 2>&1 </dev/null &"
    lab.exec("dpu-1", "sh", "-c", f"setsid sh -c '{again}'")
    lab.wait_ready("dpu-0", "dpu-1")
    wait_for(lambda: lab.ping("blue-0", "blue-1", count=1) == 1)


def test_a_revoked_device_is_dark_at_once(lab):
    assert lab.ping("blue-0", "blue-1", count=2) == 2
    lab.ztdpu("device", "revoke", "dpu-1", "--reason", "test", "--yes")
    assert lab.ping("blue-0", "blue-1", count=2) == 0
    assert lab.ping("blue-1", "blue-0", count=2) == 0
    assert json.loads(lab.ztdpu("device", "show", "dpu-1", "-o", "json").stdout)["state"] == "revoked"
