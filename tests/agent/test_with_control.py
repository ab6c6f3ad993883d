"""Two agents against the real control, in one process: from policy files to keys that both workers use.

Real: control with its store, policy and roster; agents; roots of trust and workers as processes. The virtual
functions are pipes that nobody reads, so packets are left to the tests in namespaces.
"""

from __future__ import annotations

import array
import asyncio
import hashlib
import os
import re
import secrets
import shutil
import socket
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import cbor2
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ztdpu.agent import mailbox
from ztdpu.agent.configuration import AgentConfiguration, AgentSpec
from ztdpu.agent.daemon import Daemon
from ztdpu.agent.root_of_trust import write_secrets
from ztdpu.agent.start_files import make_state_dir, read_start_files
from ztdpu.agent.supervisor import Programs, programs
from ztdpu.control.authority.issue import ensure_authority
from ztdpu.control.configuration import ControlConfiguration
from ztdpu.control.run import ControlProcess
from ztdpu.model.device import DeviceState
from ztdpu.rpc.client import ControlClient
from ztdpu.trust import dice
from ztdpu.trust.firmware import compute_fwid, default_firmware, measure
from ztdpu.trust.manufacture import create_manufacturer
from ztdpu.trust.profile import load_profile
from ztdpu.trust.roster import Roster, RosterDevice, RosterNetwork, encode_roster, sign_roster

ROOT = Path(__file__).resolve().parents[2]
DOMAIN = "ztdpu.test"
PROFILE = load_profile("bluefield-3")
DEVICES = {"dpu-0": ("blue", "green", "red"), "dpu-1": ("blue", "red")}
SMALL_WORKER = (sys.executable, str(Path(__file__).with_name("small_worker.py")))
REAL_WORKER = (sys.executable, "-m", "ztdpu.agent.worker", "--mailbox-fd")


class Site:
    """One control and its agents, in a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.control: ControlProcess
        self.daemons: dict[str, Daemon] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._factories: list[asyncio.Task[None]] = []

    async def start(self, *, interval_s: float = 5, lease_s: float = 30) -> None:
        self._manufacture()
        authority = ensure_authority(self.root / "control", DOMAIN)
        (self.root / "bundle.pem").write_bytes(authority.certificate.public_bytes(Encoding.PEM))
        spec = {
            "trustDomain": DOMAIN,
            "stateDir": str(self.root / "control"),
            "policyDir": str(self.root / "policies"),
            "rosterFile": str(self.root / "roster"),
            "rosterSignatureFile": str(self.root / "roster.sig"),
            "rosterKeysFile": str(self.root / "operators.pub"),
            "manufacturerRootsFile": str(self.root / "roots.pem"),
            "listen": {"enrolment": "127.0.0.1:0", "main": "127.0.0.1:0"},
            "adminSocket": str(self.root / "admin" / "admin.sock"),
            "attestation": {"intervalS": interval_s, "leaseS": lease_s},
        }
        document = {"apiVersion": "ztdpu.dev/v1", "kind": "ControlConfiguration", "spec": spec}
        self.control = ControlProcess(ControlConfiguration.model_validate(document))
        await self.control.start()

    def _manufacture(self) -> None:
        """Devices with their secrets, a policy that pins them, a roster that lists them."""
        now = datetime.now(UTC)
        maker = create_manufacturer(profile=PROFILE, random=secrets.token_bytes, now=now - timedelta(days=2))
        (self.root / "roots.pem").write_text(maker.root_pem())
        shutil.copytree(ROOT / "policies", self.root / "policies")
        entries = []
        for number, (device, tenants) in enumerate(DEVICES.items()):
            made = maker.make_device(serial=f"{number:012d}", uds=secrets.token_bytes(32), now=now - timedelta(days=1))
            write_secrets(self.root / f"{device}.json", made)
            spki = dice.encode_spki(dice.derive_key(made.uds).public_key())
            name = hashlib.sha256(spki).digest()
            entries.append(RosterDevice(name=device, device_id_sha256=name, tenants=tenants))
            path = self.root / "policies" / "devices" / f"{device}.yaml"
            path.write_text(path.read_text().replace("spec:\n", f"spec:\n  deviceIdSha256: {name.hex()}\n"))
        blocks = measure(PROFILE, default_firmware(PROFILE))
        fwids = sorted(compute_fwid(PROFILE, level, blocks).hex() for level in PROFILE.levels if level.fwid_covers)
        roster = Roster(
            serial=1,
            trust_domain=DOMAIN,
            devices=tuple(entries),
            networks=tuple(
                RosterNetwork(tenant=name, network_id=secrets.token_bytes(16), generation=1, members=members)
                for name, members in (("blue", ()), ("green", ()), ("red", ()), ("blue-green", ("blue", "green")))
            ),
            fwids={"bluefield-3": tuple(fwids)},
        )
        operator = Ed25519PrivateKey.generate()
        blob = encode_roster(roster)
        (self.root / "roster").write_bytes(blob)
        (self.root / "roster.sig").write_text(sign_roster(blob, operator))
        key = operator.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        (self.root / "operators.pub").write_bytes(key + b"\n")

    def spec(self, device: str, *, fault: str | None = None) -> AgentSpec:
        document = {
            "apiVersion": "ztdpu.dev/v1",
            "kind": "AgentConfiguration",
            "spec": {
                "device": device,
                "trustDomain": DOMAIN,
                "stateDir": str(self.root / f"run-{device}"),
                "control": {
                    "enrolment": f"127.0.0.1:{self.control.enrolment_port}",
                    "main": f"127.0.0.1:{self.control.main_port}",
                    "bundleFile": str(self.root / "bundle.pem"),
                },
                "manufacturerRootsFile": str(self.root / "roots.pem"),
                "rosterKeysFile": str(self.root / "operators.pub"),
                "underlay": {"address": f"127.0.2.1{device[-1]}"},
                "rootOfTrust": {
                    "secretsFile": str(self.root / f"{device}.json"),
                    "profile": "bluefield-3",
                    "fault": fault,
                },
                "virtualFunctions": {"factorySocket": str(self.root / f"factory-{device}.sock")},
            },
        }
        return AgentConfiguration.model_validate(document).spec

    def run(self, device: str, *, worker: tuple[str, ...] = SMALL_WORKER, fault: str | None = None) -> Daemon:
        spec = self.spec(device, fault=fault)
        make_state_dir(spec)
        self._factories.append(asyncio.create_task(serve_pipes(spec.virtual_functions.factory_socket)))
        root = spec.root_of_trust
        real = programs(
            state_dir=spec.state_dir, secrets_file=root.secrets_file, profile=root.profile, fault=root.fault
        )
        wanted = Programs(worker=worker, root_of_trust=real.root_of_trust, doors=real.doors)
        daemon = self.daemons[device] = Daemon(spec, read_start_files(spec), wanted)
        self._tasks[device] = asyncio.create_task(daemon.run())
        return daemon

    async def stop(self) -> None:
        for device, daemon in self.daemons.items():
            daemon.stop()
            await self._tasks[device]
        for task in self._factories:
            task.cancel()
        await self.control.stop()

    def state(self, device: str) -> DeviceState:
        return self.control.fleet.record(device).state

    def ready(self, *devices: str) -> bool:
        connections = [self.control.hub.get(device) for device in devices]
        return all(connection is not None and connection.ready for connection in connections)

    async def until(self, condition, limit_s: float = 15.0) -> None:
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    if condition():
                        return
                    await asyncio.sleep(0.01)
        except TimeoutError:
            waits = {name: (str(self.state(name)), daemon._life.reason) for name, daemon in self.daemons.items()}
            pytest.fail(f"not within {limit_s} s: {waits}")


async def serve_pipes(path: Path) -> None:
    """A factory whose virtual functions are pipes."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(path))
        listening.listen(8)
        listening.setblocking(False)
        while True:
            connection, _ = await loop.sock_accept(listening)
            with connection:
                _, _, identity = cbor2.loads(await loop.sock_recv(connection, 4096))
                reading, writing = os.pipe()
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [writing]))]
                connection.sendmsg([cbor2.dumps(["made", identity, ""])], rights)
                os.close(reading)
                os.close(writing)


@pytest.fixture
async def site(tmp_path: Path):
    site = Site(tmp_path)
    try:
        yield site
    finally:
        await site.stop()


async def test_from_evidence_to_keys_for_every_shared_network(site):
    await site.start()
    site.run("dpu-0")
    site.run("dpu-1")
    daemons = site.daemons.values()
    await site.until(lambda: site.ready("dpu-0", "dpu-1") and all(one._exchange.devices for one in daemons))
    assert [site.state(device) for device in DEVICES] == [DeviceState.AFFIRMING, DeviceState.AFFIRMING]
    desired = site.control.fleet.desired
    shared = {desired.networks[name].network_id for name in ("blue", "red", "blue-green")}
    for daemon, peer in zip(daemons, ("dpu-1", "dpu-0"), strict=True):
        assert daemon._exchange._peers[peer].peer.networks == shared
        assert {network for network, _ in daemon._exchange._peers[peer].installed} == shared


async def test_altered_firmware_gets_no_identity(site):
    await site.start()
    site.run("dpu-0")
    altered = site.run("dpu-1", fault="firmware-altered")
    await site.until(lambda: altered._life.phase == "refused" and site.ready("dpu-0"))
    assert altered._identity is None
    assert altered._life.lease_deadline_ns == 0
    assert site.state("dpu-1") is not DeviceState.AFFIRMING
    assert site.daemons["dpu-0"]._exchange.devices == ()


async def test_in_warning_without_a_lease_an_agent_is_dark_and_stays_in_reach(site):
    """Its firmware has a vulnerability since today: no keys, and the identity and stream that it had. Then it has none."""
    await site.start(interval_s=1)
    daemons = [site.run(device) for device in DEVICES]
    await site.until(lambda: site.ready(*DEVICES) and all(one._exchange.devices for one in daemons))
    file = site.root / "policies" / "attestation" / "bluefield-3.yaml"
    good = file.read_text()
    vulnerable = rf"\1        - {'ab' * 64}\n      vulnerableDigests:\n        - \2"
    file.write_text(re.sub(r"(component: nic-firmware\n +digests:\n) +- ([0-9a-f]{128})", vulnerable, good))
    with ControlClient.connect(str(site.control.spec.admin_socket)) as client:
        await asyncio.to_thread(client.sync_policy)
        await site.until(
            lambda: (
                all(site.state(device) is DeviceState.WARNING for device in DEVICES)
                and not any(one._life.lease_deadline_ns or one._exchange.devices for one in daemons)
            )
        )
        appraised = {device: site.control.fleet.record(device).appraised_unix_ms for device in DEVICES}
        await site.until(
            lambda: all(site.control.fleet.record(one).appraised_unix_ms > when for one, when in appraised.items())
        )
        assert all(site.state(device) is DeviceState.WARNING for device in DEVICES)
        assert all(site.control.fleet.record(device).lease_deadline_ns == 0 for device in DEVICES)
        await site.until(lambda: all(site.control.hub.get(device) is not None for device in DEVICES))
        file.write_text(good)
        await asyncio.to_thread(client.sync_policy)
    await site.until(lambda: site.ready(*DEVICES) and all(one._exchange.devices for one in daemons))


async def test_cut_off_from_control_and_back(site):
    await site.start(interval_s=0.5, lease_s=2)
    site.run("dpu-0")
    site.run("dpu-1")
    await site.until(lambda: site.ready("dpu-0", "dpu-1"))
    ports = (site.control.enrolment_port, site.control.main_port)
    await site.control.stop()
    await site.until(lambda: all(daemon._life.phase == "stale" for daemon in site.daemons.values()))
    spec = site.control.spec
    listen = spec.listen.model_copy(update={"enrolment": f"127.0.0.1:{ports[0]}", "main": f"127.0.0.1:{ports[1]}"})
    document = ControlConfiguration(
        api_version="ztdpu.dev/v1", kind="ControlConfiguration", spec=spec.model_copy(update={"listen": listen})
    )
    site.control = ControlProcess(document)
    await site.control.start()
    await site.until(
        lambda: site.ready("dpu-0", "dpu-1") and all(daemon._exchange.devices for daemon in site.daemons.values())
    )


async def test_revoked_device_goes_dark_and_comes_back_only_with_a_newer_boot_and_new_keys(site):
    await site.start(interval_s=0.5, lease_s=10)
    site.run("dpu-0")
    site.run("dpu-1")
    both = lambda: site.ready("dpu-0", "dpu-1") and bool(site.daemons["dpu-0"]._exchange.devices)  # noqa: E731
    await site.until(both)
    revoked = site.daemons["dpu-1"]
    boot, keys = site.control.fleet.record("dpu-1").boot_counter, revoked._attester._keys
    with ControlClient.connect(str(site.control.spec.admin_socket)) as client:
        await asyncio.to_thread(client.revoke_device, "dpu-1", reason="test")
        assert site.daemons["dpu-0"]._exchange.devices == ()  # acknowledged, so removed
        await site.until(lambda: revoked._life.phase == "refused")
        await asyncio.to_thread(client.restore_device, "dpu-1", reason="test")
    await site.until(both)
    assert site.control.fleet.record("dpu-1").boot_counter > boot
    assert revoked._attester._keys != keys


async def test_changed_policy_reaches_the_worker(site):
    await site.start()
    daemon = site.run("dpu-0")
    await site.until(lambda: site.ready("dpu-0"))
    before = daemon._conversation.applied_revision
    path = site.root / "policies" / "network" / "blue.yaml"
    path.write_text(path.read_text().replace("port: 1024", "port: 2048"))
    with ControlClient.connect(str(site.control.spec.admin_socket)) as client:
        await asyncio.to_thread(client.sync_policy)
    await site.until(lambda: daemon._conversation.applied_revision != before and site.ready("dpu-0"))


@pytest.mark.skipif(os.geteuid() != 0, reason="UDP port 1000 needs root")
async def test_rotation_by_command_with_real_workers(site):
    await site.start()
    site.run("dpu-0", worker=REAL_WORKER)
    site.run("dpu-1", worker=REAL_WORKER)
    daemons = site.daemons.values()
    await site.until(lambda: all(one._exchange.devices and not one._exchange.missing() for one in daemons))
    before = await send_spis(site.daemons["dpu-0"])
    assert len(before) == 3  # blue, red and the Peering of blue and green
    with ControlClient.connect(str(site.control.spec.admin_socket)) as client:
        await asyncio.to_thread(client.rotate_keys, device="dpu-1")
    async with asyncio.timeout(10):
        while True:
            after = await send_spis(site.daemons["dpu-0"])
            if len(after) == 3 and not after & before:
                return
            await asyncio.sleep(0.05)


async def send_spis(daemon: Daemon) -> set[int]:
    channel = daemon._supervisor.channel
    assert channel is not None
    token = channel.next_token()
    answer = await channel.ask(mailbox.GetStatistics(token), mailbox.Statistics, key=token)
    return {row[4] for row in answer.send_sas}
