"""SPDM over TCP: our two ends meet, scripted peers replay a recorded session at either, strangers get nothing."""

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509

from ztdpu.errors import SpdmError, UnreachableError, UsageError
from ztdpu.lab.root_of_trust import LonelyDevice
from ztdpu.lab.spdm_listener import CONNECTIONS_LIMIT, Listener
from ztdpu.rpc.spdm_tcp import SpdmPeer, collect_evidence, read_address
from ztdpu.trust.faults import Preset
from ztdpu.trust.inspection import inspect_device
from ztdpu.trust.profile import list_profiles, load_profile
from ztdpu.trust.spdm import authentication as auth
from ztdpu.trust.spdm.framing import CLIENT_HELLO, SERVER_HELLO, Command, Frame, FrameReader, wrap
from ztdpu.trust.spdm.requester import MeasurementSession
from ztdpu.trust.spdm.suite import suite_of
from ztdpu.trust.spdm.transcript import SigningContext, verify_transcript

VECTOR = Path(__file__).parents[3] / "shared" / "vectors" / "spdm" / "spdm12_p384_sha384.json"
RECORDED = dataclasses.replace(load_profile("bluefield-3"), spdm_version="1.2", measurement_hash="sha384")


@pytest.fixture(scope="module")
def pairs():
    if not VECTOR.is_file():
        pytest.skip(f"{VECTOR.name} is not here")
    transcript = json.loads(VECTOR.read_text())["transcript"]
    return [(bytes.fromhex(request), bytes.fromhex(answer)) for request, answer in transcript]


class Serving:
    """A listener in a thread of its own."""

    def __init__(self, root, **options):
        self.loop, self.ready = asyncio.new_event_loop(), threading.Event()
        self.listener = Listener(root, **options)
        self.thread = threading.Thread(target=self.run)

    def run(self):
        async def serve():
            self.address = await self.listener.start("127.0.0.1", 0)
            self.ready.set()
            with contextlib.suppress(asyncio.CancelledError):
                await self.listener.serve()

        self.task = self.loop.create_task(serve())
        self.loop.run_until_complete(self.task)
        self.loop.close()

    def __enter__(self):
        self.thread.start()
        assert self.ready.wait(10)
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.task.cancel)
        self.thread.join(10)
        assert not self.thread.is_alive()

    def connect(self):
        peer = socket.create_connection(self.address, timeout=10)
        peer.settimeout(10)
        return peer


def exchange(peer, frame):
    peer.sendall(frame.encode())
    reader, frames = FrameReader(), []
    while not frames:
        octets = peer.recv(4096)
        assert octets, "hung up"
        frames = reader.feed(octets)
    assert reader.is_empty
    return frames[0]


def probe(address, device, profile, **options):
    nonce = os.urandom(32)
    session = MeasurementSession(profile=profile, nonce=nonce, challenge_nonce=os.urandom(32))
    with SpdmPeer(*address, **options) as peer:
        evidence = collect_evidence(peer, session)
    root = x509.load_pem_x509_certificate(device.root_pem.encode())
    return inspect_device(evidence, profile=profile, roots=(root,), nonce=nonce, now=datetime.now(UTC))


@pytest.mark.parametrize("name", list_profiles())
def test_our_two_ends_meet(name):
    profile = load_profile(name)
    device = LonelyDevice(profile)
    with Serving(device.root) as serving:
        found = probe(serving.address, device, profile)
        assert found.findings == ()
        assert found.chain.boot.counter == 1
        device.root.set_preset(Preset.DEBUG_ENABLED)
        assert {one.code for one in probe(serving.address, device, profile).findings} == {"debug_enabled"}
        device.root.set_preset(Preset.UNSIGNED_LAST)
        with pytest.raises(SpdmError, match="not signed"):
            probe(serving.address, device, profile)
        device.root.set_preset(Preset.SILENT)
        with pytest.raises(UnreachableError, match="no answer in time"):
            probe(serving.address, device, profile, timeout_s=0.3)
        device.root.set_preset(Preset.NONE)
        assert probe(serving.address, device, profile).findings == ()


def test_a_recorded_requester_is_answered_by_our_responder(pairs):
    """Requests of another implementation, octet by octet; both signatures are verified over what was really sent."""
    device, suite = LonelyDevice(RECORDED), suite_of(RECORDED)
    transcript = []
    with Serving(device.root) as serving, serving.connect() as peer:
        assert exchange(peer, Frame(Command.HELLO, CLIENT_HELLO)) == Frame(Command.HELLO, SERVER_HELLO)
        for request, recorded in pairs:
            answer = exchange(peer, wrap(request)).message
            assert answer[:2] == recorded[:2], request.hex()
            transcript.append((request, answer))
        assert exchange(peer, Frame(Command.STOP)) == Frame(Command.STOP)
        assert peer.recv(1) == b""
    key = device.root.root.alias_public_key
    flat = [octets for pair in transcript for octets in pair]
    read = [pair for pair in transcript if pair[0][1] == 0x83]
    m1 = b"".join([*flat[: flat.index(read[0][1])], auth.slice_unsigned(read[0][1], suite)])
    verify_transcript(key, SigningContext.CHALLENGE_AUTH, m1, read[0][1][-96:], suite)
    request, answer = transcript[-1]
    l1 = b"".join([*flat[:6], request, auth.slice_unsigned(answer, suite)])
    verify_transcript(key, SigningContext.MEASUREMENTS, l1, answer[-96:], suite)


def test_a_recorded_responder_is_accepted_by_our_requester(pairs):
    """A scripted peer that answers only requests that are octet for octet the recorded ones."""
    server = socket.create_server(("127.0.0.1", 0))
    wrong = []

    def play():
        peer, _ = server.accept()
        with peer:
            reader, script = FrameReader(), list(pairs)
            while octets := peer.recv(4096):
                for frame in reader.feed(octets):
                    if frame.command is Command.NORMAL:
                        request, answer = script.pop(0)
                        if frame.message != request:
                            wrong.append((frame.message, request))
                        peer.sendall(wrap(answer).encode())
                    else:
                        payload = SERVER_HELLO if frame.command is Command.HELLO else b""
                        peer.sendall(Frame(frame.command, payload).encode())

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    session = MeasurementSession(profile=RECORDED, nonce=pairs[7][0][4:36], challenge_nonce=pairs[6][0][4:36])
    with server, SpdmPeer(*server.getsockname()) as peer:
        evidence = collect_evidence(peer, session)
    thread.join(10)
    assert not wrong
    assert [block.index for block in evidence.blocks] == [1, 2, 3, 4, 16, 17, 253, 254]


@pytest.mark.parametrize(
    "octets",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
        pytest.param(Frame(Command.HELLO, b"Hello?").encode(), id="another hello"),
        pytest.param((1).to_bytes(4, "big") * 2 + b"\xff" * 4, id="a frame of 4 GiB"),
        pytest.param(Frame(Command.NORMAL, b"\x06secured").encode(), id="no SPDM"),
        pytest.param(b"\0", id="one octet, then silence"),
    ],
)
def test_strangers_lose_their_connection_and_nobody_else(octets):
    device = LonelyDevice(load_profile("generic"))
    with Serving(device.root, idle_limit_s=0.5) as serving, serving.connect() as stranger:
        stranger.sendall(octets)
        assert stranger.recv(1) == b""
        assert probe(serving.address, device, load_profile("generic")).findings == ()


def test_too_many_connections_are_closed_at_once():
    device = LonelyDevice(load_profile("generic"))
    with Serving(device.root) as serving, contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS_LIMIT):
            peer = stack.enter_context(serving.connect())
            assert exchange(peer, Frame(Command.HELLO, CLIENT_HELLO)).command is Command.HELLO
        surplus = stack.enter_context(serving.connect())
        assert surplus.recv(1) == b""


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:1", ("127.0.0.1", 1)),
        ("[::1]:99", ("::1", 99)),
        ("127.0.0.1", ("127.0.0.1", 2323)),
        ("::1", ("::1", 2323)),
    ],
)
def test_addresses(text, address):
    assert read_address(text, loopback_only=True) == address


@pytest.mark.parametrize(
    "text", ["", "localhost:1", "127.0.0.1:x", "127.0.0.1:70000", "0.0.0.0:2323", "192.0.2.1:2323", "[::]:1"]
)
def test_addresses_that_are_none_or_not_loopback(text):
    with pytest.raises(UsageError):
        read_address(text, loopback_only=True)


def test_beyond_loopback_on_request():
    assert read_address("0.0.0.0:2323", loopback_only=False) == ("0.0.0.0", 2323)


def ztdpu(*words, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "ztdpu", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def test_the_command_line_probes_what_the_command_line_serves(tmp_path):
    serving = ztdpu(
        "lab", "root-of-trust", "--listen", "127.0.0.1:0", "--profile", "generic", "--root", str(tmp_path / "r")
    )
    try:
        place = re.match(r"listening (127\.0\.0\.1:\d+)\n", serving.stdout.readline())[1]
        assert serving.stdout.readline() == f"root {tmp_path / 'r'}\n"
        common = ("attestation", "probe", "--spdm-tcp", place, "--root", str(tmp_path / "r"))
        good, bad = ztdpu(*common, "--profile", "generic", "-o", "json"), ztdpu(*common)
        out, err = good.communicate(timeout=30)
        assert good.returncode == 0, err
        document = json.loads(out)
        assert (document["verdict"], document["spdm"]["version"]) == ("verified", "1.2")
        assert [level["role"] for level in document["chain"]] == ["root", "provisioner", "device-id", "alias"]
        assert len(document["chain"][-1]["fwid"]) == 64
        assert [one["index"] for one in document["measurements"]] == [1, 2, 3, 4, 5, 254]
        _, err = bad.communicate(timeout=30)
        assert bad.returncode == 1
        assert "does not speak SPDM 1.1" in err
        assert "Traceback" not in err
        (tmp_path / "other").write_text(LonelyDevice(load_profile("generic")).root_pem)
        stranger = ztdpu(*common[:-1], str(tmp_path / "other"), "--profile", "generic")
        _, err = stranger.communicate(timeout=30)
        assert (stranger.returncode, "Traceback" in err) == (1, False)
        assert "--root of this command" in err
    finally:
        serving.send_signal(signal.SIGINT)
        serving.communicate(timeout=10)
    assert serving.returncode == 0
