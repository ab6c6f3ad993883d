"""A deployment of many devices for the bench: manufacturer, roster, policy, and control as a process of its own.

Used by `enrolment` and `fleet`, and by tests of both. Devices are secrets in memory here; `simulated` lets them attest.
Everything lies in one directory that the caller removes.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ztdpu.agent.configuration import AgentConfiguration, AgentSpec
from ztdpu.control.authority.issue import BUNDLE_FILE, ensure_authority
from ztdpu.errors import MachineError
from ztdpu.policy.example import EXAMPLE_POLICIES
from ztdpu.rpc.client import ControlClient
from ztdpu.trust import dice
from ztdpu.trust.firmware import compute_fwid, default_firmware, measure
from ztdpu.trust.manufacture import DeviceSecrets, create_manufacturer
from ztdpu.trust.profile import load_profile
from ztdpu.trust.roster import Roster, RosterDevice, RosterNetwork, encode_roster, sign_roster

TRUST_DOMAIN: Final = "bench.example"
PROFILE: Final = load_profile("bluefield-3")
TENANT: Final = "blue"
START_LIMIT_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """One deployment."""

    folder: Path
    agents: Path
    """State directories of the devices."""
    devices: dict[str, DeviceSecrets]
    enrolment_port: int
    main_port: int

    @property
    def admin_socket(self) -> Path:
        """Of control."""
        return self.folder / "admin" / "admin.sock"

    def spec(self, device: str) -> AgentSpec:
        """The start-up file of a device's agent."""
        folder = self.agents / device
        folder.mkdir(parents=True, exist_ok=True)
        body = {
            "device": device,
            "trustDomain": TRUST_DOMAIN,
            "stateDir": str(folder),
            "control": {
                "enrolment": f"127.0.0.1:{self.enrolment_port}",
                "main": f"127.0.0.1:{self.main_port}",
                "bundleFile": str(self.folder / "state" / BUNDLE_FILE),
            },
            "manufacturerRootsFile": str(self.folder / "roots.pem"),
            "rosterKeysFile": str(self.folder / "operators"),
            "underlay": {"address": "127.0.0.1"},
            "rootOfTrust": {"secretsFile": str(folder / "secrets.json"), "profile": PROFILE.name},
            "virtualFunctions": {"factorySocket": str(folder / "factory.sock")},
        }
        document = {"apiVersion": "ztdpu.dev/v1", "kind": "AgentConfiguration", "spec": body}
        return AgentConfiguration.model_validate(document).spec

    def client(self) -> ControlClient:
        """An operator's connection."""
        return ControlClient.connect(str(self.admin_socket))


def build_plant(
    folder: Path,
    *,
    devices: int,
    attestation: Mapping[str, float],
    pinned: bool,
    agents: Path | None = None,
    **spec: Any,
) -> Plant:
    """Make files for so many devices; without `pinned` each needs a join token."""
    now = datetime.now(UTC) - timedelta(hours=1)
    maker = create_manufacturer(profile=PROFILE, random=secrets.token_bytes, now=now)
    made = {
        f"dpu-{number}": maker.make_device(serial=f"SN-{number:05d}", uds=secrets.token_bytes(32), now=now)
        for number in range(devices)
    }
    names = {
        name: hashlib.sha256(dice.encode_spki(dice.derive_key(one.uds).public_key())).digest()
        for name, one in made.items()
    }
    (folder / "roots.pem").write_text(maker.root_pem())
    _write_policy(folder / "policy", names if pinned else dict.fromkeys(names, b""))
    _write_roster(folder, names)
    ensure_authority(folder / "state", TRUST_DOMAIN)
    (folder / "state" / BUNDLE_FILE).write_bytes((folder / "state" / "authority.pem").read_bytes())
    enrolment_port, main_port = _free_ports()
    plant = Plant(
        folder=folder,
        agents=agents or folder / "agents",
        devices=made,
        enrolment_port=enrolment_port,
        main_port=main_port,
    )
    body = {
        "trustDomain": TRUST_DOMAIN,
        "stateDir": str(folder / "state"),
        "policyDir": str(folder / "policy"),
        "rosterFile": str(folder / "roster.cbor"),
        "rosterSignatureFile": str(folder / "roster.sig"),
        "rosterKeysFile": str(folder / "operators"),
        "manufacturerRootsFile": str(folder / "roots.pem"),
        "listen": {"enrolment": f"127.0.0.1:{enrolment_port}", "main": f"127.0.0.1:{main_port}"},
        "adminSocket": str(plant.admin_socket),
        "attestation": attestation,
        **spec,
    }
    document = {"apiVersion": "ztdpu.dev/v1", "kind": "ControlConfiguration", "spec": body}
    (folder / "control.yaml").write_text(json.dumps(document))
    return plant


def _write_policy(folder: Path, pins: dict[str, bytes]) -> None:
    (folder / "devices").mkdir(parents=True)
    shutil.copytree(EXAMPLE_POLICIES / "attestation", folder / "attestation")
    documents: list[dict[str, Any]] = [
        {"kind": "Tenant", "metadata": {"name": TENANT}, "spec": {"appraisalPolicy": "standard"}}
    ]
    for number, (name, pin) in enumerate(pins.items()):
        spec: dict[str, Any] = {
            "profile": PROFILE.name,
            "underlay": {"address": f"10.{100 + number // 65536}.{number // 256 % 256}.{number % 256}"},
        }
        if pin:
            spec["deviceIdSha256"] = pin.hex()
        documents.append({"kind": "Device", "metadata": {"name": name}, "spec": spec})
    for number, document in enumerate(documents):
        text = json.dumps({"apiVersion": "ztdpu.dev/v1", **document})
        (folder / "devices" / f"{number:05d}.yaml").write_text(text)


def _write_roster(folder: Path, names: dict[str, bytes]) -> None:
    blocks = measure(PROFILE, default_firmware(PROFILE))
    fwids = sorted(compute_fwid(PROFILE, level, blocks).hex() for level in PROFILE.levels if level.fwid_covers)
    roster = Roster(
        serial=1,
        trust_domain=TRUST_DOMAIN,
        devices=tuple(
            RosterDevice(name=name, device_id_sha256=one, tenants=(TENANT,)) for name, one in sorted(names.items())
        ),
        networks=(RosterNetwork(tenant=TENANT, network_id=secrets.token_bytes(16), generation=1),),
        fwids={PROFILE.name: tuple(fwids)},
    )
    operator, blob = Ed25519PrivateKey.generate(), encode_roster(roster)
    (folder / "roster.cbor").write_bytes(blob)
    (folder / "roster.sig").write_text(sign_roster(blob, operator))
    public = operator.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (folder / "operators").write_bytes(public + b" operator\n")


@contextmanager
def running_control(plant: Plant) -> Iterator[subprocess.Popen[bytes]]:
    """Control as its own process, serving; its log is `control.log`. MachineError when it does not come up."""
    command = [sys.executable, "-m", "ztdpu", "control", "run", "--config", str(plant.folder / "control.yaml")]
    with (plant.folder / "control.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _await_port(plant, process)
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _await_port(plant: Plant, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", plant.main_port)) == 0:
                return
        time.sleep(0.05)
    tail = (plant.folder / "control.log").read_text(errors="replace")[-500:]
    raise MachineError(f"control did not come up: {tail}", remedy="read control.log in the bench's directory")


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1]), int(other.getsockname()[1])
