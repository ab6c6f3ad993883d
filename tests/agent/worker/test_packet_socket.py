"""A virtual function that is one end of a SOCK_SEQPACKET pair: frames whole and in order, full is full, gone is gone."""

import os
import socket
import struct
import sys

import pytest

from ztdpu.agent import mailbox
from ztdpu.agent.worker.links.link import LinkDownError
from ztdpu.agent.worker.links.opening import open_link
from ztdpu.agent.worker.links.packet_socket import PacketSocket
from ztdpu.agent.worker.links.tun import Tun
from ztdpu.errors import StateError
from ztdpu.model.verdict import Reason


@pytest.fixture
def pair():
    worker, tenant = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link = PacketSocket(worker.detach())
    yield link, tenant
    link.close()
    tenant.close()


def test_frames_pass_whole_in_both_directions(pair):
    link, tenant = pair
    buffer = memoryview(bytearray(70_000))
    assert link.read_into(buffer) == 0, "nothing there is no end"
    for frame in (b"\0" * 10 + b"one", bytes(65_550)):
        tenant.send(frame)
        assert link.read_into(buffer) == len(frame)
        assert buffer[: len(frame)] == frame
    assert link.write([b"\0" * 10, memoryview(b"two"), bytearray(b"!")]) is None
    assert tenant.recv(100) == b"\0" * 10 + b"two!"


def test_a_queue_that_is_full_loses_the_packet_and_says_so(pair):
    link, tenant = pair
    for _ in range(100_000):
        reason = link.write([bytes(1000)])
        if reason is not None:
            break
    assert reason is Reason.ENDPOINT_FULL
    while len(tenant.recv(2000, socket.MSG_DONTWAIT)) == 1000 and link.write([b"again"]) is not None:
        pass
    assert link.write([b"again"]) is None


def test_the_other_end_gone_is_a_link_down(pair):
    link, tenant = pair
    tenant.close()
    assert link.write([b"x"]) is Reason.ENDPOINT_DOWN
    with pytest.raises(LinkDownError):
        link.read_into(memoryview(bytearray(100)))


def test_the_descriptor_says_which_link_it_is():
    worker, tenant = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with worker, tenant:
        link = open_link(worker.fileno())
        assert isinstance(link, PacketSocket)
        assert link.fileno() != worker.fileno(), "the caller closes its own"
        link.close()
    reading, writing = os.pipe()
    other = open_link(reading)
    assert isinstance(other, Tun)
    other.close()
    os.close(reading)
    os.close(writing)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger, pytest.raises(StateError):
        open_link(stranger.fileno())


def test_a_worker_without_privilege_moves_packets_between_port_and_pair(daemon):
    """The real worker on another port than PSP's own: it takes a pair as an endpoint, and says when it is gone."""
    tables_of = sys.modules[type(daemon).__module__].tables_of
    daemon.expect(mailbox.WorkerReady)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.77.1.1", 0))
        port = probe.getsockname()[1]
    daemon.send(mailbox.Configure("dpu-0", "127.77.1.1", 9000, port))
    daemon.apply(tables_of(0))
    daemon.expect(mailbox.TablesApplied)
    daemon.lease(60)
    theirs, tenant = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    endpoint_id = bytes(16)
    with theirs:
        daemon.send(mailbox.AttachEndpoint(endpoint_id), theirs.fileno())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as far:
        far.sendto(b"no PSP", ("127.77.1.1", port))
    tenant.send(struct.pack("<BBHHHH", 0, 0, 0, 0, 0, 0) + b"\x45not an IP packet")
    for _ in range(50):
        reasons = daemon.statistics().packets_by_reason
        if sum(reasons.values()) >= 2:
            break
    assert reasons == {"malformed": 1, "psp_malformed": 1}, "one frame from the tenant, one from the port"
    tenant.close()
    assert daemon.expect(mailbox.EndpointDown).endpoint_id == endpoint_id
