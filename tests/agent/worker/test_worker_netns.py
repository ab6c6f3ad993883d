"""Two worker processes, real TUN devices, real sealed packets between real namespaces."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
import time

import pytest

from ztdpu.agent import mailbox

pytestmark = pytest.mark.netns

PING = ("ping", "-c", "2", "-i", "0.05", "-W", "0.5")
SERVE = """
import socket, sys, hashlib
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
listener = socket.create_server((sys.argv[1], 5001), family=family)
print("ready", flush=True)
connection, _ = listener.accept()
digest, total = hashlib.sha256(), 0
while data := connection.recv(1 << 20):
    digest.update(data)
    total += len(data)
connection.sendall(f"{total} {digest.hexdigest()}".encode())
"""
SEND = """
import socket, sys, hashlib
data = bytes(range(251)) * 80000
connection = socket.create_connection((sys.argv[1], 5001), timeout=20)
connection.sendall(data)
connection.shutdown(socket.SHUT_WR)
answer = connection.recv(200).decode()
assert answer == f"{len(data)} {hashlib.sha256(data).hexdigest()}", answer
print("same")
"""


def until(condition, timeout_s=5.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


@contextlib.contextmanager
def capture(namespace: str):
    """Every packet on the underlay of a device, as (ethertype, octets from the IP header on)."""
    caught: list[tuple[int, bytes]] = []
    opened: list[socket.socket] = []

    def open_inside() -> None:
        handle = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
        try:
            setns(handle)
            tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
            tap.bind(("under0", 3))
            tap.settimeout(0.1)
            opened.append(tap)
        finally:
            os.close(handle)
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                data, (_, ethertype, *_) = tap.recvfrom(65536)
                caught.append((ethertype, data))

    stop = threading.Event()
    thread = threading.Thread(target=open_inside)
    thread.start()
    until(lambda: opened)
    try:
        yield caught
    finally:
        stop.set()
        thread.join()
        opened[0].close()


def setns(handle: int) -> None:
    import ctypes

    assert ctypes.CDLL(None, use_errno=True).setns(handle, 0x40000000) == 0


def test_ping_and_tcp_cross_sealed(devices):
    with capture(devices.name("u0")) as caught:
        for target in ("10.1.0.11", "fd00:1::11"):
            devices.tenant(0, *PING, "-p", "c0ffee", target)
            transfer(devices, target)
    kinds = {(ethertype, data[9 if ethertype == 0x0800 else 6]) for ethertype, data in caught}
    assert kinds <= {
        (0x0800, 17),
        (0x86DD, 17),
        (0x0806, 0),
        *((0x86DD, protocol) for protocol in (0, 58)),
        *((0x0806, n) for n in range(256)),
    }
    sealed = [
        data
        for ethertype, data in caught
        if ethertype in {0x0800, 0x86DD} and data[9 if ethertype == 0x0800 else 6] == 17
    ]
    assert sealed
    for data in sealed:
        header = 20 if data[0] >> 4 == 4 else 40
        assert int.from_bytes(data[header + 2 : header + 4]) == 1000
        assert b"\xc0\xff\xee\xc0\xff\xee" not in data
        assert bytes(range(200)) not in data

    for daemon in devices.daemons:
        statistics = daemon.statistics()
        assert statistics.sealed_packets > 1000 or statistics.opened_packets > 1000
        assert "no_sa" not in statistics.packets_by_reason
        assert statistics.resident_octets < 80 * 1024 * 1024
        assert [row[5] for row in statistics.receive_sas] == ["ACTIVE"]


def transfer(devices, target: str) -> None:
    """20 MB to the other tenant, which answers with their hash."""
    server = subprocess.Popen(
        ["ip", "netns", "exec", devices.name("t1"), "python3", "-c", SERVE, target], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout.readline() == "ready\n"
        assert devices.tenant(0, "python3", "-c", SEND, target) == "same\n"
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def test_darkness(devices):
    """Each way to lose the right to send stops everything, and its end brings everything back."""
    first, second = devices.daemons

    def reaches() -> bool:
        return "2 received" in devices.tenant(0, *PING, "10.1.0.11", check=False)

    assert reaches()

    first.lease(-1)
    assert not reaches()
    assert first.statistics().packets_by_reason["no_lease"] >= 2
    first.lease(600)
    assert not reaches(), "the SAs went with the lease"
    assert first.expect(mailbox.SasWanted).peer == "dpu-1"
    devices.connect(0)
    devices.connect(1)
    assert reaches()

    second.send(mailbox.RemovePeer(7, "dpu-0", True))
    removed = second.expect(mailbox.PeerRemoved)
    assert 0 < time.time_ns() - removed.last_packet_realtime_ns < 20e9
    assert not reaches()
    assert second.statistics().packets_by_reason["unknown_spi"] >= 2
    devices.connect(0)
    devices.connect(1)
    assert reaches()

    first.lease(0.3)
    time.sleep(0.4)
    assert not reaches(), "a lease ends without a message"


def test_a_tenant_that_deletes_its_interface_hurts_itself_alone(devices):
    first = devices.daemons[0]
    devices.tenant(0, "ip", "link", "set", "ztdpu0", "down")
    devices.tenant(1, *PING, "10.1.0.10", check=False)
    assert first.statistics().packets_by_reason["endpoint_down"] == 2
    devices.tenant(0, "ip", "link", "set", "ztdpu0", "up")
    devices.tenant(0, "ip", "addr", "replace", "fd00:1::10/64", "dev", "ztdpu0", "nodad")
    devices.tenant(0, *PING, "10.1.0.11")
    devices.tenant(0, "ip", "link", "delete", "ztdpu0")
    down = first.expect(mailbox.EndpointDown)
    assert down.endpoint_id == bytes(16)
    devices.tenant(1, *PING, "10.1.0.10", check=False)
    assert first.statistics().packets_by_reason["endpoint_down"] == 4
    devices.attach(0)
    devices.tenant(0, *PING, "10.1.0.11")


def test_rubbish_on_the_underlay_never_ends_the_loop(devices):
    script = (
        "import socket, os, sys\n"
        "family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET\n"
        "sender = socket.socket(family, socket.SOCK_DGRAM)\n"
        "for size in [0, 1, 15, 16, 51, 52, 53, 1400] * 50:\n"
        "    sender.sendto(os.urandom(size), (sys.argv[1], 1000))\n"
    )
    target = "10.90.0.11" if devices.family == 4 else "fd90::11"
    subprocess.run(["ip", "netns", "exec", devices.name("u0"), "python3", "-c", script, target], check=True)
    devices.tenant(0, *PING, "10.1.0.11")
    reasons = devices.daemons[1].statistics().packets_by_reason
    assert sum(reasons.get(word, 0) for word in ("psp_malformed", "unknown_spi")) == 400
    assert "malformed" not in reasons
