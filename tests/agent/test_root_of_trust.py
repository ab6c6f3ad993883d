"""The root of trust as a real process behind real sockets."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from ztdpu.agent.root_of_trust import CONNECTIONS_LIMIT, FAULT_SET, close_door, open_door, read_secrets, write_secrets
from ztdpu.errors import ConfigurationError, SpdmError, StateError
from ztdpu.trust import dice, extensions
from ztdpu.trust.binding import BindRequest, open_envelope
from ztdpu.trust.manufacture import create_manufacturer, encode_secrets
from ztdpu.trust.profile import load_profile
from ztdpu.trust.root import DOOR_LIMIT_OCTETS, decode_bind_answer, encode_bind_request
from ztdpu.trust.spdm.evidence import Evidence
from ztdpu.trust.spdm.requester import MeasurementSession

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
DEADLINE_S = 30.0
PROFILE = load_profile("bluefield-3")
MANUFACTURER = create_manufacturer(profile=PROFILE, random=lambda octets: b"\x31" * octets, now=NOW)
SECRETS = MANUFACTURER.make_device(serial="EMU0001", uds=b"\x5a" * 32, now=NOW)
REQUEST = BindRequest(
    trust_domain="ztdpu.lab",
    nonce=b"\x55" * 32,
    tls_spki_sha256=b"\x77" * 32,
    offer_spki=dice.encode_spki(dice.derive_ec_key(b"\3" * 32, ec.SECP256R1()).public_key()),
    ttl_s=600,
    agent_digest=b"\x88" * 32,
)


@dataclass(kw_only=True)
class Running:
    """One process of ours and the folder that it works in."""

    folder: Path
    process: subprocess.Popen[str] = field(init=False)
    lifeline: int = field(init=False)
    """Closing it ends the process."""

    def start(self, *options: str) -> None:
        parent, self.lifeline = os.pipe()
        ready, theirs = os.pipe()
        self.process = subprocess.Popen(
            [*command(self.folder), "--parent-fd", str(parent), "--ready-fd", str(theirs), *options],
            pass_fds=(parent, theirs),
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(parent)
        os.close(theirs)
        with os.fdopen(ready, "rb") as pipe:
            assert pipe.read() == b"\n", self.process.stderr.read()

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.lifeline)
        self.process.wait(DEADLINE_S)
        self.process.stderr.close()

    def connect(self, door: str) -> socket.socket:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        peer.connect(str(self.folder / door))  # blocking: waits for room in the backlog
        peer.settimeout(DEADLINE_S)
        return peer

    def attest(self) -> Evidence:
        session = MeasurementSession(profile=PROFILE, nonce=b"\xaa" * 32)
        with self.connect("spdm.sock") as peer:
            while (request := session.next_request()) is not None:
                peer.send(request)
                session.receive(peer.recv(DOOR_LIMIT_OCTETS))
        return session.evidence()

    def bind(self, request: bytes) -> bytes:
        with self.connect("binding.sock") as peer:
            peer.send(request)
            return decode_bind_answer(peer.recv(DOOR_LIMIT_OCTETS))


def command(folder: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "ztdpu.agent.root_of_trust", "--profile", "bluefield-3"),
        *("--secrets", str(folder / "secrets.json"), "--spdm-socket", str(folder / "spdm.sock")),
        *("--binding-socket", str(folder / "binding.sock")),
    ]


@pytest.fixture
def stopped(tmp_path):
    """A device that is not started."""
    write_secrets(tmp_path / "secrets.json", SECRETS)
    return Running(folder=tmp_path)


@pytest.fixture
def running(stopped):
    stopped.start()
    yield stopped
    stopped.stop()


def leaf_of(evidence: Evidence) -> x509.Certificate:
    return x509.load_der_x509_certificate(evidence.certificates[-1])


def boot_of(evidence: Evidence) -> extensions.Boot:
    value = leaf_of(evidence).extensions.get_extension_for_oid(extensions.BOOT_OID).value
    return extensions.decode_boot(value.value)


def test_both_doors_of_one_boot_speak_for_one_alias(running):
    evidence = running.attest()
    binding = open_envelope(running.bind(encode_bind_request(REQUEST)), leaf_of(evidence).public_key())
    assert binding.tls_spki_sha256 == REQUEST.tls_spki_sha256
    assert extensions.Boot(counter=binding.boot_counter, nonce=binding.boot_nonce) == boot_of(evidence)
    assert binding.boot_counter == 1


def test_doors_and_secrets_are_the_owners_alone(running):
    for name in ("secrets.json", "spdm.sock", "binding.sock"):
        assert (running.folder / name).stat().st_mode & 0o777 == 0o600


def test_every_start_is_a_newer_boot_that_was_written_back_first(stopped):
    aliases, roots = set(), set()
    for counter in (1, 2, 3):
        stopped.start()
        assert read_secrets(stopped.folder / "secrets.json").boot_counter == counter
        evidence = stopped.attest()
        stopped.stop()
        assert boot_of(evidence).counter == counter
        aliases.add(evidence.certificates[-1])
        roots.add(evidence.certificates[:4])
    assert (len(aliases), len(roots)) == (3, 1)
    assert list(stopped.folder.iterdir()) == [stopped.folder / "secrets.json"]


def test_a_boot_that_dies_before_it_answers_uses_up_its_counter(stopped):
    blocked = subprocess.run(
        [*command(stopped.folder), "--spdm-socket", str(stopped.folder / "missing" / "spdm.sock")],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert blocked.returncode == 2
    stopped.start()
    assert boot_of(stopped.attest()).counter == 2
    stopped.stop()


def test_it_ends_when_its_parent_is_gone(running):
    os.close(running.lifeline)
    assert running.process.wait(DEADLINE_S) == 0
    assert not (running.folder / "spdm.sock").exists()


def test_altered_firmware_is_measured_as_altered(stopped):
    stopped.start()
    good = {block.index: block.value for block in stopped.attest().blocks}
    stopped.stop()
    stopped.start("--fault", "firmware-altered")
    bad = {block.index: block.value for block in stopped.attest().blocks}
    stopped.stop()
    assert [index for index in good if good[index] != bad[index]] == [3]


def test_binding_door_is_closed_to_other_users(stopped):
    stopped.start("--agent-uid", str(os.geteuid() + 1))
    with stopped.connect("binding.sock") as peer:
        with contextlib.suppress(BrokenPipeError):
            peer.send(encode_bind_request(REQUEST))
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(DOOR_LIMIT_OCTETS) == b""
    assert stopped.attest().blocks
    stopped.stop()
    stopped.start("--agent-uid", str(os.geteuid()))
    assert stopped.bind(encode_bind_request(REQUEST))
    stopped.stop()


def test_what_does_not_fit_is_refused_and_the_door_stays_open(running):
    for message in (b"\0", b"\x80", encode_bind_request(REQUEST)[:-1], bytes(DOOR_LIMIT_OCTETS)):
        with pytest.raises(StateError):
            running.bind(message)
    assert running.bind(encode_bind_request(REQUEST))


def test_spdm_door_never_binds(running):
    with running.connect("spdm.sock") as peer:
        peer.send(encode_bind_request(REQUEST))
        assert peer.recv(DOOR_LIMIT_OCTETS)[:2] == b"\x10\x7f"


@pytest.mark.parametrize("door", ["spdm.sock", "binding.sock"])
def test_a_message_that_is_too_long_ends_its_connection_alone(running, door):
    with running.connect(door) as other, running.connect(door) as peer:
        peer.send(bytes(DOOR_LIMIT_OCTETS + 1))
        assert peer.recv(DOOR_LIMIT_OCTETS) == b""
        other.send(b"\x10\x84\0\0")
        assert other.recv(DOOR_LIMIT_OCTETS)


@pytest.mark.parametrize("door", ["spdm.sock", "binding.sock"])
def test_connections_beyond_the_limit_are_closed_and_room_comes_back(running, door):
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(running.connect(door)) for _ in range(CONNECTIONS_LIMIT)]
        for peer in peers:
            peer.send(b"\x10\x84\0\0")
            assert peer.recv(DOOR_LIMIT_OCTETS)
        with running.connect(door) as further:
            assert further.recv(DOOR_LIMIT_OCTETS) == b""
    deadline = time.monotonic() + DEADLINE_S
    while True:  # the process may see the next connection before it sees that the old ones are gone
        with running.connect(door) as peer, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            peer.send(b"\x10\x84\0\0")
            if peer.recv(DOOR_LIMIT_OCTETS):
                break
        assert time.monotonic() < deadline


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_silent_strangers_at_the_spdm_door_keep_no_agent_out(running):
    running.folder.chmod(0o711)
    (running.folder / "spdm.sock").chmod(0o666)
    directory = os.open(running.folder, os.O_PATH)
    with contextlib.ExitStack() as stack:
        os.seteuid(os.geteuid() + 4711)
        try:
            for _ in range(CONNECTIONS_LIMIT + 1):
                stranger = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                stranger.connect(f"/proc/self/fd/{directory}/spdm.sock")
                stranger.settimeout(DEADLINE_S)
        finally:
            os.seteuid(0)
            os.close(directory)
        assert stranger.recv(DOOR_LIMIT_OCTETS) == b"", "their own limit holds"
        agent = stack.enter_context(running.connect("spdm.sock"))
        agent.send(b"\x12\xe0\0\0")
        assert agent.recv(DOOR_LIMIT_OCTETS)


def test_a_peer_that_takes_no_answers_does_not_stop_the_others(running):
    with running.connect("spdm.sock") as peer:
        peer.setblocking(False)
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            for _ in range(20_000):
                peer.send(b"\x10\x84\0\0")
        assert running.attest().blocks


def spoil(folder: Path, *, text: str | None = None, mode: int = 0o600) -> None:
    path = folder / "secrets.json"
    if text is not None:
        path.write_text(text)
    path.chmod(mode)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param(lambda folder: (folder / "secrets.json").unlink(), "cannot be read", id="missing"),
        pytest.param(lambda folder: spoil(folder, mode=0o644), "read by others", id="readable by others"),
        pytest.param(lambda folder: spoil(folder, text="{"), "malformed", id="cut short"),
        pytest.param(
            lambda folder: spoil(folder, text=json.dumps({**json.loads(encode_secrets(SECRETS)), "profile": "x"})),
            "not of profile",
            id="another product",
        ),
    ],
)
def test_bad_secrets_are_refused_with_what_to_do(stopped, change, says):
    change(stopped.folder)
    ended = subprocess.run(command(stopped.folder), capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert ended.returncode == 2
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr
    assert SECRETS.uds.hex() not in ended.stderr


def test_unknown_profile_is_refused(stopped):
    ended = subprocess.run(
        [*command(stopped.folder), "--profile", "abacus"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 2
    assert "abacus" in ended.stderr
    assert read_secrets(stopped.folder / "secrets.json").boot_counter == 0


def test_a_write_that_fails_leaves_the_old_secrets(tmp_path):
    path = tmp_path / "secrets.json"
    write_secrets(path, SECRETS)
    (tmp_path / ".secrets.json.new").write_text("left by a crash")
    write_secrets(path, SECRETS)
    (tmp_path / ".secrets.json.new").mkdir()
    with pytest.raises(ConfigurationError):
        write_secrets(path, SECRETS)
    assert read_secrets(path) == SECRETS


def test_a_door_is_taken_away_by_the_one_who_opened_it_alone(tmp_path):
    path = tmp_path / "door.sock"
    with open_door(path):
        inode = path.stat().st_ino
        close_door(path, inode + 1)
        assert path.exists()
        close_door(path, inode)
        assert not path.exists()


def test_it_loads_nothing_that_it_does_not_need():
    names = ["asyncio", "grpc", "google", "pydantic", "sqlalchemy", "joserfc", "numpy", "structlog", "typer"]
    code = f"import sys, ztdpu.agent.root_of_trust; print([n for n in {names} if n in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert ended.stdout.strip() == "[]"


def say(running, word: bytes) -> bytes:
    with running.connect("fault.sock") as peer:
        peer.send(word)
        return peer.recv(DOOR_LIMIT_OCTETS)


def test_there_is_no_fault_door_unless_asked_for(running):
    assert not (running.folder / "fault.sock").exists()
    assert running.attest().blocks


def test_a_device_misbehaves_and_heals_at_its_fault_door(stopped):
    door = stopped.folder / "fault.sock"
    stopped.start("--fault-socket", str(door))
    try:
        assert door.stat().st_mode & 0o777 == 0o600
        assert boot_of(stopped.attest()).counter == 1
        assert say(stopped, b"lazy") == b"no such preset"
        assert say(stopped, b"\xff\xfe") == b"no such preset"
        assert say(stopped, b"unsigned-last") == FAULT_SET
        with pytest.raises(SpdmError, match="not signed"):
            stopped.attest()
        assert say(stopped, b"silent") == FAULT_SET
        with stopped.connect("spdm.sock") as peer:
            peer.send(b"\x10\x84\0\0")
            peer.settimeout(0.2)
            with pytest.raises(TimeoutError):
                peer.recv(DOOR_LIMIT_OCTETS)
        assert say(stopped, b"firmware-altered") == FAULT_SET
        assert boot_of(stopped.attest()).counter == 2
        assert read_secrets(stopped.folder / "secrets.json").boot_counter == 2
        assert say(stopped, b"none") == FAULT_SET
        assert boot_of(stopped.attest()).counter == 3
        (stopped.folder / "secrets.json").unlink()
        assert b"cannot be read" in say(stopped, b"debug-enabled")
        assert boot_of(stopped.attest()).counter == 3
    finally:
        stopped.stop()
    assert not door.exists()
