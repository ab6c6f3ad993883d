"""`ztdpu device` and its neighbours against a real control: what is printed, and how a command ends."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ztdpu.trust.manufacture import create_manufacturer
from ztdpu.trust.profile import load_profile
from ztdpu.trust.roster import Roster, RosterDevice, RosterNetwork, encode_roster, sign_roster

ROOT = Path(__file__).parents[2]
Run = Callable[..., subprocess.CompletedProcess[str]]

CONFIGURATION = """\
apiVersion: ztdpu.dev/v1
kind: ControlConfiguration
spec:
  trustDomain: test.example
  stateDir: {folder}/state
  policyDir: {folder}/policy
  rosterFile: {folder}/roster.cbor
  rosterSignatureFile: {folder}/roster.sig
  rosterKeysFile: {folder}/operators
  manufacturerRootsFile: {folder}/roots.pem
  listen: {{enrolment: "127.0.0.1:0", main: "127.0.0.1:0"}}
  adminSocket: {folder}/admin/admin.sock
"""


def ztdpu(*arguments: str, server: str = "", **keywords: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ZTDPU_SERVER": server, "NO_COLOR": "1", "COLUMNS": "200"}
    command = [sys.executable, "-c", "from ztdpu.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=30, check=False, **keywords)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("control")
    manufacturer = create_manufacturer(
        profile=load_profile("bluefield-3"), random=secrets.token_bytes, now=datetime.now(UTC) - timedelta(hours=1)
    )
    key = Ed25519PrivateKey.generate()
    tenants = ("blue", "green", "red")
    blob = encode_roster(
        Roster(
            serial=1,
            trust_domain="test.example",
            devices=tuple(
                RosterDevice(name=name, device_id_sha256=secrets.token_bytes(32), tenants=tenants)
                for name in ("dpu-0", "dpu-1")
            ),
            networks=tuple(
                RosterNetwork(tenant=name, network_id=secrets.token_bytes(16), generation=1, members=members)
                for name, members in (("blue", ()), ("green", ()), ("red", ()), ("blue-green", ("blue", "green")))
            ),
        )
    )
    (folder / "roster.cbor").write_bytes(blob)
    (folder / "roster.sig").write_text(sign_roster(blob, key))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    (folder / "operators").write_text(public + "\n")
    (folder / "roots.pem").write_text(manufacturer.root_pem())
    shutil.copytree(ROOT / "policies", folder / "policy")
    (folder / "control.yaml").write_text(CONFIGURATION.format(folder=folder))
    return folder


def start_control(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    command = [sys.executable, "-c", "from ztdpu.cli import main; main()"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, "control", "run", "--config", str(folder / "control.yaml")], stderr=log)
    socket = str(folder / "admin" / "admin.sock")
    deadline = time.monotonic() + 20
    while ztdpu("control", "healthcheck", server=socket).returncode:
        assert process.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < deadline
    return process, socket


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    process, socket = start_control(folder)
    yield socket
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0
    assert "Traceback" not in (folder / "log").read_text()


@pytest.fixture
def run(server: str) -> Run:
    return lambda *arguments, **keywords: ztdpu(*arguments, server=server, **keywords)


def test_list_has_its_columns(run: Run) -> None:
    answer = run("device", "list")
    assert answer.returncode == 0, answer.stderr
    head, *rows = answer.stdout.splitlines()
    assert head.split() == ["NAME", "READY", "STATE", "TIER", "LEASE", "POLICY", "KEY", "EPOCH", "AGE"]
    assert [row.split()[:3] for row in rows] == [["dpu-0", "no", "pending"], ["dpu-1", "no", "pending"]]


@pytest.mark.parametrize("noun", ["device", "tenant", "endpoint", "key", "audit"])
def test_lists_are_json_on_demand(noun: str, run: Run) -> None:
    answer = run(noun, "list", "-o", "json")
    assert answer.returncode == 0, answer.stderr
    assert isinstance(json.loads(answer.stdout), list)


def test_show_is_a_tree_and_json(run: Run) -> None:
    sheet = run("device", "show", "dpu-0").stdout
    assert "not pinned yet" in sheet
    assert "├─ NO  enrolled " in sheet
    assert "waits for a join token" in sheet
    assert "└─ NO  ready" in sheet
    document = json.loads(run("device", "show", "dpu-0", "-o", "json").stdout)
    assert (document["name"], document["findings"]) == ("dpu-0", [])
    assert {one["name"] for one in document["conditions"]} >= {"attested", "leased", "ready"}
    assert "blue-0" in run("tenant", "show", "blue").stdout
    assert "10.1.0.10" in run("endpoint", "show", "blue-0").stdout


def test_status_is_one_screen(run: Run) -> None:
    answer = run("status")
    assert "0 of 2 ready" in answer.stdout
    assert json.loads(run("status", "-o", "json").stdout)["devices"] == 2


def test_unknown_name_is_an_error_with_a_remedy(run: Run) -> None:
    for noun, name in (("device", "dpu-9"), ("tenant", "pink"), ("endpoint", "blue-9"), ("audit", "99999")):
        answer = run(noun, "show", name)
        assert answer.returncode == 2
        assert answer.stderr.startswith("error: no ")
        assert name in answer.stderr
        assert "\n  next: " in answer.stderr
        assert "Traceback" not in answer.stderr
        assert not answer.stdout


def test_attestation_of_a_device_that_never_attested(run: Run) -> None:
    answer = run("attestation", "show", "dpu-0")
    assert answer.returncode == 1
    assert "never appraised" in answer.stderr


def test_token_goes_to_stdout_alone(run: Run) -> None:
    answer = run("device", "token", "dpu-0")
    assert len(answer.stdout.split()) == 1
    assert "dpu-0" in answer.stderr


def test_dry_run_shows_the_blast_radius(run: Run) -> None:
    answer = run("device", "revoke", "dpu-1", "--reason", "x", "--dry-run")
    assert answer.returncode == 0
    assert "blue-1" in answer.stderr
    assert "dpu-0" in answer.stderr
    assert run("device", "list", "-o", "json").stdout.count('"revoked"') == 0


def test_revoke_asks_and_restore_leads_back(run: Run) -> None:
    refused = run("device", "revoke", "dpu-1", "--reason", "x", input="n\n")
    assert refused.returncode == 1
    assert "nothing was changed" in refused.stderr
    unanswered = run("device", "revoke", "dpu-1", "--reason", "x", input="")
    assert unanswered.returncode == 1
    assert "nothing was changed" in unanswered.stderr
    assert "--yes" in unanswered.stderr
    unreasoned = run("device", "revoke", "dpu-1", "--reason", " ", input="y\n")
    assert unreasoned.returncode == 2
    assert "cuts off" not in unreasoned.stderr, "refused before anything is asked"
    assert run("device", "list", "-o", "json").stdout.count('"revoked"') == 0
    done = run("device", "revoke", "dpu-1", "--reason", "lost", "--yes", "-o", "json")
    assert json.loads(done.stdout)["device"]["state"] == "revoked"
    again = run("device", "revoke", "dpu-1", "--reason", "lost", "--yes")
    assert again.returncode == 1
    assert "restore" in again.stderr
    assert run("device", "restore", "dpu-1", "--reason", "found").returncode == 0
    assert "lost" in run("audit", "list").stdout


def test_rotation_wants_one_subject(run: Run) -> None:
    assert run("key", "rotate").returncode == 2
    assert "epoch" in run("key", "rotate", "--tenant", "blue").stdout


def test_nobody_there_is_exit_status_3(tmp_path: Path) -> None:
    answer = ztdpu("device", "list", server=str(tmp_path / "nothing.sock"))
    assert answer.returncode == 3
    assert "next:" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_socket_of_others_is_told_from_none(server: str) -> None:
    folder = Path(server).parent
    if os.geteuid() != 0 or not os.access(folder, os.R_OK):
        pytest.skip("needs root, to be somebody else")
    # Everything is imported while still root: the checkout may lie where nobody else can read it.
    code = (
        "import contextlib, os; from ztdpu.cli import main; import ztdpu.rpc.client\n"
        f"os.environ['ZTDPU_SERVER'] = {server!r}\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(open(os.devnull, 'w')): main()\n"
        "os.setuid(65534); main()"
    )
    command = [sys.executable, "-c", code]
    answer = subprocess.run([*command, "device", "list"], capture_output=True, text=True, timeout=30, check=False)
    assert answer.returncode == 1, answer.stderr
    assert "may not use" in answer.stderr
    assert "needs root" in answer.stderr


def test_state_of_the_lab_names_the_server(tmp_path: Path) -> None:
    environment = {**os.environ, "ZTDPU_STATE": str(tmp_path)}
    environment.pop("ZTDPU_SERVER", None)
    command = [sys.executable, "-c", "from ztdpu.cli import main; main()", "device", "list"]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=30, check=False)
    assert answer.returncode == 3
    assert f"{tmp_path}/control/admin.sock" in answer.stderr


def test_a_reader_that_stops_and_a_full_disk(server: str) -> None:
    command = f"{sys.executable} -c 'from ztdpu.cli import main; main()' device list"
    environment = {**os.environ, "ZTDPU_SERVER": server}

    def shell(text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", f"set -o pipefail; {text}"],
            capture_output=True, text=True, env=environment, timeout=30, check=False,
        )  # fmt: skip

    piped = shell(f"{command} | head -1")
    assert (piped.returncode, piped.stderr) == (0, "")
    closed = shell(f"{command} | true")
    assert (closed.returncode, closed.stderr) == (0, "")
    full = shell(f"{command} > /dev/full")
    assert full.returncode == 1
    assert full.stderr.splitlines() == [
        "error: cannot write the output: No space left on device",
        "  next: make room, or write elsewhere",
    ]


def test_ids_stay_on_their_line(run: Run, folder: Path) -> None:
    device = json.loads(run("device", "show", "dpu-0", "-o", "json").stdout)
    lines = run("device", "show", "dpu-0").stdout.splitlines()
    assert any(line.split()[:2] == ["wanted", device["revision_wanted"]] for line in lines)
    newest = json.loads(run("audit", "list", "-n", "1", "-o", "json").stdout)[0]
    shown = run("audit", "show", str(newest["index"])).stdout
    assert f"leaf_hash: {newest['leaf_hash']}\n" in shown
    assert "leaf" in json.loads(run("audit", "show", str(newest["index"]), "-o", "json").stdout)
    assert isinstance(json.loads(run("key", "list", "-o", "json").stdout)[0]["created_unix_ms"], int)
    assert [one["ready"] for one in json.loads(run("endpoint", "list", "-o", "json").stdout)] == [False] * 5


def test_second_control_on_one_state_directory_is_refused(server: str, folder: Path) -> None:
    answer = ztdpu("control", "run", "--config", str(folder / "control.yaml"))
    assert answer.returncode == 1
    assert "another control" in answer.stderr


@pytest.mark.parametrize(
    ("line", "words"), [("  nonsense: 1\n", "nonsense"), ("  listen: {}\n", "listen"), ("::\n", "")], ids=str
)
def test_faulty_start_up_file_names_its_place(line: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "control.yaml"
    path.write_text(CONFIGURATION.format(folder=tmp_path) + line)
    answer = ztdpu("control", "run", "--config", str(path))
    assert answer.returncode == 2
    assert "control.yaml:" in answer.stderr
    assert words in answer.stderr
    assert "Traceback" not in answer.stderr


def test_hang_up_reads_the_policy_again(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "c", ignore=shutil.ignore_patterns("state", "admin"))
    text = (folder / "control.yaml").read_text().replace(str(folder), str(tmp_path / "c"))
    (tmp_path / "c" / "control.yaml").write_text(text)
    process, socket = start_control(tmp_path / "c")
    try:
        stray = tmp_path / "c" / "policy" / "stray.yaml"
        for content, word in (("kind: [", "policy-not-reloaded"), ("# fine", "policy-reloaded")):
            stray.write_text(content)
            process.send_signal(signal.SIGHUP)
            deadline = time.monotonic() + 10
            while word not in (tmp_path / "c" / "log").read_text():
                assert time.monotonic() < deadline
                time.sleep(0.02)
        assert ztdpu("control", "healthcheck", server=socket).returncode == 0
    finally:
        process.terminate()
        assert process.wait(timeout=10) == 0
    for line in (tmp_path / "c" / "log").read_text().splitlines():
        assert line.startswith("{"), "nothing but JSON"


def test_stopped_control_is_given_up_after_seconds(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "c", ignore=shutil.ignore_patterns("state", "admin"))
    text = (folder / "control.yaml").read_text().replace(str(folder), str(tmp_path / "c"))
    (tmp_path / "c" / "control.yaml").write_text(text)
    process, socket = start_control(tmp_path / "c")
    try:
        process.send_signal(signal.SIGSTOP)
        answer = ztdpu("device", "list", server=socket)
        assert answer.returncode == 3
        assert "did not answer in time" in answer.stderr
    finally:
        process.kill()
        process.wait()


def test_revocation_survives_a_kill(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "c", ignore=shutil.ignore_patterns("state", "admin"))
    text = (folder / "control.yaml").read_text().replace(str(folder), str(tmp_path / "c"))
    (tmp_path / "c" / "control.yaml").write_text(text)
    process, socket = start_control(tmp_path / "c")
    try:
        assert ztdpu("device", "revoke", "dpu-0", "--reason", "lost", "--yes", server=socket).returncode == 0
    finally:
        process.kill()
        process.wait()
    process, socket = start_control(tmp_path / "c")
    try:
        devices = json.loads(ztdpu("device", "list", "-o", "json", server=socket).stdout)
        assert [one["state"] for one in devices] == ["revoked", "pending"]
    finally:
        process.terminate()
        assert process.wait(timeout=10) == 0
