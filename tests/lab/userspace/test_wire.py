"""The wire with real sockets: what passes, as whom, what is counted, held, put, lost."""

import json
import socket
import threading
import time
from contextlib import suppress

import pytest

from ztdpu.errors import MachineError
from ztdpu.lab.capture import Wanted
from ztdpu.lab.layout import ENROLMENT_PORT, port_name
from ztdpu.lab.userspace.ground import PSP_PORT
from ztdpu.lab.userspace.places import wire_tap
from ztdpu.lab.userspace.settle import ground_of
from ztdpu.lab.userspace.tap import Kind, Tap
from ztdpu.lab.userspace.wire import Wire

FLOOD = 20_000
SEALED = bytes((4, 1, 0, 5)) + bytes(12 + 16)


@pytest.fixture
def pause():
    """Who holds it stops the wire."""
    return threading.Lock()


@pytest.fixture
def wire(plan, pause):
    """A wire that serves in a thread."""
    wire = Wire(plan)
    wire.open_enrolment(ground_of(plan).control)
    end = threading.Event()

    def serve():
        while not end.is_set():
            with pause:
                wire.serve_once(0.01)
            time.sleep(0)  # let who waits for the lock have it

    thread = threading.Thread(target=serve)
    thread.start()
    yield wire
    end.set()
    thread.join()
    wire.close()


@pytest.fixture
def devices(plan):
    """A socket where the worker of each device would be."""
    opened = []
    for device in plan.devices:
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.bind((device.oob_address, PSP_PORT))
        one.settimeout(5)
        opened.append(one)
    yield opened
    for one in opened:
        one.close()


@pytest.fixture
def fabric(plan, wire):
    with Tap(wire_tap(plan), "fabric") as tap:
        yield tap


def face(plan, index):
    return plan.devices[index].underlay_address, PSP_PORT


def hears_nothing(device):
    device.settimeout(0.1)
    with pytest.raises(TimeoutError):
        device.recv(100)
    device.settimeout(5)


def test_a_datagram_comes_from_the_face_of_its_sender(plan, devices, fabric):
    canary = b"in clear"
    fabric.watch("br0", Wanted(canary=canary, keep_octets=28 + len(SEALED)))
    devices[0].sendto(SEALED, face(plan, 1))
    assert devices[1].recvfrom(1000) == (SEALED, face(plan, 0))
    devices[1].sendto(SEALED + canary, face(plan, 0))
    assert devices[0].recvfrom(1000) == (SEALED + canary, face(plan, 1))
    devices[1].sendto(canary, face(plan, 0))
    devices[0].recv(1000)
    counts = fabric.counts()
    assert (counts.psp_packets, counts.clear_packets, counts.canary_hits, counts.psp_sent_here) == (2, 1, 2, 0)
    kept = bytes.fromhex(counts.kept)
    assert kept[28:] == SEALED
    assert kept[12:20] == b"".join(socket.inet_aton(face(plan, number)[0]) for number in (0, 1))


def test_a_stranger_is_seen_and_leads_nowhere(plan, devices, fabric):
    fabric.watch("br0", Wanted())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(SEALED, face(plan, 1))
    devices[0].sendto(SEALED + b"twin", face(plan, 1))
    assert devices[1].recv(1000) == SEALED + b"twin"
    assert fabric.counts().psp_packets == 2


def test_what_is_held_does_not_go_on_until_it_is_put(plan, devices, fabric):
    name = port_name(0, plan.devices[0].name)
    fabric.watch("br0", Wanted())
    wanted = [SEALED + bytes((number,)) * 20 for number in range(3)]
    fabric.ask(Kind.HOLD, {"port": name, "octets": 28 + len(wanted[0]), "count": 3})
    devices[0].sendto(SEALED, face(plan, 1))
    for payload in wanted:
        devices[0].sendto(payload, face(plan, 1))
    frames = [fabric.receive()[1] for _ in wanted]
    assert fabric.read_answer() == {"held": 3}
    assert [frame[28:] for frame in frames] == wanted
    hears_nothing(devices[1])
    devices[1].sendto(SEALED, face(plan, 0))
    assert devices[0].recv(1000) == SEALED, "only one sender's way is closed"
    fabric.ask(Kind.RELEASE)
    for frame in frames:
        assert fabric.ask(Kind.PUT, frame) == {"taken": 1}
        assert devices[1].recvfrom(1000) == (frame[28:], face(plan, 0))
    counts = fabric.counts()
    assert (counts.psp_sent_here, counts.psp_packets) == (3, 4)
    assert fabric.ask(Kind.PUT, b"no packet") == {"taken": 0}


def test_who_goes_lets_go(plan, devices, fabric):
    with Tap(wire_tap(plan), "fabric") as other:
        other.ask(Kind.HOLD, {"port": port_name(0, plan.devices[0].name), "octets": 1000, "count": 1})
        devices[0].sendto(SEALED, face(plan, 1))
        hears_nothing(devices[1])
    for _ in range(50):
        devices[0].sendto(SEALED, face(plan, 1))
        devices[1].settimeout(0.1)
        with suppress(TimeoutError):
            came = devices[1].recv(1000)
            break
    assert came == SEALED, "the way is open again"


def test_nonsense_ends_the_program_that_said_it_and_nobody_else(plan, fabric):
    fabric.watch("br0", Wanted())
    with Tap(wire_tap(plan), "fabric") as other, pytest.raises(MachineError):
        other.ask(Kind.HOLD, {"port": "nobody"})
    with Tap(wire_tap(plan), "fabric") as other, pytest.raises(MachineError):
        other.ask(Kind.FRAME, b"an endpoint's, not the wire's")
    assert fabric.counts().packets == 0


def test_what_the_kernel_dropped_is_said(plan, devices, fabric, pause):
    fabric.watch("br0", Wanted())
    with pause:
        for _ in range(FLOOD):
            devices[0].sendto(bytes(1400), face(plan, 1))
    for _ in range(1_000):  # the kernel says it with the next one that it does not drop
        devices[0].sendto(SEALED, face(plan, 1))
        counts = fabric.counts()
        if counts.lost:
            break
    assert counts.lost > 0
    assert counts.packets + counts.lost >= FLOOD


def test_enrolment_reaches_control_as_the_device_and_is_counted(plan, wire):
    device = plan.devices[2]
    with (
        socket.create_server((ground_of(plan).control, ENROLMENT_PORT)) as control,
        Tap(wire_tap(plan), device.name) as tap,
        Tap(wire_tap(plan), plan.devices[0].name) as other,
    ):
        for watching in (tap, other):
            watching.watch("oob0", Wanted(protocol=6, port=ENROLMENT_PORT, direction="out"))
        with socket.create_connection((device.underlay_address, ENROLMENT_PORT), timeout=5) as agent:
            led, (host, _) = control.accept()
            assert host == device.oob_address
            agent.sendall(b"hello")
            assert led.recv(100) == b"hello"
            led.sendall(b"welcome")
            led.close()
            assert agent.recv(100) == b"welcome"
            assert agent.recv(100) == b"", "the end comes through, too"
        assert (tap.counts().matched, other.counts().matched) == (1, 0)


def test_the_tap_is_nobody_elses(plan, wire):
    assert wire_tap(plan).stat().st_mode & 0o777 == 0o600
    assert json.loads(plan.paths.record.read_text())["fabric"] == "userspace"
