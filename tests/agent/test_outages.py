"""Outages under live connections: two agents, real workers, real virtual functions, TCP between two tenants.

Control and the rest of the laboratory are those of `test_daemon.py`; the functions it hands out are TUN devices
in namespaces of their own.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import importlib.util
import os
import secrets
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import cbor2
import pytest

from ztdpu.agent import mailbox
from ztdpu.model.flow import Direction
from ztdpu.model.verdict import Verdict
from ztdpu.packet.tables import Prefix, Rule, decode_tables, encode_tables

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/net/tun").exists(), reason="needs root and /dev/net/tun"),
]

_spec = importlib.util.spec_from_file_location("small_lab", Path(__file__).with_name("test_daemon.py"))
small_lab = importlib.util.module_from_spec(_spec)
sys.modules["small_lab"] = small_lab
_spec.loader.exec_module(small_lab)

REAL_WORKER = (sys.executable, "-m", "ztdpu.agent.worker", "--mailbox-fd")
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
TUN_FLAGS = 0x0001 | 0x1000 | 0x4000  # IFF_TUN, IFF_NO_PI, IFF_VNET_HDR
OFFLOADS = 0x01 | 0x02 | 0x04  # CSUM, TSO4, TSO6
ANYWHERE = (Prefix(address=bytes(4), length=0), Prefix(address=bytes(16), length=0))
SERVE = """
import hashlib, socket
listener = socket.create_server(("10.1.0.11", 5001))
print("ready", flush=True)
while True:
    connection, _ = listener.accept()
    digest, total = hashlib.sha256(), 0
    while data := connection.recv(1 << 16):
        digest.update(data)
        total += len(data)
        print(total, digest.hexdigest(), flush=True)
"""
SEND = """
import socket, sys
connection = socket.create_connection(("10.1.0.11", 5001), timeout=10)
for line in sys.stdin:
    connection.sendall(bytes(range(250)) * 400)
    print("sent", flush=True)
"""
CHUNK = bytes(range(250)) * 400


def open_tables(device: str) -> bytes:
    """The tables of the small control, with everything allowed."""
    rules = tuple(
        Rule(rule_id=index, direction=direction, verdict=Verdict.ALLOW, protocol=0, port_first=0, port_last=65535,
             peers=ANYWHERE)
        for index, direction in enumerate((Direction.EGRESS, Direction.INGRESS), 1)
    )  # fmt: skip
    tables = decode_tables(closed_tables(device))
    endpoints = tuple(small_lab.replace(endpoint, rules=rules) for endpoint in tables.endpoints)
    return encode_tables(small_lab.replace(tables, endpoints=endpoints))


closed_tables = small_lab.tables_for


class TunFactory(small_lab.SmallFactory):
    """Makes the virtual function of an endpoint in the namespace of its tenant."""

    def __init__(self, path: Path, tag: str) -> None:
        self._tag = tag
        super().__init__(path)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self._listening)
            with connection:
                _, name, identity = cbor2.loads(await loop.sock_recv(connection, 4096))
                self.made.append(name)
                descriptor = await asyncio.to_thread(make_function, self._tag, name[-1])
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
                connection.sendmsg([cbor2.dumps(["made", identity, ""])], rights)
                os.close(descriptor)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def make_function(tag: str, number: str) -> int:
    namespace, interface = f"{tag}-t{number}", f"{tag}{number}"
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", interface.encode(), TUN_FLAGS))
    fcntl.ioctl(descriptor, TUNSETOFFLOAD, OFFLOADS)
    ip("link", "set", interface, "gso_max_size", "60000", "gso_max_segs", "128", "mtu", "8900")
    ip("link", "set", interface, "netns", namespace, "name", "ztdpu0")
    ip("-n", namespace, "link", "set", "ztdpu0", "up")
    ip("-n", namespace, "addr", "add", f"10.1.0.1{number}/24", "dev", "ztdpu0")
    return descriptor


class Tenant:
    """A program in a tenant's namespace, spoken to by lines."""

    def __init__(self, namespace: str, program: str) -> None:
        self.lines: list[str] = []
        self._command = ("ip", "netns", "exec", namespace, sys.executable, "-c", program)

    async def start(self) -> Tenant:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe)
        self._reader = asyncio.create_task(self._read())
        return self

    async def _read(self) -> None:
        async for line in self._process.stdout:
            self.lines.append(line.decode().strip())

    def say(self) -> None:
        self._process.stdin.write(b"go\n")

    async def stop(self) -> None:
        self._reader.cancel()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


class Outage(small_lab.Lab):
    """Two devices with tenants between which a TCP connection lives."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.tag = "zo" + secrets.token_hex(2)
        self.control.interval_ms, self.control.lease_ms = 400, 2000
        self.tenants: list[Tenant] = []

    async def begin(self) -> None:
        for number in "01":
            ip("netns", "add", f"{self.tag}-t{number}")
            ip("-n", f"{self.tag}-t{number}", "link", "set", "lo", "up")
        await self.start()
        for device in ("dpu-0", "dpu-1"):
            self.factories[device] = None
            spec = self.spec(device)
            small_lab.make_state_dir(spec)
            self.factories[device] = TunFactory(spec.virtual_functions.factory_socket, self.tag)
            self.run(device, worker=REAL_WORKER)
        await self.until(self.in_touch)
        self.server = await self.tenant(1, SERVE)
        await self.until(lambda: self.server.lines == ["ready"])

    def in_touch(self) -> bool:
        return self.ready("dpu-0", "dpu-1") and all(
            daemon._exchange.devices and not daemon._exchange.missing() for daemon in self.daemons.values()
        )

    async def tenant(self, number: int, program: str) -> Tenant:
        tenant = await Tenant(f"{self.tag}-t{number}", program).start()
        self.tenants.append(tenant)
        return tenant

    async def pings(self, number: int) -> bool:
        """Whether one packet of this tenant comes back within 0.2 s."""
        process = await asyncio.create_subprocess_exec(
            "ip", "netns", "exec", f"{self.tag}-t{number}", "ping", "-c1", "-W0.2", f"10.1.0.1{1 - number}",
            stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        return await process.wait() == 0

    async def reach(self) -> None:
        """Return when both tenants reach each other."""
        deadline_s = time.monotonic() + 30
        for number in (0, 1):
            while not await self.pings(number):
                assert time.monotonic() < deadline_s, await self.counters()

    async def counters(self) -> dict[str, dict[str, int]]:
        found = {}
        for device, daemon in self.daemons.items():
            channel = daemon._supervisor.channel
            token = channel.next_token()
            answer = await channel.ask(mailbox.GetStatistics(token), mailbox.Statistics, key=token)
            found[device] = answer.packets_by_reason
        return found

    async def count(self, device: str, *reasons: str) -> int:
        counted = (await self.counters())[device]
        return sum(counted.get(reason, 0) for reason in reasons)

    async def until_counted(self, device: str, *reasons: str, least: int) -> None:
        deadline_s = time.monotonic() + 30
        while await self.count(device, *reasons) < least:
            assert time.monotonic() < deadline_s, await self.counters()
            await asyncio.sleep(0.05)

    def phases(self) -> set[str]:
        return {str(daemon._life.phase) for daemon in self.daemons.values()}

    def received(self, chunks: int) -> bool:
        """Whether the server has these many chunks of one connection, every octet as it was sent."""
        return f"{chunks * len(CHUNK)} {small_lab.sha256(CHUNK * chunks).hex()}" in self.server.lines

    async def finish(self) -> None:
        for tenant in self.tenants:
            await tenant.stop()
        with contextlib.suppress(asyncio.CancelledError):
            await self.stop()
        for number in "01":
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "delete", f"{self.tag}-t{number}")


@pytest.fixture
async def outage(tmp_path, monkeypatch):
    monkeypatch.setattr(small_lab, "tables_for", open_tables)
    lab = Outage(tmp_path)
    try:
        await lab.begin()
        yield lab
    finally:
        await lab.finish()


async def test_a_lapse_of_both_leases_is_survived_by_tcp(outage):
    client = await outage.tenant(0, SEND)
    client.say()
    await outage.until(lambda: outage.received(1))
    await outage.control.stop()
    await outage.until(lambda: outage.phases() == {"stale"})
    dark = await outage.count("dpu-0", "no_lease")
    client.say()  # into the dark
    await outage.until_counted("dpu-0", "no_lease", least=dark + 2)  # a retransmission too
    assert not outage.received(2)
    assert not await outage.pings(0)
    for known in outage.control.known.values():
        known.stream = None
    workers = [daemon._supervisor._worker.pid for daemon in outage.daemons.values()]
    await outage.control.start(outage.ports)
    await outage.until(lambda: outage.phases() == {"leased"})
    await outage.reach()
    await outage.until(lambda: outage.received(2))
    client.say()
    await outage.until(lambda: outage.received(3))
    assert workers == [daemon._supervisor._worker.pid for daemon in outage.daemons.values()]


async def test_a_peer_that_noticed_nothing_is_told_to_ask_again(outage):
    """The lease of one device lapses; control tells nobody, so the other goes on sealing to dead SPIs."""
    client = await outage.tenant(0, SEND)
    client.say()
    await outage.until(lambda: outage.received(1))
    daemon = outage.daemons["dpu-0"]
    outage.control.hold("dpu-0")
    await outage.until(lambda: daemon._life.phase == "stale")
    client.say()
    await outage.pings(1)
    outage.control.release("dpu-0")
    await outage.until(lambda: daemon._life.phase == "leased")
    await outage.reach()
    await outage.until(lambda: outage.received(2))


async def test_a_worker_that_lost_its_keys_alone_is_noticed(outage):
    """The worker saw its lease end just before a longer one arrived: the daemon never left `leased`."""
    daemon = outage.daemons["dpu-0"]
    channel = daemon._supervisor.channel
    channel.send(mailbox.SetLease(1))
    channel.send(mailbox.SetLease(daemon._life.lease_deadline_ns))
    assert daemon._life.phase == "leased"
    await outage.reach()


async def test_a_clock_that_stepped_costs_no_connection(outage):
    client = await outage.tenant(0, SEND)
    client.say()
    await outage.until(lambda: outage.received(1))
    for daemon in outage.daemons.values():
        daemon._worker_said(mailbox.ClockDoubt(5000))
    assert outage.phases() == {"stale"}
    await outage.until(lambda: outage.phases() == {"leased"})
    await outage.reach()
    client.say()
    await outage.until(lambda: outage.received(2))


async def test_a_restarted_worker_is_reached_again(outage):
    worker = outage.daemons["dpu-0"]._supervisor._worker.pid
    outage.daemons["dpu-0"]._supervisor.replace_worker()
    await outage.until(lambda: getattr(outage.daemons["dpu-0"]._supervisor._worker, "pid", worker) != worker)
    await outage.until(outage.in_touch)
    await outage.reach()


async def test_a_device_that_merely_left_the_list_keeps_its_flows(outage):
    client = await outage.tenant(0, SEND)
    client.say()
    await outage.until(lambda: outage.received(1))
    outage.control.generation += 1
    outage.control.push("dpu-0", peers=small_lab.agent_pb2.Peers(generation=outage.control.generation))
    await outage.until(lambda: outage.daemons["dpu-0"]._exchange.devices == ())
    client.say()
    assert not await outage.pings(0)
    outage.control.push_peers()
    await outage.reach()
    await outage.until(lambda: outage.received(2))


async def test_a_revocation_ends_the_connection_for_good(outage):
    """The twin: after revocation and restoration new connections work, the old one does not go on."""
    client = await outage.tenant(0, SEND)
    client.say()
    await outage.until(lambda: outage.received(1))
    generation = outage.control.revoke("dpu-1")
    await outage.until(lambda: generation in outage.control.known["dpu-0"].applied)
    await outage.until(lambda: outage.daemons["dpu-1"]._life.phase == "refused")
    client.say()
    outage.control.known["dpu-1"].state = "affirming"
    await outage.until(lambda: outage.phases() == {"leased"} and outage.in_touch())
    await outage.reach()
    fresh = await outage.tenant(0, SEND)
    fresh.say()
    await outage.until(lambda: fresh.lines == ["sent"])  # connected, so the namespaces reach each other
    cut = await outage.count("dpu-0", "flow_cut", "tcp_state")
    assert cut > 0
    await outage.until_counted("dpu-0", "flow_cut", "tcp_state", least=cut + 1)  # it goes on trying
    assert not outage.received(2)
