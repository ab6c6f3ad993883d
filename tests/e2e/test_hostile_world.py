"""What strangers meet on a running lab: garbage on the underlay, and keys that are nowhere but where they belong."""

import base64
import json
import os
import pty
import re
import resource
import socket
import struct
import sys
import time
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ztdpu.lab import processes
from ztdpu.lab.namespaces.netns import inside
from ztdpu.psp import derive_key

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
PSP_AT = 14 + 20 + 8
"""Ethernet, IPv4, UDP."""
KEY_OCTETS = 32
DPU_1 = socket.inet_aton("10.90.0.11")


@pytest.fixture(autouse=True, scope="module")
def core_dumps_wanted():
    """Whoever starts the lab would take them, so what forbids them is ours."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)


def open_fabric(lab):
    """A socket on the bridge of the lab, which sees every frame."""
    with inside(lab.plan.namespace("fabric")):
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        opened.bind(("br0", 3))
        promiscuous = struct.pack("iHH8s", socket.if_nametoindex("br0"), 1, 0, b"")
        opened.setsockopt(263, 1, promiscuous)  # SOL_PACKET, PACKET_ADD_MEMBERSHIP
    opened.settimeout(0.5)
    return opened


def catch_sealed(lab, *, target=DPU_1):
    """Return one sealed packet (PSP header to tag) of blue to dpu-1."""
    with open_fabric(lab) as fabric:
        assert lab.ping("blue-0", "10.1.0.11", count=1) == 1
        while True:
            frame = fabric.recv(65_536)
            if frame[12:14] == b"\x08\x00" and frame[30:34] == target and frame[36:38] == b"\x03\xe8":
                return frame[PSP_AT:]


def read_memory(pid):
    """Yield the writable memory of a process."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            first, last, rights, name = re.match(r"(\w+)-(\w+) (\S+) \S+ \S+ \S+ *(.*)", line).groups()
            if rights.startswith("rw") and not name.startswith("[v"):
                memory.seek(int(first, 16))
                yield memory.read(int(last, 16) - int(first, 16))


def find_in_memory(pid, is_key):
    """Return the 32 octets in the memory of `pid` that `is_key` accepts; None when there are none."""
    tried = set()
    for region in read_memory(pid):
        for at in range(0, len(region) - KEY_OCTETS, 8):
            candidate = region[at : at + KEY_OCTETS]
            if candidate.count(0) > 6 or candidate in tried:
                continue
            tried.add(candidate)
            if is_key(candidate):
                return candidate
    return None


def opens(sealed):
    def try_key(candidate):
        try:
            AESGCM(candidate).decrypt(sealed[4:16], sealed[16:], sealed[:16])
        except InvalidTag:
            return False
        return True

    return try_key


def lab_processes(lab):
    """Pid -> command line of everything that runs in the lab."""
    return {pid: " ".join(processes.command_line(pid)) for pid in processes.find_members(str(lab.state))}


def test_keys_are_where_they_belong_and_nowhere_else(lab):
    sealed = catch_sealed(lab)
    sender, receiver = lab.device("dpu-0"), lab.device("dpu-1")
    sa_key = find_in_memory(sender["worker_pid"], opens(sealed))
    assert sa_key, "the search finds a key that is there"
    spi = int.from_bytes(sealed[4:8])
    master_key = find_in_memory(receiver["worker_pid"], lambda one: derive_key((one, one), spi, 1) == sa_key)
    assert master_key, "the receiver derived it"
    allowed = {
        sa_key: {one[role] for one in (sender, receiver) for role in ("worker_pid", "agent_pid")},
        master_key: {receiver["worker_pid"]},
    }
    everybody = lab_processes(lab)
    assert len(everybody) > 10
    for key, holders in allowed.items():
        forms = (key, key.hex().encode(), base64.b64encode(key))
        seen = {pid for pid in everybody for region in read_memory(pid) if any(form in region for form in forms)}
        assert seen <= holders, [everybody[pid] for pid in seen - holders]
        files = [path for path in lab.state.rglob("*") if path.is_file()]
        assert not [path for path in files if any(form in path.read_bytes() for form in forms)]


def test_no_process_that_holds_a_key_dumps_core(lab):
    checked = 0
    for pid, command in lab_processes(lab).items():
        if any(word in command for word in ("control run", "agent run", "agent.worker", "root_of_trust")):
            limits = Path(f"/proc/{pid}/limits").read_text()
            assert re.search(r"^Max core file size +0 +0 ", limits, re.MULTILINE), command
            checked += 1
    assert checked == 7


STRANGER = """
import json, os, socket, struct, sys, time
from scapy.all import IP, UDP, Ether
sealed = bytes.fromhex(sys.argv[1])
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
raw.bind(("br0", 0))
def frame(payload, source="10.90.0.10"):
    return bytes(Ether(dst=sys.argv[2]) / IP(src=source, dst="10.90.0.11", flags="DF") / UDP(sport=4, dport=1000) / payload)
frames = [frame(sealed[:octets]) for octets in range(len(sealed) + 1)]
frames += [frame(sealed, source) for source in ("10.90.0.12", "10.90.0.66")]
frames += [frame(sealed[:4] + os.urandom(4) + sealed[8:]) for _ in range(100)]
frames += [frame(os.urandom(octets)) for octets in range(0, 1400, 10)]
late = [sealed[:8] + struct.pack(">Q", 10_000 + one) + os.urandom(len(sealed) - 16) for one in range(500)]
frames += [frame(one) for one in late] * 20
for number, one in enumerate(frames):
    raw.send(one)
    if number % 64 == 0:
        time.sleep(0.005)
print(json.dumps({"sent": len(frames)}))
"""


UNDERLAY_REFUSALS = (
    "psp_malformed",
    "unknown_spi",
    "sa_mismatch",
    "wrong_outer_source",
    "replay_duplicate",
    "replay_too_old",
    "bad_tag",
)


def test_garbage_on_the_underlay_is_counted_and_no_honest_packet_with_it(lab):
    sealed = catch_sealed(lab)
    link = json.loads(lab.exec("dpu-1", "ip", "-j", "link", "show", "underlay0").stdout)[0]
    before = json.loads(lab.ztdpu("device", "show", "dpu-1", "-o", "json").stdout)["packets_by_reason"]
    with lab.crew() as crew:
        stranger = crew.start("fabric", sys.executable, "-c", STRANGER, sealed.hex(), link["address"])
        lab.exec("red-0", "ping", "-q", "-i", "0.01", "-c", "300", "-W", "2", "10.1.0.11")  # some are answered
        sent = stranger.finish(timeout_s=120)["sent"]

    def counted():
        now = json.loads(lab.ztdpu("device", "show", "dpu-1", "-o", "json").stdout)["packets_by_reason"]
        return {reason: now[reason] - before.get(reason, 0) for reason in now}

    deadline = time.monotonic() + 60
    while counted().get("bad_tag", 0) < 10_000:
        assert time.monotonic() < deadline, counted()
        time.sleep(0.2)
    found = counted()
    assert found["wrong_outer_source"] == 2
    assert found["replay_duplicate"] >= 1
    assert found["unknown_spi"] >= 100
    assert found["psp_malformed"] >= 52
    assert sum(found.get(reason, 0) for reason in UNDERLAY_REFUSALS) <= sent
    assert lab.ping("blue-0", "blue-1") == 3


TYPIST = "import fcntl; [fcntl.ioctl(0, 0x5412, bytes([one])) for one in b'true typed-by-a-tenant;']"
"""TIOCSTI: as if it was typed at the terminal."""


def exec_at_a_terminal(lab, *command):
    """Start `lab exec blue-0` with a terminal of its own; returns its pid and our end of the terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        words = [sys.executable, "-m", "ztdpu", "lab", "exec", "blue-0", "--state", str(lab.state), "--", *command]
        os.execv(sys.executable, words)
    return pid, terminal


def read_to_the_end(terminal):
    said = b""
    while True:
        try:
            said += os.read(terminal, 4096)
        except OSError:  # EIO: nobody is left on the other side
            os.close(terminal)
            return said.decode()


def test_a_tenant_cannot_type_into_the_terminal_of_who_called_it(lab):
    pid, terminal = exec_at_a_terminal(lab, "python", "-c", TYPIST)
    said = read_to_the_end(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert "PermissionError" in said
    assert not said.startswith("true typed")


def test_interrupts_reach_what_runs_in_a_tenant(lab):
    pid, terminal = exec_at_a_terminal(lab, "sh", "-c", "echo started; sleep 60")
    assert b"started" in os.read(terminal, 100)
    os.write(terminal, b"\x03")
    read_to_the_end(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
