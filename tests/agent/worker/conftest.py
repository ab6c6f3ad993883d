"""A worker process with the test as its daemon, and two devices in network namespaces of their own."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import secrets
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ztdpu.agent import mailbox
from ztdpu.model.flow import Direction
from ztdpu.model.verdict import Verdict
from ztdpu.packet.tables import (
    DeviceTables,
    EndpointTable,
    NetworkTable,
    PeerTable,
    Prefix,
    Route,
    Rule,
    encode_tables,
    revision,
)

ROOT = Path(__file__).resolve().parents[3]
NETWORK = b"N" * 16
ANYWHERE = (Prefix(address=bytes(4), length=0), Prefix(address=bytes(16), length=0))
UNDERLAYS = {4: ("10.90.0.10", "10.90.0.11"), 6: ("fd90::10", "fd90::11")}
OVERLAY = (("10.1.0.10", "fd00:1::10"), ("10.1.0.11", "fd00:1::11"))
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
TUN_FLAGS = 0x0001 | 0x1000 | 0x4000  # IFF_TUN, IFF_NO_PI, IFF_VNET_HDR
OFFLOADS = 0x01 | 0x02 | 0x04  # CSUM, TSO4, TSO6


def packed(address: str) -> bytes:
    return ipaddress.ip_address(address).packed


def boottime_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Daemon:
    """The daemon's end of one worker's mailbox."""

    def __init__(self, *, namespace: str | None = None) -> None:
        self.socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        prefix = ["ip", "netns", "exec", namespace] if namespace else []
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "ztdpu.agent.worker", "--mailbox-fd", str(other.fileno())],
            pass_fds=[other.fileno()],
            cwd=ROOT,
            stderr=subprocess.PIPE,
        )
        other.close()
        self.seen: list[mailbox.Message] = []

    def send(self, message: mailbox.Message, *descriptors: int) -> None:
        socket.send_fds(self.socket, [mailbox.encode(message)], list(descriptors))

    def expect(self, kind: type, timeout_s: float = 5) -> mailbox.Message:
        """The next message of `kind`; others are kept in `seen`."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            datagram = self.socket.recv(mailbox.MESSAGE_LIMIT_OCTETS)
            assert datagram, f"worker ended: {self.process.communicate()[1].decode()}"
            message = mailbox.decode(datagram)
            self.seen.append(message)
            if isinstance(message, kind):
                return message

    def statistics(self) -> mailbox.Statistics:
        self.send(mailbox.GetStatistics(1))
        return self.expect(mailbox.Statistics)

    def lease(self, seconds: float) -> None:
        self.send(mailbox.SetLease(boottime_ns() + int(seconds * 1e9)))

    def apply(self, tables: DeviceTables, generation: int = 1, *, announced: bytes | None = None) -> None:
        self.apply_blob(encode_tables(tables), generation, announced=announced)

    def apply_blob(self, blob: bytes, generation: int = 1, *, announced: bytes | None = None) -> None:
        descriptor = os.memfd_create("tables")
        try:
            os.write(descriptor, blob)
            self.send(mailbox.ApplyTables(generation, announced or revision(blob)), descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        self.socket.close()
        try:
            self.process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stderr.close()


def tables_of(number: int, *, family: int = 4, mtu_octets: int = 8940, allowed: bool = True) -> DeviceTables:
    """Two devices, one network, one endpoint on each; everything allowed, or nothing."""
    rules = tuple(
        Rule(
            rule_id=index,
            direction=direction,
            verdict=Verdict.ALLOW,
            protocol=0,
            port_first=0,
            port_last=65535,
            peers=ANYWHERE,
        )
        for index, direction in enumerate((Direction.EGRESS, Direction.INGRESS), 1)
    )
    routes = [
        Route(address=packed(address), device=f"dpu-{at}", endpoint_id=bytes([at]) * 16)
        for at in (0, 1)
        for address in OVERLAY[at]
    ]
    return DeviceTables(
        device=f"dpu-{number}",
        networks=(
            NetworkTable(
                network_id=NETWORK,
                generation=1,
                tenant="blue",
                psp_version=1,
                flow_quota=1000,
                routes=tuple(sorted(routes, key=lambda one: one.address)),
            ),
        ),
        endpoints=(
            EndpointTable(
                endpoint_id=bytes([number]) * 16,
                name=f"blue-{number}",
                network_id=NETWORK,
                addresses=tuple(map(packed, OVERLAY[number])),
                mtu_octets=mtu_octets,
                rules=rules if allowed else (),
            ),
        ),
        peers=(PeerTable(device=f"dpu-{1 - number}", underlay_address=packed(UNDERLAYS[family][1 - number])),),
    )


def run(*command: str, check: bool = True, timeout_s: float = 30) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


class TwoDevices:
    """Underlay namespaces u0 and u1 joined by a veth pair, tenant namespaces t0 and t1 with a TUN each."""

    def __init__(self, *, family: int = 4, mtu_octets: int = 9000) -> None:
        self.tag = "zt" + secrets.token_hex(3)
        self.family = family
        self.mtu_octets = mtu_octets
        self.tunnel_mtu_octets = mtu_octets - (60 if family == 4 else 80)
        self.daemons: list[Daemon] = []
        self._token = 0

    def name(self, kind: str) -> str:
        return f"{self.tag}-{kind}"

    def start(self) -> None:
        for kind in ("u0", "u1", "t0", "t1"):
            run("ip", "netns", "add", self.name(kind))
            run("ip", "-n", self.name(kind), "link", "set", "lo", "up")
        run(
            "ip",
            "-n",
            self.name("u0"),
            "link",
            "add",
            "under0",
            "type",
            "veth",
            "peer",
            "name",
            "under0",
            "netns",
            self.name("u1"),
        )
        for number in (0, 1):
            self._start_underlay(number)
            self.daemons.append(Daemon(namespace=self.name(f"u{number}")))
        for number, daemon in enumerate(self.daemons):
            daemon.expect(mailbox.WorkerReady)
            daemon.send(mailbox.Configure(f"dpu-{number}", UNDERLAYS[self.family][number], self.mtu_octets))
            daemon.apply(tables_of(number, family=self.family, mtu_octets=self.tunnel_mtu_octets))
            daemon.expect(mailbox.TablesApplied)
            daemon.lease(600)
            self.attach(number)

    def _start_underlay(self, number: int) -> None:
        namespace = self.name(f"u{number}")
        address = UNDERLAYS[self.family][number] + ("/24" if self.family == 4 else "/64")
        run("ip", "-n", namespace, "link", "set", "under0", "mtu", str(self.mtu_octets), "up")
        run("ip", "-n", namespace, "addr", "add", address, "dev", "under0", *(["nodad"] if self.family == 6 else []))

    def attach(self, number: int) -> None:
        """A new TUN in the tenant's namespace; its descriptor to the worker."""
        namespace, interface = self.name(f"t{number}"), f"{self.tag}{number}"
        descriptor = os.open("/dev/net/tun", os.O_RDWR)
        try:
            fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", interface.encode(), TUN_FLAGS))
            fcntl.ioctl(descriptor, TUNSETOFFLOAD, OFFLOADS)
            size = str(64000 if self.mtu_octets > 4000 else 60000)
            run(
                "ip",
                "link",
                "set",
                interface,
                "gso_max_size",
                size,
                "gso_max_segs",
                "128",
                "mtu",
                str(self.tunnel_mtu_octets),
            )
            run("ip", "link", "set", interface, "netns", namespace, "name", "ztdpu0")
            self.daemons[number].send(mailbox.AttachEndpoint(bytes([number]) * 16), descriptor)
        finally:
            os.close(descriptor)
        run("ip", "-n", namespace, "link", "set", "ztdpu0", "up")
        run("ip", "-n", namespace, "addr", "add", OVERLAY[number][0] + "/24", "dev", "ztdpu0")
        run("ip", "-n", namespace, "addr", "add", OVERLAY[number][1] + "/64", "dev", "ztdpu0", "nodad")

    def connect(self, sender: int) -> int:
        """One SA from `sender` to the other device; returns its SPI."""
        self._token += 1
        receiver = 1 - sender
        self.daemons[receiver].send(mailbox.AllocateSas(self._token, f"dpu-{sender}", [[NETWORK, 0, 0, 1]]))
        grants = self.daemons[receiver].expect(mailbox.SasAllocated).grants
        assert len(grants) == 1
        self.daemons[sender].send(mailbox.InstallSas(self._token, f"dpu-{receiver}", grants))
        assert self.daemons[sender].expect(mailbox.SasInstalled).spis == [grants[0][4]]
        return grants[0][4]

    def tenant(self, number: int, *command: str, check: bool = True, timeout_s: float = 30) -> str:
        return run("ip", "netns", "exec", self.name(f"t{number}"), *command, check=check, timeout_s=timeout_s)

    def stop(self) -> None:
        for daemon in self.daemons:
            daemon.close()
        for kind in ("u0", "u1", "t0", "t1"):
            run("ip", "netns", "delete", self.name(kind), check=False)
        for number in (0, 1):
            run("ip", "link", "delete", f"{self.tag}{number}", check=False)


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    """One unconfigured worker in our own namespace."""
    started = Daemon()
    try:
        yield started
    finally:
        started.close()


@pytest.fixture(params=[4, 6], ids=["underlay-ipv4", "underlay-ipv6"])
def devices(request) -> Iterator[TwoDevices]:
    """Two connected devices with their SAs in place."""
    if os.geteuid() != 0:
        pytest.skip("needs root for network namespaces")
    if not Path("/dev/net/tun").exists():
        pytest.skip("needs /dev/net/tun")
    two = TwoDevices(family=request.param)
    with contextlib.ExitStack() as stack:
        stack.callback(two.stop)
        two.start()
        two.connect(0)
        two.connect(1)
        yield two
