"""The worker process as its daemon sees it, and its loop with links in memory."""

from __future__ import annotations

import dataclasses
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ztdpu.agent import mailbox
from ztdpu.agent.worker.channel import Channel, ChannelClosedError
from ztdpu.agent.worker.links.memory import MemoryEndpoint
from ztdpu.agent.worker.links.udp import UdpUnderlay
from ztdpu.agent.worker.loop import Worker
from ztdpu.errors import StateError
from ztdpu.model.sa import PspVersion, SaUse
from ztdpu.model.verdict import Reason
from ztdpu.packet.pipeline import Pipeline
from ztdpu.packet.tables import encode_tables

ROOT = Path(__file__).resolve().parents[3]
FORBIDDEN = (
    "asyncio",
    "grpc",
    "google",
    "pydantic",
    "sqlalchemy",
    "ztdpu.rpc",
    "ztdpu.policy",
    "ztdpu.trust",
    "ztdpu.telemetry",
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for UDP port 1000")
NETWORK = b"N" * 16


def loopback() -> str:
    """An address of our own on loopback, so that port 1000 is free."""
    return f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(256)}.{secrets.randbelow(254) + 1}"


def configure(daemon, address: str = "") -> None:
    daemon.expect(mailbox.WorkerReady)
    daemon.send(mailbox.Configure("dpu-0", address or loopback(), 9000))


def ended(daemon) -> tuple[int, str]:
    status = daemon.process.wait(timeout=30)
    return status, daemon.process.stderr.read().decode()


def test_the_worker_imports_nothing_that_it_must_not():
    program = f"import sys, ztdpu.agent.worker.__main__; print([m for m in sys.modules if m.startswith({FORBIDDEN!r})])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    twin = subprocess.run(
        [sys.executable, "-c", "import asyncio;" + program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "asyncio" in twin.stdout


def test_it_ends_with_its_mailbox(daemon):
    daemon.expect(mailbox.WorkerReady)
    daemon.socket.close()
    assert ended(daemon) == (0, "")


def test_each_start_is_another_instance(daemon):
    twin = type(daemon)()
    try:
        instances = {one.expect(mailbox.WorkerReady).instance for one in (daemon, twin)}
    finally:
        twin.close()
    assert len(instances) == 2
    assert {len(instance) for instance in instances} == {16}


@pytest.mark.parametrize(
    "datagram", [b"\xff", b"\x81\x63abc", mailbox.encode(mailbox.SetLease(1)), mailbox.encode(mailbox.WorkerReady(b""))]
)
def test_a_message_that_is_none_or_out_of_place_ends_it_with_words(daemon, datagram):
    daemon.expect(mailbox.WorkerReady)
    daemon.socket.send(datagram)
    status, words = ended(daemon)
    assert status == 1
    assert words.startswith("worker: mailbox message")
    assert "Traceback" not in words


@needs_root
def test_an_address_that_is_not_ours_is_said(daemon):
    configure(daemon, "192.0.2.77")
    status, words = ended(daemon)
    assert status == 1
    assert "192.0.2.77" in words
    assert "Traceback" not in words


@needs_root
def test_a_command_that_fails_half_way_ends_the_worker(daemon):
    configure(daemon)
    daemon.send(mailbox.InstallSas(1, "dpu-1", [[NETWORK, 0]]))
    status, words = ended(daemon)
    assert status == 1
    assert words.startswith("worker: install-sas failed")
    assert "Traceback" not in words


def test_an_interrupt_from_the_terminal_is_the_daemons_to_judge(daemon):
    daemon.expect(mailbox.WorkerReady)
    daemon.process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        daemon.process.wait(timeout=0.3)
    daemon.socket.close()
    assert ended(daemon) == (0, "")


@needs_root
def test_no_core_dump_can_hold_a_key(daemon):
    configure(daemon)
    daemon.statistics()
    limits = Path(f"/proc/{daemon.process.pid}/limits").read_text()
    line = next(line for line in limits.splitlines() if line.startswith("Max core file size"))
    assert line.split()[4:6] == ["0", "0"]


@needs_root
@pytest.mark.parametrize(("address", "longest"), [("", 8940), ("::1", 8920)])
def test_tables_whose_packets_do_not_fit_the_underlay_are_refused(daemon, address, longest):
    tables_of = sys.modules[type(daemon).__module__].tables_of
    configure(daemon, address)
    daemon.apply(tables_of(0, mtu_octets=longest + 1), 1)
    assert f"carries {longest}" in daemon.expect(mailbox.TablesRefused).message
    daemon.apply(tables_of(0, mtu_octets=longest), 2)
    assert daemon.expect(mailbox.TablesApplied).generation == 2


@needs_root
def test_tables_are_taken_whole_or_not_at_all(daemon, request):
    tables_of = sys.modules[type(daemon).__module__].tables_of
    configure(daemon)
    daemon.apply(tables_of(0), 1, announced=bytes(32))
    assert "revision" in daemon.expect(mailbox.TablesRefused).message
    daemon.apply(tables_of(1), 2)
    assert "dpu-1" in daemon.expect(mailbox.TablesRefused).message
    daemon.apply_blob(encode_tables(tables_of(0)) + b"\0", 3)
    assert daemon.expect(mailbox.TablesRefused).generation == 3
    daemon.apply_blob(b"", 4)
    assert daemon.expect(mailbox.TablesRefused).generation == 4
    daemon.apply(tables_of(0), 5)
    applied = daemon.expect(mailbox.TablesApplied)
    assert (applied.generation, applied.flows_cut) == (5, 0)


@needs_root
def test_keys_are_given_out_only_under_a_lease(daemon):
    tables_of = sys.modules[type(daemon).__module__].tables_of
    configure(daemon)
    daemon.apply(tables_of(0))
    want = mailbox.AllocateSas(5, "dpu-1", [[NETWORK, 0, 0, 1]])
    daemon.send(want)
    assert daemon.expect(mailbox.SasAllocated) == mailbox.SasAllocated(5, [])
    daemon.lease(60)
    daemon.send(want)
    (grant,) = daemon.expect(mailbox.SasAllocated).grants
    assert grant[:5] == [NETWORK, 0, 0, 1, 1]
    assert len(grant[5]) == 32
    daemon.send(mailbox.RotateMasterKey(False))
    assert daemon.expect(mailbox.MasterKeyRotated).refused == ""
    daemon.send(want)
    (other,) = daemon.expect(mailbox.SasAllocated).grants
    assert other[4] == 1 << 31 | 1
    daemon.send(mailbox.AllocateSas(6, "dpu-1", [[NETWORK, 7, 0, 1]]))
    assert daemon.expect(mailbox.SasAllocated).grants == []
    daemon.send(
        mailbox.InstallSas(
            7, "dpu-1", [[NETWORK, 0, 0, 9, 1, bytes(32), 60, 60], [NETWORK, 0, 0, 1, 1, bytes(32), 60, 60]]
        )
    )
    assert daemon.expect(mailbox.SasInstalled).spis == [0, 1]
    statistics = daemon.statistics()
    assert [row[4:6] for row in statistics.receive_sas] == [[1, "OFFERED"], [1 << 31 | 1, "OFFERED"]]
    assert statistics.resident_octets < 60 * 1024 * 1024
    daemon.lease(-1)
    assert {daemon.expect(mailbox.SaDeleted).cause for _ in range(2)} == {"lease-ended"}


# --- in this process ---------------------------------------------------------------------------------


class InMemory:
    """A worker in a thread: its tenant is a MemoryEndpoint, its underlay a socket on loopback."""

    def __init__(self, conftest, number: int, port: int) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket = ours
        self.socket.settimeout(5)
        self.worker = Worker(Channel(theirs.detach()))
        self.endpoint = MemoryEndpoint()
        pipeline = Pipeline(
            device=f"dpu-{number}", sink=self.worker, new_master_key=lambda: os.urandom(32), pid=os.getpid()
        )
        self.address = f"127.0.1.{10 + number}"
        self.worker.set_underlay(UdpUnderlay(self.address, port=port), pipeline)
        self.tables = conftest.tables_of(number)
        pipeline.apply_tables(self.tables)
        self.number, self.pipeline = number, pipeline
        self.join_peer()
        now = {"boottime_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME), "realtime_ns": time.time_ns()}
        pipeline.set_lease(now["boottime_ns"] + 60_000_000_000, **now)
        self.worker.begin_batch()
        self.worker.attach(bytes([number]) * 16, self.endpoint)
        self.thread = threading.Thread(target=self.worker.run)

    def join_peer(self) -> None:
        """Tables have addresses of namespaces; here peers are on loopback."""
        self.pipeline._station.forwarding.peers[f"dpu-{1 - self.number}"] = socket.inet_aton(
            f"127.0.1.{11 - self.number}"
        )

    def expect(self, kind: type):
        while True:
            message = mailbox.decode(self.socket.recv(mailbox.MESSAGE_LIMIT_OCTETS))
            if isinstance(message, kind):
                return message


@pytest.fixture
def two_in_memory(request):
    conftest = next(
        plugin for plugin in request.config.pluginmanager.get_plugins() if getattr(plugin, "TwoDevices", None)
    )
    port = 20000 + secrets.randbelow(20000)
    pair = [InMemory(conftest, number, port) for number in (0, 1)]
    for sender, receiver in (pair, pair[::-1]):
        name = f"dpu-{pair.index(sender)}"
        grants = receiver.pipeline.allocate(name, [(NETWORK, SaUse.DATAGRAM, 0, PspVersion.AES_GCM_256)])
        assert 0 not in sender.pipeline.install(f"dpu-{pair.index(receiver)}", grants)
    for one in pair:
        one.thread.start()
    yield pair
    for one in pair:
        one.socket.close()
        one.thread.join(timeout=2)
        assert not one.thread.is_alive()


def until(condition, timeout_s=5.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.005)


UDP = bytes.fromhex(
    "000000000000000000004500001d00000000401165b60a01000a0a01000b0457 08ae 0009 0000 61".replace(" ", "")
)


def udp_frame() -> bytes:
    from ztdpu.packet.checksum import checksum, residue

    frame = bytearray(UDP)
    frame[20:22] = bytes(2)
    frame[20:22] = checksum(residue(frame[10:30])).to_bytes(2, "big")
    return bytes(frame)


def test_a_frame_crosses_two_loops(two_in_memory):
    first, second = two_in_memory
    first.endpoint.put(udp_frame())
    until(lambda: second.endpoint.taken)
    assert second.endpoint.taken[0] == udp_frame()


def test_what_audit_mode_would_drop_is_told_once_added_up_and_passes(two_in_memory):
    first, second = two_in_memory
    (table,) = second.tables.endpoints
    second.pipeline.apply_tables(
        dataclasses.replace(second.tables, endpoints=(dataclasses.replace(table, audit_rules=()),))
    )
    second.join_peer()
    for _ in range(5):
        first.endpoint.put(udp_frame())
    until(lambda: len(second.endpoint.taken) == 5)
    told = second.expect(mailbox.AuditNoted)
    # One flow: only its first packet is asked about.
    assert told.rows == [["blue", "blue-1", "ingress", bytes((10, 1, 0, 10)), 17, 2222, "audit_would_drop", None, 1]]
    assert told.uncounted == 0
    first.socket.send(mailbox.encode(mailbox.GetStatistics(3)))
    while not isinstance(
        message := mailbox.decode(first.socket.recv(mailbox.MESSAGE_LIMIT_OCTETS)), mailbox.Statistics
    ):
        assert not isinstance(message, mailbox.AuditNoted), "no policy in audit mode is about the sender"


def test_a_deleted_virtual_function_is_told_once_and_the_loop_goes_on(two_in_memory):
    first, second = two_in_memory
    first.endpoint.delete()
    assert first.expect(mailbox.EndpointDown).endpoint_id == bytes(16)
    second.endpoint.put(udp_frame())
    first.socket.send(mailbox.encode(mailbox.GetStatistics(3)))
    assert first.expect(mailbox.Statistics).token == 3


def test_a_defect_costs_the_packet_and_not_the_loop(two_in_memory, capfd):
    first, second = two_in_memory
    honest = first.pipeline.outbound
    broken = [True]

    def fails_once(endpoint_id, octets):
        if broken:
            broken.pop()
            raise ValueError("a defect")
        honest(endpoint_id, octets)

    first.pipeline.outbound = fails_once
    first.endpoint.put(udp_frame())
    until(lambda: not broken)
    first.endpoint.put(udp_frame())
    until(lambda: second.endpoint.taken)
    assert first.pipeline.counters.by_reason()[0].get(Reason.MALFORMED) == 1
    assert "a defect" in capfd.readouterr().err


def test_a_full_virtual_function_is_counted(two_in_memory):
    first, second = two_in_memory
    for _ in range(600):
        first.endpoint.put(udp_frame())
    until(lambda: second.pipeline.counters.by_reason()[0].get(Reason.ENDPOINT_FULL) == 600 - 512)


def test_a_daemon_that_never_reads_ends_the_channel():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = Channel(theirs.detach())

    def send_for_ever() -> None:
        while True:
            channel.send(mailbox.SasWanted("dpu-1", NETWORK, 0))

    with ours, pytest.raises(ChannelClosedError, match="does not read"):
        send_for_ever()
    channel.close()


def test_a_channel_hands_over_messages_with_their_descriptors():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = Channel(theirs.detach())
    assert channel.receive() is None
    with ours, Path(os.devnull).open() as null:
        socket.send_fds(ours, [mailbox.encode(mailbox.AttachEndpoint(b"x"))], [null.fileno()])
        message, descriptors = channel.receive()
        assert message == mailbox.AttachEndpoint(b"x")
        assert os.fstat(descriptors[0]).st_rdev == os.fstat(null.fileno()).st_rdev
        os.close(descriptors[0])
        ours.send(b"\x00")
        with pytest.raises(StateError):
            channel.receive()
    with pytest.raises(ChannelClosedError):
        channel.receive()
    channel.close()
