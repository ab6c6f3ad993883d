"""The virtual function factory: a real TUN for the right device, a refusal for everybody else."""

import array
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import time

import cbor2
import pytest

from ztdpu.lab.factory import CONNECTIONS_LIMIT
from ztdpu.lab.layout import DevicePlan, EndpointPlan, LabPlan
from ztdpu.lab.namespaces import netns
from ztdpu.lab.record import LabRecord

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
UID = 0x2100_0000
ENDPOINT_ID = bytes(range(16))
TUNGETIFF = 0x800454D2
SHARED, REFERENCE = b"\xd8\x1c", b"\xd8\x1d"
BILLION_LAUGHS = b"\x83\x64make\x8b" + b"".join(
    SHARED + b"\x8a" + 10 * (REFERENCE + bytes([level - 1]) if level else b"\0") for level in range(11)
) + b"\x40"  # fmt: skip
"""["make", lists of ten times the list before, b""]: printed it would have 10^11 elements."""


@pytest.fixture
def plan(tmp_path):
    device = DevicePlan(
        name="dpu-0", profile="bluefield-3", underlay_address="10.90.0.10", oob_address="10.91.0.10", uid_base=UID
    )
    endpoint = EndpointPlan(
        name="blue-0",
        tenant="blue",
        device="dpu-0",
        addresses=("10.1.0.10", "fd00:1::10"),
        mtu_octets=8940,
        endpoint_id=ENDPOINT_ID.hex(),
        uid_base=UID + 65_536,
    )
    plan = LabPlan(
        state=str(tmp_path),
        prefix=f"ztt{os.getpid()}",
        mtu_octets=9000,
        policy="",
        devices=(device,),
        endpoints=(endpoint,),
    )
    plan.paths.device("dpu-0").mkdir(parents=True)
    LabRecord(plan=plan).write()
    netns.prepare_names()
    netns.create(plan.namespace("blue-0"))
    yield plan
    netns.remove(plan.namespace("blue-0"))
    netns.release_names()


@pytest.fixture
def factory(plan):
    process = subprocess.Popen([sys.executable, "-m", "ztdpu.lab.factory", plan.state], stderr=subprocess.PIPE)
    path = plan.paths.factory_socket("dpu-0")
    deadline = time.monotonic() + 10
    while not is_listening(path):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield path
    process.kill()
    process.communicate()


def is_listening(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as handle:
        return handle.connect_ex(str(path)) == 0


def ask(path, message, *, uid=UID):
    """Ask as `uid`; returns the answer and the descriptors that came with it."""
    effective = os.geteuid()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as handle:
        handle.settimeout(5)
        os.setresuid(uid, uid, 0)
        try:
            handle.connect(f"/proc/self/fd/{ask.directory}/{path.name}")
        finally:
            os.setresuid(effective, effective, 0)
        handle.send(message)
        answer, ancillary, _, _ = handle.recvmsg(4096, socket.CMSG_SPACE(8))
    descriptors = array.array("i")
    for _, _, data in ancillary:
        descriptors.frombytes(data[: len(data) - len(data) % 4])
    return cbor2.loads(answer), list(descriptors)


@pytest.fixture(autouse=True)
def directory(plan):
    ask.directory = os.open(plan.paths.device("dpu-0"), os.O_PATH)
    yield
    os.close(ask.directory)


def show(plan, *words):
    command = ["ip", "-n", plan.namespace("blue-0"), "-j", "-d", *words]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_the_device_gets_a_configured_interface_that_ends_with_its_descriptor(plan, factory):
    answer, (descriptor,) = ask(factory, cbor2.dumps(["make", "blue-0", ENDPOINT_ID]))
    assert answer == ["made", ENDPOINT_ID, ""]
    (link,) = show(plan, "link", "show", "ztdpu0")
    assert (link["mtu"], link["gso_max_segs"], link["txqlen"]) == (8940, 128, 256)
    assert link["gso_max_size"] < 65_000
    assert "UP" in link["flags"]
    addresses = {a["local"] for a in show(plan, "addr", "show", "ztdpu0")[0]["addr_info"]}
    assert addresses == {"10.1.0.10", "fd00:1::10"}
    flags = struct.unpack_from("16sH", fcntl.ioctl(descriptor, TUNGETIFF, bytes(40)))[1]
    assert flags & 0x0001
    assert flags & 0x1000
    assert flags & 0x4000
    assert not flags & 0x0100, "one queue only"
    os.close(descriptor)
    assert [one["ifname"] for one in show(plan, "link", "show")] == ["lo"]


def test_a_second_request_replaces_the_first_interface(plan, factory):
    _, (first,) = ask(factory, cbor2.dumps(["make", "blue-0", ENDPOINT_ID]))
    _, (second,) = ask(factory, cbor2.dumps(["make", "blue-0", ENDPOINT_ID]))
    with pytest.raises(OSError):
        os.read(first, 100)
    assert fcntl.ioctl(second, TUNGETIFF, bytes(40))[:6] == b"ztdpu0"
    os.close(first)
    os.close(second)


@pytest.mark.parametrize(
    "request_",
    [
        cbor2.dumps(["make", "blue-1", ENDPOINT_ID]),
        cbor2.dumps(["make", "blue-0", bytes(16)]),
        cbor2.dumps(["delete", "blue-0", ENDPOINT_ID]),
        cbor2.dumps(["make", "blue-0", 5]),
        cbor2.dumps({"make": 1}),
        b"\xff\xff",
        cbor2.dumps(["make", ["blue-0"], ENDPOINT_ID]),
        BILLION_LAUGHS,
    ],
)
def test_what_is_not_in_the_plan_is_refused_and_the_factory_lives_on(factory, request_):
    answer, descriptors = ask(factory, request_)
    assert answer[0] == "refused"
    assert descriptors == []
    (answer, (descriptor,)) = ask(factory, cbor2.dumps(["make", "blue-0", ENDPOINT_ID]))
    assert answer[0] == "made"
    os.close(descriptor)


def test_another_uid_is_refused(plan, factory):
    factory.chmod(0o777)
    answer, descriptors = ask(factory, cbor2.dumps(["make", "blue-0", ENDPOINT_ID]), uid=UID + 65_536)
    assert answer == ["refused", b"", f"uid {UID + 65_536} is not of dpu-0"]
    assert descriptors == []


def knock(path):
    handle = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    os.setresuid(UID, UID, 0)
    try:
        handle.connect(f"/proc/self/fd/{ask.directory}/{path.name}")
    finally:
        os.setresuid(0, 0, 0)
    handle.settimeout(5)
    return handle


def send_for_ever(handle, *, limit_s):
    handle.setblocking(False)
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            handle.send(b"\xff")
        except BlockingIOError:
            time.sleep(0.01)


def test_whoever_does_not_take_its_answers_holds_up_nobody(factory):
    with knock(factory) as deaf:
        with pytest.raises(ConnectionError):  # hung up
            send_for_ever(deaf, limit_s=10)
        answer, (descriptor,) = ask(factory, cbor2.dumps(["make", "blue-0", ENDPOINT_ID]))
        assert answer[0] == "made"
        os.close(descriptor)


def test_a_device_has_few_connections_and_gets_new_ones_when_it_lets_go(factory):
    held = [knock(factory) for _ in range(CONNECTIONS_LIMIT)]
    for handle in held:
        handle.send(b"\xff")
        assert handle.recv(100)
    with knock(factory) as one_more:
        assert one_more.recv(100) == b"", "hung up"
    for handle in held:
        handle.close()
    deadline = time.monotonic() + 5
    while True:
        with knock(factory) as again:
            try:
                again.send(cbor2.dumps(["make", "blue-0", ENDPOINT_ID]))
                if again.recv(100):
                    break
            except ConnectionError:
                pass
        assert time.monotonic() < deadline
