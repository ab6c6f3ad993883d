"""A whole lab without root: the userns fabric, used by uid 65534 through the command line."""

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


def leftovers(lab):
    """Processes and files of a lab; names and mounts lie in namespaces that end with the processes."""
    inside = lab.nobody.root / str(lab.state).lstrip("/")
    return sorted(processes.find_members(str(lab.state))), inside.exists()


def test_a_lab_of_nobodys_says_what_it_is(nobodys_lab):
    status = nobodys_lab.status()
    assert (status["fabric"], status["isolation"], status["trouble"]) == ("userns", "shared-uid", [])
    assert status["ready"] is True
    for part in (*status["devices"], *status["endpoints"]):
        assert Path(f"/proc/{part['pid']}").stat().st_uid == 65534, "pids are the host's, and no process is root's"
    table = nobodys_lab.ztdpu("lab", "status", "--state", str(nobodys_lab.state)).stdout
    assert "fabric userns, isolation shared-uid, MTU 9000; control answers" in table
    assert "each device and endpoint has namespaces of its own; to the kernel all are one user" in table


def test_real_interfaces_carry_sealed_packets_and_nothing_else(nobodys_lab):
    links = nobodys_lab.exec("fabric", "ip", "-br", "link").stdout
    assert "br0" in links
    assert "dpu-0@" in links
    assert "tun" in nobodys_lab.exec("blue-0", "ip", "-d", "link", "show", "ztdpu0").stdout
    counting = subprocess.Popen(
        nobodys_lab.nobody.command(
            sys.executable, "-m", "ztdpu.lab.enter", str(nobodys_lab.state), "fabric",
            sys.executable, "-m", "ztdpu.lab.capture", "--interface", "br0",
        ),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert counting.stdout.readline()
    assert nobodys_lab.ping("blue-0", "blue-1", count=3) == 3
    assert nobodys_lab.ping("blue-0", "10.3.0.1", count=1) == 0
    counts = json.loads(counting.communicate(timeout=20)[0].splitlines()[-1])
    assert counts["psp_packets"] >= 6
    assert counts["clear_packets"] == 0, counts["clear_samples"]


def test_one_uid_is_all_that_is_shared(nobodys_lab):
    """A tenant sees neither files, processes, interfaces nor the lab of others; the twin sees its own."""
    inside = (
        "import os, pathlib; p = pathlib.Path; "
        f"print(p({str(nobodys_lab.state)!r}).exists(), p('/dev/net/tun').exists(), "
        "os.listdir('/run/ztdpu'), [x for x in os.listdir('/proc') if x.isdigit()][:1], os.listdir('/sys/class/net'))"
    )
    seen = nobodys_lab.exec("blue-0", sys.executable, "-c", inside).stdout.strip()
    assert seen.startswith("False False ['sidecar'] ['1'] [")
    own = nobodys_lab.exec("dpu-0", "ls", str(nobodys_lab.state / "devices")).stdout.split()
    assert own == ["dpu-0"], "a device sees its own directory and no other's"
    spaces = {
        name: tuple(nobodys_lab.exec(name, "readlink", *(f"/proc/self/ns/{kind}" for kind in KINDS)).stdout.split())
        for name in ("blue-0", "red-0", "dpu-0", "dpu-1")
    }
    for kind, names in zip(KINDS, zip(*spaces.values(), strict=True), strict=True):
        assert len(set(names)) == len(spaces), f"{kind} namespaces are each one's own"
    written = nobodys_lab.exec("blue-0", "sh", "-c", "touch /usr/x /etc/x /tmp/checkout/x", check=False)
    assert written.returncode != 0
    assert nobodys_lab.exec("blue-0", "touch", "/tmp/x").returncode == 0


KINDS = ("user", "net", "mnt", "pid", "ipc", "uts")


def test_a_device_gets_no_interface_of_another(nobodys_lab):
    """The factory tells devices apart by their pid namespaces: even with another's socket in hand, uid alone is nothing."""
    state = nobodys_lab.state
    status = nobodys_lab.status()
    wanted = next(one for one in nobodys_lab_plan(nobodys_lab)["endpoints"] if one["name"] == "blue-0")
    ask = (
        "import socket, cbor2, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
        f"s.connect({str(state / 'devices' / 'dpu-0' / 'factory.sock')!r}); "
        f"s.send(cbor2.dumps(['make', 'blue-0', bytes.fromhex({wanted['endpoint_id']!r})])); "
        "print(cbor2.loads(s.recv(4096))[::2])"
    )
    assert status["trouble"] == []
    outside = nobodys_lab.nobody.run(sys.executable, "-c", ask)
    assert "refused" in outside.stdout, outside.stderr
    assert "is not of dpu-0" in outside.stdout
    assert nobodys_lab.ping("blue-0", "blue-1", count=1) == 1, "and its interface is still there"
    within = nobodys_lab.exec("dpu-0", sys.executable, "-c", ask)
    assert "'made'" in within.stdout
    nobodys_lab.ztdpu("lab", "restart", "dpu-0", "--state", str(state))
    assert nobodys_lab.ping("blue-0", "blue-1", count=1) == 1


def nobodys_lab_plan(lab):
    return json.loads((lab.nobody.root / str(lab.state / "lab.json").lstrip("/")).read_text())["plan"]


@pytest.mark.parametrize("part", ["control", "factory"])
def test_a_part_that_was_killed_is_started_anew(nobodys_lab, part):
    os.kill(nobodys_lab.status()[part]["pid"], signal.SIGKILL)
    trouble = nobodys_lab.status()["trouble"]
    assert [one["part"] for one in trouble] == [part]
    nobodys_lab.ztdpu("lab", "restart", part, "--state", str(nobodys_lab.state))
    assert nobodys_lab.status()["trouble"] == []
    assert nobodys_lab.ping("blue-0", "blue-1", count=1) == 1


def test_what_is_not_possible_is_refused_with_the_way_out(nobodys_lab):
    nobody = nobodys_lab.nobody
    refused = nobody.ztdpu("lab", "up", "--fabric", "netns", "--state", "/tmp/other")
    assert refused.returncode == 1
    assert "the netns fabric does not work here: only root may build it" in refused.stderr
    assert "next: sudo ztdpu lab up" in refused.stderr
    taken = nobody.ztdpu("lab", "up", "--state", str(nobodys_lab.state))
    assert taken.returncode == 1
    assert "a lab is up" in taken.stderr
    elsewhere = nobody.ztdpu("lab", "down", "--state", "/run")
    assert elsewhere.returncode == 1
    assert "is not yours" in elsewhere.stderr
    assert nobodys_lab.ping("blue-0", "blue-1", count=1) == 1


def test_without_the_tun_device_the_reason_and_the_remedy_are_said(namespaced_nobody):
    command = namespaced_nobody.command(sys.executable, "-m", "ztdpu", "lab", "up", "--fabric", "userns")
    closing = ["sh", "-c", 'mount -t tmpfs tmpfs /dev/net; exec "$@"', "sh", *command[3:]]
    ended = subprocess.run(
        [*command[:3], "unshare", "--mount", *closing], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert "the userns fabric does not work here: /dev/net/tun is missing" in ended.stderr
    assert "next: sudo modprobe tun" in ended.stderr


def test_down_leaves_nothing_even_when_the_enclosure_is_dead(new_nobodys_lab):
    lab = new_nobodys_lab.up()
    os.kill(lab.status()["enclosure"]["pid"], signal.SIGKILL)
    status = lab.status()
    assert [one["part"] for one in status["trouble"]] == ["enclosure"]
    refused = lab.exec("blue-0", "true", check=False)
    assert refused.returncode == 1
    assert "enclosure is dead" in refused.stderr
    lab.ztdpu("lab", "up", "--state", str(lab.state), "--prefix", lab.prefix, "--replace")
    assert lab.ping("blue-0", "blue-1", count=1) == 1
    assert lab.down().returncode == 0
    assert leftovers(lab) == ([], False)


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGKILL, "namespaces"),
        (signal.SIGTERM, "agents"),
        pytest.param(signal.SIGTERM, "reading", marks=pytest.mark.soak),
        pytest.param(signal.SIGTERM, "namespaces", marks=pytest.mark.soak),
        pytest.param(signal.SIGKILL, "reading", marks=pytest.mark.soak),
        pytest.param(signal.SIGKILL, "agents", marks=pytest.mark.soak),
    ],
)
def test_up_that_was_interrupted_leaves_nothing(new_nobodys_lab, number, moment):
    lab = new_nobodys_lab
    command = lab.nobody.command(sys.executable, "-m", "ztdpu", "lab", "up", "--state", str(lab.state))
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if moment in line:
                break
        process.send_signal(number)
        process.stderr.read()
    if number == signal.SIGKILL:
        assert lab.down().returncode == 0
    deadline = time.monotonic() + 20
    while leftovers(lab) != ([], False) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert leftovers(lab) == ([], False)
