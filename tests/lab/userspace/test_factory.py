"""The factory of a lab without privilege: pairs for devices, taps for programs, an endpoint that answers."""

import array
import os
import socket
import subprocess
import sys
import time

import cbor2
import pytest

from ztdpu.errors import MachineError
from ztdpu.lab.attacks.tenant_packets import Order, make_datagrams
from ztdpu.lab.capture import Wanted
from ztdpu.lab.userspace.packets import echo_request, split
from ztdpu.lab.userspace.places import endpoint_tap, own_environment
from ztdpu.lab.userspace.tap import Kind, Tap

MARK = b"the mark here"


@pytest.fixture
def factory(plan):
    command = [sys.executable, "-m", "ztdpu.lab.userspace.factory", plan.state]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 10
        while not endpoint_tap(plan).exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield process
        process.kill()
        process.stderr.read()


def ask(plan, device, name, *, endpoint_id=None):
    """Return the factory's word and the device's end of the pair."""
    wanted = plan.endpoint(name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent:
        agent.settimeout(5)
        agent.connect(str(plan.paths.factory_socket(device)))
        agent.send(cbor2.dumps(["make", name, endpoint_id or bytes.fromhex(wanted.endpoint_id)]))
        answer, descriptors, _, _ = socket.recv_fds(agent, 4096, 4)
    word = cbor2.loads(answer)[0]
    if not descriptors:
        return word, None
    worker = socket.socket(fileno=array.array("i", descriptors)[0])
    worker.settimeout(5)
    return word, worker


def test_frames_pass_between_program_and_worker_and_are_counted(plan, factory):
    word, worker = ask(plan, "dpu-0", "blue-0")
    assert word == "made"
    with worker, Tap(endpoint_tap(plan), "blue-0") as program, Tap(endpoint_tap(plan), "red-0") as other:
        for tap in (program, other):
            tap.watch("ztdpu0", Wanted(marks=(("mark", MARK),)))
        order = Order(source="10.1.0.10", target="10.1.0.11", port=5005, attempts=3, mark=MARK)
        frames = make_datagrams(order)
        for frame in frames:
            program.send_packet(frame.packet)
        assert program.synchronize() == 3
        assert [worker.recv(70_000) for _ in frames] == [bytes(10) + frame.packet for frame in frames]
        worker.send(bytes(10) + frames[0].packet)
        deadline = time.monotonic() + 5
        while program.counts().marks["mark"] != [1, 3] and time.monotonic() < deadline:
            pass
        assert program.counts().marks["mark"] == [1, 3]
        assert other.counts().packets == 0, "who watches one endpoint sees no other's"


def test_the_endpoint_answers_a_ping(plan, factory):
    _, worker = ask(plan, "dpu-1", "blue-1")
    source, target = bytes((10, 1, 0, 10)), bytes((10, 1, 0, 11))
    with worker:
        worker.send(bytes(10) + echo_request(source, target, 1, b"hello"))
        said = worker.recv(70_000)
    assert said[:10] == bytes(10)
    assert split(said[10:])[:3] == (target, source, 1)


@pytest.mark.parametrize(("device", "name"), [("dpu-0", "blue-1"), ("dpu-1", "blue-0"), ("dpu-x", "blue-0")])
def test_an_endpoint_of_another_device_is_refused(plan, factory, device, name):
    assert ask(plan, device, name) == ("refused", None)


def test_a_wrong_id_is_refused(plan, factory):
    assert ask(plan, "dpu-0", "blue-0", endpoint_id=bytes(16)) == ("refused", None)
    assert ask(plan, "dpu-0", "blue-0")[0] == "made"


def test_a_new_pair_ends_the_old_one_and_without_a_worker_nothing_is_taken(plan, factory):
    _, first = ask(plan, "dpu-0", "blue-0")
    _, second = ask(plan, "dpu-0", "blue-0")
    with first, second, Tap(endpoint_tap(plan), "blue-0") as program:
        assert first.recv(100) == b""
        program.send_packet(b"\x45" + bytes(30))
        assert program.synchronize() == 1
        second.close()
        deadline = time.monotonic() + 5
        while program.synchronize() == 0 and time.monotonic() < deadline:
            program.send_packet(b"\x45" + bytes(30))
            if program.synchronize() == 0:
                return
    pytest.fail("frames go to a worker that is gone")


def test_all_virtual_functions_end_with_the_factory(plan, factory):
    _, worker = ask(plan, "dpu-0", "blue-0")
    with worker:
        factory.kill()
        assert worker.recv(100) == b""


def test_nonsense_at_a_tap_ends_that_program_alone(plan, factory):
    with Tap(endpoint_tap(plan), "blue-0") as program:
        with Tap(endpoint_tap(plan), "blue-0") as other, pytest.raises(MachineError):
            other.ask(Kind.HOLD, {})
        for noise in (b"\xff" * 100, b"\0\0\0\0", b"\0\0\0\1\x63"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
                raw.settimeout(5)
                raw.connect(str(endpoint_tap(plan)))
                raw.sendall(noise)
                assert raw.recv(10) == b""
        assert program.synchronize() == 0


def test_programs_find_their_tap_in_their_environment(plan, factory):
    """The real sender and the real capture, as `lab exec` starts them, at an endpoint in memory."""
    _, worker = ask(plan, "dpu-0", "blue-0")
    environment = own_environment(plan, "blue-0")
    capture = subprocess.Popen(
        [sys.executable, "-m", "ztdpu.lab.capture", "--interface", "ztdpu0", "--direction", "out", "--udp", "5003"],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert "capturing" in capture.stdout.readline()
    sender = [sys.executable, "-m", "ztdpu.lab.traffic", "send", "--host", "blue-1", "--port", "5003", "--count", "5"]
    ended = subprocess.run(sender, env=environment, capture_output=True, text=True, timeout=30, check=True)
    assert '"sent": 5' in ended.stdout
    with worker:
        source, target, protocol, _ = split(worker.recv(70_000)[10:])
    assert (source, target, protocol) == (bytes((10, 1, 0, 10)), bytes((10, 1, 0, 11)), 17)
    assert '"matched": 5' in capture.communicate(timeout=10)[0]
    refused = subprocess.run(
        [word.replace("blue-1", "red-1") for word in sender],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert "no endpoint 'red-1' for blue-0" in refused.stderr
    assert os.environ.get("ZTDPU_LAB_TAP") is None
