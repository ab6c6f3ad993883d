"""Two real agents against a small control in this process: attest, lease, tables, keys for each other, revocation.

Real here: gRPC over TLS, SPDM with the root of trust in its own process, bindings, SVIDs, roster, peers, exchange.
Small here: control appraises nothing beyond the signature, and the workers move no packets (`small_worker.py`).
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import signal
import socket
import sys
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import cbor2
import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from grpc import aio

from ztdpu.agent import mailbox
from ztdpu.agent.configuration import AgentConfiguration, AgentSpec
from ztdpu.agent.daemon import Daemon
from ztdpu.agent.root_of_trust import write_secrets
from ztdpu.agent.start_files import make_state_dir, read_start_files
from ztdpu.agent.statement import read_health
from ztdpu.agent.supervisor import Programs, programs
from ztdpu.errors import TablesError
from ztdpu.keys.epoch import EpochKey, epoch_context, seal_epoch_keys
from ztdpu.model.attestation import Dimension, Tier
from ztdpu.model.endpoint import Endpoint
from ztdpu.packet.tables import DeviceTables, EndpointTable, NetworkTable, PeerTable, Route, encode_tables, revision
from ztdpu.rpc.possession import possession_octets
from ztdpu.trust.acceptance import check_possession
from ztdpu.trust.appraise import Appraisal
from ztdpu.trust.binding import binding_sha256, open_envelope
from ztdpu.trust.chain import DeviceChain, verify_device_chain
from ztdpu.trust.ear import issue_ear
from ztdpu.trust.firmware import compute_fwid, default_firmware, measure
from ztdpu.trust.manufacture import Manufacturer, create_manufacturer
from ztdpu.trust.profile import load_profile
from ztdpu.trust.roster import Roster, RosterDevice, RosterNetwork, encode_roster, sign_roster
from ztdpu.trust.spdm.requester import MeasurementSession
from ztdpu.trust.svid import Authority, create_authority, issue_control_certificate, issue_svid
from ztdpu.v1 import agent_pb2, agent_pb2_grpc, attestation_pb2, attestation_pb2_grpc

DOMAIN = "ztdpu.test"
NETWORK = b"blue-network-id!"
SMALL_WORKER = (sys.executable, str(Path(__file__).with_name("small_worker.py")))
PROFILE = load_profile("bluefield-3")
ADDRESSES = {"dpu-0": bytes([10, 1, 0, 10]), "dpu-1": bytes([10, 1, 0, 11])}
UNDERLAY = {"dpu-0": bytes([127, 0, 1, 10]), "dpu-1": bytes([127, 0, 1, 11])}


def endpoint_id(device: str) -> bytes:
    return Endpoint(name=f"blue-{device[-1]}", tenant="blue", device=device, addresses=()).endpoint_id


def tables_for(device: str) -> bytes:
    routes = tuple(Route(address=ADDRESSES[one], device=one, endpoint_id=endpoint_id(one)) for one in sorted(ADDRESSES))
    return encode_tables(
        DeviceTables(
            device=device,
            networks=(
                NetworkTable(
                    network_id=NETWORK, generation=1, tenant="blue", psp_version=1, flow_quota=100, routes=routes
                ),
            ),
            endpoints=(
                EndpointTable(
                    endpoint_id=endpoint_id(device),
                    name=f"blue-{device[-1]}",
                    network_id=NETWORK,
                    addresses=(ADDRESSES[device],),
                    mtu_octets=8900,
                    rules=(),
                ),
            ),
            peers=tuple(PeerTable(device=one, underlay_address=UNDERLAY[one]) for one in UNDERLAY if one != device),
        )
    )


@dataclass
class Known:
    """What the small control knows of one device."""

    state: str = "affirming"
    chain: DeviceChain | None = None
    certificates: tuple[bytes, ...] = ()
    binding: bytes = b""
    kem_public: bytes = b""
    instance: bytes = b""
    stream: asyncio.Queue[agent_pb2.ControlMessage | None] | None = None
    status: agent_pb2.AgentStatus = field(default_factory=agent_pb2.AgentStatus)
    begins: list[attestation_pb2.AttestBegin] = field(default_factory=list)
    hellos: list[agent_pb2.AgentHello] = field(default_factory=list)
    applied: list[int] = field(default_factory=list)
    boots: set[int] = field(default_factory=set)


class SmallControl(attestation_pb2_grpc.AttestationServiceServicer, agent_pb2_grpc.AgentServiceServicer):
    """Both services of control, with as little behind them as the agents need."""

    def __init__(self, manufacturer: Manufacturer) -> None:
        self.manufacturer = manufacturer
        self.authority: Authority = create_authority(
            DOMAIN, datetime.now(UTC), ec.generate_private_key(ec.SECP384R1()), 7
        )
        self.ear_key = ec.generate_private_key(ec.SECP256R1())
        self.operator = Ed25519PrivateKey.generate()
        self.known = {"dpu-0": Known(), "dpu-1": Known()}
        self.epoch, self.epoch_key = 1, secrets.token_bytes(32)
        self.generation = 100
        self.lease_ms, self.interval_ms = 60_000, 10_000
        self._held: dict[str, asyncio.Event] = {}
        self.roster: Roster | None = None
        self.server: aio.Server | None = None

    async def start(self, ports: tuple[int, int] = (0, 0)) -> tuple[int, int]:
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        chain = issue_control_certificate(
            self.authority,
            public_key=key.public_key(),
            not_before=now - timedelta(seconds=30),
            not_after=now + timedelta(hours=23),
            serial=9,
        )
        key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        pem = b"".join(x509.load_der_x509_certificate(one).public_bytes(Encoding.PEM) for one in chain)
        self.server = aio.server()
        attestation_pb2_grpc.add_AttestationServiceServicer_to_server(self, self.server)
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self, self.server)
        enrolment = self.server.add_secure_port(f"127.0.0.1:{ports[0]}", grpc.ssl_server_credentials([(key_pem, pem)]))
        main = self.server.add_secure_port(
            f"127.0.0.1:{ports[1]}",
            grpc.ssl_server_credentials([(key_pem, pem)], root_certificates=self.bundle, require_client_auth=True),
        )
        await self.server.start()
        return enrolment, main

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop(None)

    @property
    def bundle(self) -> bytes:
        return self.authority.certificate.public_bytes(Encoding.PEM)

    # --- attestation ---

    def hold(self, device: str) -> None:
        """Answer no attestation of this device until `release`."""
        self._held[device] = asyncio.Event()

    def release(self, device: str) -> None:
        self._held.pop(device).set()

    async def Attest(self, request_iterator, context):
        begin = (await anext(request_iterator)).begin
        known = self.known[begin.device]
        known.begins.append(begin)
        if begin.device in self._held:
            await self._held[begin.device].wait()
        session = MeasurementSession(profile=PROFILE, nonce=secrets.token_bytes(32))
        while (request := session.next_request()) is not None:
            yield attestation_pb2.AttestResponse(spdm=request)
            session.receive((await anext(request_iterator)).spdm)
        certificates = session.evidence().certificates
        chain = verify_device_chain(certificates, [self.manufacturer.root], datetime.now(UTC), PROFILE)
        known.boots.add(chain.boot.counter)
        result = attestation_pb2.AttestResult(
            state=known.state,
            reason="as the test wants it",
            interval_ms=self.interval_ms,
            ear_public_key=self.ear_key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        )
        if known.state == "affirming":
            if not known.binding or begin.lease.binding_sha256 != binding_sha256(known.binding):
                nonce = secrets.token_bytes(32)
                yield attestation_pb2.AttestResponse(bind=attestation_pb2.BindingChallenge(nonce=nonce))
                answer = (await anext(request_iterator)).binding
                result.svid.extend(self._bind(begin.device, chain, answer, nonce, begin.lease))
            known.chain, known.certificates, known.kem_public = chain, certificates, begin.lease.kem_public_key
            result.lease.CopyFrom(
                attestation_pb2.LeaseGrant(
                    duration_ms=self.lease_ms, generation=self.generation, sealed_epoch_keys=self.sealed(begin.device)
                )
            )
            self.push_peers()
        yield attestation_pb2.AttestResponse(result=result)

    def _bind(self, device, chain, answer, nonce, lease):
        binding = open_envelope(answer.key_binding, chain.alias_public_key)
        name = binding_sha256(answer.key_binding)
        key = check_possession(
            binding,
            csr=answer.csr,
            signed=possession_octets(
                nonce=nonce,
                binding_sha256=name,
                applied_generation=lease.applied_generation,
                kem_public_key=lease.kem_public_key,
            ),
            tls_possession=answer.tls_possession,
            offer_possession=answer.offer_possession,
        )
        self.known[device].binding = answer.key_binding
        now = datetime.now(UTC)
        return issue_svid(
            self.authority,
            trust_domain=DOMAIN,
            path=f"/dpu/{device}",
            public_key=key,
            not_before=now - timedelta(seconds=30),
            not_after=now + timedelta(minutes=10),
            serial=secrets.randbits(100),
        )

    def sealed(self, device: str) -> bytes:
        known = self.known[device]
        key = EpochKey(network_id=NETWORK, network_generation=1, epoch=self.epoch, key=self.epoch_key)
        return seal_epoch_keys([key], kem_public_key=known.kem_public, context=epoch_context(device, known.kem_public))

    # --- agents ---

    async def Connect(self, request_iterator, context):
        hello = (await anext(request_iterator)).hello
        assert context.auth_context()["x509_subject_alternative_name"] == [
            f"spiffe://{DOMAIN}/dpu/{hello.device}".encode()
        ]
        known = self.known[hello.device]
        if known.state != "affirming":
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "permission-denied")
        known.hellos.append(hello)
        known.instance = hello.worker_instance
        if known.stream is not None:
            known.stream.put_nowait(None)
        known.stream = stream = asyncio.Queue()
        reader = asyncio.create_task(self._read(hello.device, request_iterator))
        self.push_all(hello.device)
        try:
            while (message := await stream.get()) is not None:
                yield message
            if known.state != "affirming":
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, "permission-denied")
        finally:
            reader.cancel()

    async def _read(self, device, request_iterator):
        async for message in request_iterator:
            known = self.known[device]
            match message.WhichOneof("message"):
                case "status":
                    known.status = message.status
                    if known.instance != message.status.worker_instance:
                        known.instance = message.status.worker_instance
                        self.push_peers()
                case "sa":
                    self.push(message.sa.device, sa=agent_pb2.SaEnvelope(device=device, envelope=message.sa.envelope))
                case "revocation_applied":
                    known.applied.append(message.revocation_applied.generation)

    def push(self, device: str, **message) -> None:
        stream = self.known[device].stream
        if stream is not None:
            stream.put_nowait(agent_pb2.ControlMessage(**message))

    def push_all(self, device: str) -> None:
        assert self.roster is not None
        blob = encode_roster(self.roster)
        self.push(device, roster=agent_pb2.Roster(roster=blob, signature=sign_roster(blob, self.operator).encode()))
        self.push_config(device)
        self.push_peers()

    def push_config(self, device: str, **changes) -> None:
        blob = tables_for(device)
        fields = {"generation": self.generation, "revision": revision(blob), "tables": blob} | changes
        self.push(device, config=agent_pb2.Config(**fields))

    def push_peers(self) -> None:
        live = [name for name, one in self.known.items() if one.state == "affirming" and one.binding and one.instance]
        self.generation += 1
        for device in self.known:
            peers = [self.peer(name) for name in live if name != device]
            self.push(device, peers=agent_pb2.Peers(generation=self.generation, peers=peers))

    def peer(self, name: str) -> agent_pb2.Peer:
        known = self.known[name]
        chain = known.chain
        assert chain is not None
        appraisal = Appraisal(
            profile="bluefield-3", policy="default", references="bluefield-3", tier=Tier.AFFIRMING,
            vector={Dimension.EXECUTABLES: 3}, findings=(), nonce=bytes(32), device_id_spki=b"",
            device_id_sha256=chain.device_id_sha256, ueid=chain.ueid, alias_public_key=chain.alias_public_key,
            alias_spki_sha256=chain.alias_spki_sha256, boot_counter=chain.boot.counter, boot_nonce=chain.boot.nonce,
            fwids={}, versions={},
        )  # fmt: skip
        ear = issue_ear(
            appraisal, device=name, key=self.ear_key, issuer=f"spiffe://{DOMAIN}/control", now=datetime.now(UTC),
            binding_sha256=binding_sha256(known.binding), ttl_s=60,
        )  # fmt: skip
        return agent_pb2.Peer(
            device=name, key_binding=known.binding, chain=known.certificates, ear=ear,
            worker_instance=known.instance, profile="bluefield-3",
        )  # fmt: skip

    def revoke(self, device: str) -> int:
        """Revoke, tell the others with a new epoch, close the stream."""
        known = self.known[device]
        known.state = "revoked"
        self.generation += 1
        self.epoch, self.epoch_key = self.epoch + 1, secrets.token_bytes(32)
        generation = self.generation
        assert known.chain is not None
        for other in self.known:
            if other != device:
                self.push(
                    other,
                    revocation=agent_pb2.Revocation(
                        generation=generation,
                        device=device,
                        ueid=known.chain.ueid,
                        cause="test",
                        sealed_epoch_keys=self.sealed(other),
                    ),
                )
        if known.stream is not None:
            known.stream.put_nowait(None)
        known.binding = b""
        return generation


class SmallFactory:
    """Hands out the writing end of a pipe for every virtual function asked for."""

    def __init__(self, path: Path) -> None:
        self.made: list[str] = []
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(str(path))
        self._listening.listen(8)
        self._listening.setblocking(False)
        self._task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self._listening)
            with connection:
                word, name, identity = cbor2.loads(await loop.sock_recv(connection, 4096))
                assert word == "make"
                self.made.append(name)
                reading, writing = os.pipe()
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [writing]))]
                connection.sendmsg([cbor2.dumps(["made", identity, ""])], rights)
                os.close(reading)
                os.close(writing)

    def close(self) -> None:
        self._task.cancel()
        self._listening.close()


class Lab:
    """Control, factories and agents of one test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.manufacturer = create_manufacturer(
            profile=PROFILE, random=secrets.token_bytes, now=datetime.now(UTC) - timedelta(days=2)
        )
        self.control = SmallControl(self.manufacturer)
        self.ports = (0, 0)
        self.daemons: dict[str, Daemon] = {}
        self.factories: dict[str, SmallFactory] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        self.ports = await self.control.start()
        (self.root / "bundle.pem").write_bytes(self.control.bundle)
        (self.root / "roots.pem").write_text(self.manufacturer.root_pem())
        line = self.control.operator.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        (self.root / "operators.pub").write_bytes(b"# operators\n" + line + b"\n")
        entries = []
        for number, device in enumerate(self.control.known):
            device_secrets = self.manufacturer.make_device(
                serial=f"{number:012d}", uds=secrets.token_bytes(32), now=datetime.now(UTC) - timedelta(days=1)
            )
            write_secrets(self.root / f"{device}.json", device_secrets)
            spki = (
                x509.load_der_x509_certificate(device_secrets.certificates[-1])
                .public_key()
                .public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
            )
            entries.append(RosterDevice(name=device, device_id_sha256=sha256(spki), tenants=("blue",)))
        self.control.roster = Roster(
            serial=1,
            trust_domain=DOMAIN,
            devices=tuple(entries),
            networks=(RosterNetwork(tenant="blue", network_id=NETWORK, generation=1),),
            fwids={"bluefield-3": tuple(sorted(fwids_of(self.manufacturer)))},
        )

    def spec(self, device: str, **changes) -> AgentSpec:
        document = {
            "apiVersion": "ztdpu.dev/v1",
            "kind": "AgentConfiguration",
            "spec": {
                "device": device,
                "trustDomain": DOMAIN,
                "stateDir": str(self.root / f"state-{device}"),
                "control": {
                    "enrolment": f"127.0.0.1:{self.ports[0]}",
                    "main": f"127.0.0.1:{self.ports[1]}",
                    "bundleFile": str(self.root / "bundle.pem"),
                },
                "manufacturerRootsFile": str(self.root / "roots.pem"),
                "rosterKeysFile": str(self.root / "operators.pub"),
                "underlay": {"address": str(socket.inet_ntoa(UNDERLAY[device])), "mtuOctets": 9000},
                "rootOfTrust": {"secretsFile": str(self.root / f"{device}.json"), "profile": "bluefield-3"},
                "virtualFunctions": {"factorySocket": str(self.root / f"factory-{device}.sock")},
            }
            | changes,
        }
        return AgentConfiguration.model_validate(document).spec

    def run(self, device: str, *, worker: tuple[str, ...] = SMALL_WORKER, **changes) -> Daemon:
        spec = self.spec(device, **changes)
        make_state_dir(spec)
        if device not in self.factories:
            self.factories[device] = SmallFactory(spec.virtual_functions.factory_socket)
        real = programs(
            state_dir=spec.state_dir, secrets_file=spec.root_of_trust.secrets_file, profile=spec.root_of_trust.profile
        )
        wanted = Programs(worker=worker, root_of_trust=real.root_of_trust, doors=real.doors)
        daemon = Daemon(spec, read_start_files(spec), wanted)
        self.daemons[device] = daemon
        self._tasks[device] = asyncio.create_task(daemon.run())
        return daemon

    async def end(self, device: str) -> None:
        self.control.known[device].status = agent_pb2.AgentStatus()
        self.daemons.pop(device).stop()
        await self._tasks.pop(device)

    async def stop(self) -> None:
        for device in list(self.daemons):
            await self.end(device)
        for factory in self.factories.values():
            factory.close()
        await self.control.stop()

    def status(self, device: str) -> agent_pb2.AgentStatus:
        return self.control.known[device].status

    def ready(self, *devices: str) -> bool:
        return all(self.status(device).ready for device in devices)

    async def until(self, condition, limit_s: float = 45.0) -> None:
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    if condition():
                        return
                    await asyncio.sleep(0.01)
        except TimeoutError:
            waits = {name: one.status.waiting_for for name, one in self.control.known.items()}
            pytest.fail(f"not within {limit_s} s; agents wait for {waits}")


def sha256(octets: bytes) -> bytes:
    return hashlib.sha256(octets).digest()


def fwids_of(manufacturer: Manufacturer) -> set[str]:
    blocks = measure(PROFILE, default_firmware(PROFILE))
    return {compute_fwid(PROFILE, level, blocks).hex() for level in PROFILE.levels if level.fwid_covers}


@pytest.fixture
async def lab(tmp_path: Path):
    lab = Lab(tmp_path)
    await lab.start()
    try:
        yield lab
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await lab.stop()


@pytest.fixture
def refusals(capsys):
    """Return what the agents of this test refused so far: (code, what was refused, why)."""
    found = []

    def read() -> list[tuple[str, str, str]]:
        lines = (json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{"))
        found.extend((line["code"], line["message"], line["cause"]) for line in lines if line["event"] == "refused")
        return found

    return read


async def test_two_agents_attest_and_exchange_keys(lab):
    lab.run("dpu-0")
    lab.run("dpu-1")
    await lab.until(lambda: lab.ready("dpu-0", "dpu-1") and bool(lab.daemons["dpu-0"]._exchange.devices))
    status = lab.status("dpu-0")
    assert status.applied_revision == revision(tables_for("dpu-0"))
    assert dict(status.key_epochs) == {NETWORK.hex(): 1}
    assert lab.factories["dpu-0"].made == ["blue-0"]
    assert lab.factories["dpu-1"].made == ["blue-1"]
    await lab.until(lambda: read_health(lab.daemons["dpu-0"]._spec.state_dir).ready)


async def both_ready(lab: Lab, **changes) -> None:
    lab.run("dpu-0", **changes)
    lab.run("dpu-1", **changes)
    await lab.until(
        lambda: lab.ready("dpu-0", "dpu-1") and all(daemon._exchange.devices for daemon in lab.daemons.values())
    )


async def test_revoked_peer_is_removed_and_acknowledged_and_the_device_goes_dark(lab):
    await both_ready(lab)
    generation = lab.control.revoke("dpu-1")
    await lab.until(lambda: lab.control.known["dpu-0"].applied == [generation])
    assert lab.daemons["dpu-0"]._exchange.devices == ()
    await lab.until(lambda: dict(lab.status("dpu-0").key_epochs) == {NETWORK.hex(): 2})
    await lab.until(lambda: lab.daemons["dpu-1"]._life.phase == "refused")
    assert lab.daemons["dpu-1"]._life.lease_deadline_ns == 0
    assert lab.daemons["dpu-1"]._exchange.epochs == {}


async def test_worker_that_hangs_is_ended_before_a_revocation_is_acknowledged(lab):
    await both_ready(lab)
    worker = lab.daemons["dpu-0"]._supervisor._worker.pid
    os.kill(worker, signal.SIGSTOP)
    generation = lab.control.revoke("dpu-1")
    await lab.until(lambda: lab.control.known["dpu-0"].applied == [generation])
    assert not is_alive(worker)
    await lab.until(lambda: lab.ready("dpu-0"))


async def test_list_made_before_a_revocation_does_not_bring_the_device_back(lab):
    await both_ready(lab)
    before = agent_pb2.Peers(generation=lab.control.generation, peers=[lab.control.peer("dpu-1")])
    generation = lab.control.revoke("dpu-1")
    lab.control.push("dpu-0", peers=before)
    lab.control.push("dpu-0", sa=agent_pb2.SaEnvelope(device="dpu-1", envelope=b"late"))
    lab.control.push_config("dpu-0", generation=generation + 1000)
    await lab.until(lambda: lab.status("dpu-0").applied_generation == generation + 1000)
    assert lab.control.known["dpu-0"].applied == [generation]
    assert lab.daemons["dpu-0"]._exchange.devices == ()


async def test_restored_device_comes_back_with_a_newer_boot_and_new_keys(lab):
    lab.control.interval_ms = 300
    await both_ready(lab)
    known = lab.control.known["dpu-1"]
    boots, keys = set(known.boots), lab.daemons["dpu-1"]._attester._keys
    lab.control.revoke("dpu-1")
    await lab.until(lambda: lab.daemons["dpu-1"]._life.phase == "refused")
    known.state = "affirming"
    await lab.until(lambda: lab.ready("dpu-0", "dpu-1") and bool(lab.daemons["dpu-0"]._exchange.devices))
    assert max(known.boots) > max(boots)
    assert lab.daemons["dpu-1"]._attester._keys != keys


async def test_contraindicated_device_keeps_its_stream_and_moves_nothing(lab):
    lab.control.interval_ms = 300
    await both_ready(lab)
    lab.control.known["dpu-1"].state = "contraindicated"
    await lab.until(lambda: lab.status("dpu-1").waiting_for.startswith("lease (refused: contraindicated"))
    lab.control.known["dpu-1"].state = "affirming"
    await lab.until(lambda: lab.ready("dpu-1"))


async def test_cut_off_agent_goes_stale_and_recovers_without_restart(lab):
    lab.control.interval_ms, lab.control.lease_ms = 500, 2000
    await both_ready(lab)
    await lab.control.stop()
    await lab.until(lambda: all(daemon._life.phase == "stale" for daemon in lab.daemons.values()))
    health = read_health(lab.daemons["dpu-0"]._spec.state_dir)
    await lab.until(lambda: not read_health(lab.daemons["dpu-0"]._spec.state_dir).ready)
    assert health.pid == os.getpid()
    for known in lab.control.known.values():
        known.status, known.stream = agent_pb2.AgentStatus(), None
    await lab.control.start(lab.ports)
    await lab.until(lambda: lab.ready("dpu-0", "dpu-1") and bool(lab.daemons["dpu-0"]._exchange.devices))
    # Whoever lost its lease asks as a device that starts: it holds no SA with anybody.
    assert any(begin.lease.binding_sha256 == b"" for begin in lab.control.known["dpu-0"].begins[1:])


async def test_renewals_keep_the_binding_and_the_stream(lab):
    lab.control.interval_ms = 200
    await both_ready(lab)
    known = lab.control.known["dpu-0"]
    await lab.until(lambda: len(known.begins) >= 4)
    names = [begin.lease.binding_sha256 for begin in known.begins]
    assert names[0] == b""
    assert set(names[1:]) == {binding_sha256(known.binding)}
    assert len({begin.lease.kem_public_key for begin in known.begins}) == len(known.begins)
    assert len(known.hellos) == 1


async def test_new_binding_makes_a_new_stream_before_the_old_one_ends(lab):
    lab.control.interval_ms = 300
    await both_ready(lab)
    known = lab.control.known["dpu-0"]
    known.binding = b""  # control forgot it, so it asks for a new one
    await lab.until(lambda: len(known.hellos) == 2)
    assert known.hellos[0].binding_sha256 != known.hellos[1].binding_sha256
    await lab.until(lambda: lab.ready("dpu-0", "dpu-1"))
    assert lab.daemons["dpu-0"]._life.phase == "leased"


async def test_dead_worker_is_replaced_and_everything_is_attached_again(lab):
    await both_ready(lab)
    daemon, known = lab.daemons["dpu-0"], lab.control.known["dpu-0"]
    first = known.instance
    channel = daemon._supervisor.channel
    assert channel is not None
    channel.send(mailbox.RotateMasterKey(True))  # makes this small worker abort
    await lab.until(lambda: known.instance not in (b"", first))
    await lab.until(lambda: lab.ready("dpu-0", "dpu-1"))
    assert lab.factories["dpu-0"].made == ["blue-0", "blue-0"]
    await lab.until(lambda: lab.daemons["dpu-1"]._exchange._peers["dpu-0"].peer.party.instance == known.instance)


@pytest.mark.parametrize("door", ["spdm_socket", "binding_socket"])
async def test_root_of_trust_that_lost_a_socket_is_started_anew(lab, door):
    lab.control.interval_ms = 300
    await both_ready(lab)
    daemon = lab.daemons["dpu-0"]
    first = daemon._supervisor._root.pid
    lab.control.known["dpu-0"].binding = b""  # the boot that it stands for is about to be over
    getattr(daemon._doors, door).unlink()
    await lab.until(lambda: daemon._supervisor._root is not None and daemon._supervisor._root.pid != first)
    await lab.until(lambda: daemon._doors.are_open and lab.ready("dpu-0", "dpu-1"))
    assert daemon._life.phase == "leased"


async def test_root_of_trust_that_hangs_is_started_anew(lab, monkeypatch):
    monkeypatch.setattr("ztdpu.agent.daemon.DOOR_FAILURES_LIMIT", 1)
    lab.control.interval_ms = 300
    await both_ready(lab)
    daemon = lab.daemons["dpu-0"]
    first = daemon._supervisor._root.pid
    lab.control.known["dpu-0"].binding = b""
    os.kill(first, signal.SIGSTOP)
    await lab.until(lambda: daemon._supervisor._root is not None and daemon._supervisor._root.pid != first)
    await lab.until(lambda: daemon._doors.are_open and lab.ready("dpu-0", "dpu-1"))


async def test_lost_virtual_function_is_made_again(lab):
    await both_ready(lab)
    channel = lab.daemons["dpu-0"]._supervisor.channel
    assert channel is not None
    channel.send(mailbox.DetachEndpoint(endpoint_id("dpu-0")))  # this small worker answers with endpoint-down
    await lab.until(lambda: lab.factories["dpu-0"].made == ["blue-0", "blue-0"])
    await lab.until(lambda: lab.ready("dpu-0"))


async def test_control_with_another_authority_is_not_spoken_to(lab):
    other = create_authority(DOMAIN, datetime.now(UTC), ec.generate_private_key(ec.SECP384R1()), 8)
    (lab.root / "bundle.pem").write_bytes(other.certificate.public_bytes(Encoding.PEM))
    daemon = lab.run("dpu-0")
    await lab.until(lambda: daemon._life.reason.startswith("control at"))
    assert lab.control.known["dpu-0"].begins == []
    assert daemon._life.phase == "attesting"


async def test_control_of_another_domain_is_not_spoken_to(lab):
    daemon = lab.run("dpu-0", trustDomain="ztdpu.other")
    await lab.until(lambda: daemon._life.reason.startswith("control at"))
    assert lab.control.known["dpu-0"].begins == []


async def test_roster_of_nobody_leaves_the_agent_without_peers(lab, refusals):
    lab.control.operator = Ed25519PrivateKey.generate()
    lab.run("dpu-0")
    await lab.until(lambda: lab.status("dpu-0").waiting_for == "roster")
    lab.control.push_config("dpu-0")
    await lab.until(lambda: [message for _, message, _ in refusals()].count("config") == 2)
    assert "roster" in {message for _, message, _ in refusals()}
    assert lab.daemons["dpu-0"]._exchange.devices == ()
    assert lab.status("dpu-0").applied_revision == b""


async def test_roster_never_goes_back_even_after_a_restart(lab):
    lab.control.roster = replace(lab.control.roster, serial=5)
    lab.run("dpu-0")
    await lab.until(lambda: lab.ready("dpu-0"))
    await lab.end("dpu-0")
    lab.control.roster = replace(lab.control.roster, serial=4)
    lab.control.known["dpu-0"].status = agent_pb2.AgentStatus()
    lab.run("dpu-0")
    await lab.until(lambda: lab.status("dpu-0").waiting_for == "roster")


async def test_older_boot_of_a_peer_is_refused_even_after_a_restart(lab):
    await both_ready(lab)
    older, floors = lab.control.peer("dpu-1"), lab.daemons["dpu-0"]._conversation._book.floors
    device_id = lab.control.roster.find_device("dpu-1").device_id_sha256.hex()
    first = floors[device_id].boot_counter
    lab.control.known["dpu-1"].binding = b""  # the boot that it stands for is about to be over
    lab.daemons["dpu-1"]._supervisor.reboot_root()
    await lab.until(lambda: floors[device_id].boot_counter > first)
    newest = floors[device_id].boot_counter
    await lab.until(lambda: lab.ready("dpu-0", "dpu-1"))
    await lab.end("dpu-0")
    show, turned_back = lab.control.peer, [True]
    lab.control.peer = lambda name: older if name == "dpu-1" and turned_back else show(name)
    daemon = lab.run("dpu-0")
    await lab.until(lambda: "dpu-1" in daemon._conversation._book._refused)
    assert "older than one that was accepted" in daemon._conversation._book._refused["dpu-1"]
    assert daemon._exchange.devices == ()
    turned_back.clear()
    lab.control.push_peers()
    await lab.until(lambda: daemon._exchange.devices == ("dpu-1",))
    assert daemon._conversation._book.floors[device_id].boot_counter == newest


async def test_device_that_the_roster_does_not_list_is_no_peer(lab):
    roster = lab.control.roster
    lab.control.roster = replace(
        roster, devices=tuple(replace(one, device_id_sha256=sha256(one.name.encode())) for one in roster.devices)
    )
    lab.run("dpu-0")
    lab.run("dpu-1")
    book = lab.daemons["dpu-0"]._conversation._book
    await lab.until(lambda: "dpu-1" in book._refused)
    assert "roster" in book._refused["dpu-1"]
    assert lab.daemons["dpu-0"]._exchange.devices == ()


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"generation": 50}, "tables of generation 50 are older than"),
        ({"revision": bytes(32)}, "tables do not match their revision"),
        ({"tables": b"\x80", "revision": sha256(b"\x80")}, "expected an array"),
        ({"tables": tables_for("dpu-1"), "revision": revision(tables_for("dpu-1"))}, "tables are for dpu-1, this is"),
    ],
    ids=["older generation", "another revision", "no tables", "another device"],
)
async def test_tables_that_do_not_fit_are_refused_and_leave_those_in_force(lab, refusals, changes, cause):
    await both_ready(lab)
    assert refusals() == []
    newer = lab.control.generation + 1000
    lab.control.push_config("dpu-0", **{"generation": newer} | changes)
    await lab.until(lambda: bool(refusals()))
    ((code, message, why),) = refusals()
    assert (code, message) == (TablesError.code, "config")
    assert why.startswith(cause)
    in_force = lab.daemons["dpu-0"]._conversation
    assert in_force.applied_revision == revision(tables_for("dpu-0"))
    assert in_force.applied_generation < newer
    lab.control.push_config("dpu-0", generation=newer)
    await lab.until(lambda: in_force.applied_generation == newer)


async def test_stopping_leaves_no_child(lab):
    await both_ready(lab)
    daemon = lab.daemons["dpu-0"]
    children = [daemon._supervisor._root.pid, daemon._supervisor._worker.pid]
    async with asyncio.timeout(30):
        await lab.end("dpu-0")
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@contextlib.asynccontextmanager
async def agent_process(lab: Lab, device: str):
    """`ztdpu agent run` as its own process, with the real worker."""
    spec = lab.spec(device)
    document = AgentConfiguration(api_version="ztdpu.dev/v1", kind="AgentConfiguration", spec=spec)
    file = lab.root / f"{device}.yaml"
    file.write_text(document.model_dump_json(by_alias=True, exclude_none=True))
    make_state_dir(spec)
    if device not in lab.factories:
        lab.factories[device] = SmallFactory(spec.virtual_functions.factory_socket)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ztdpu", "agent", "run", "--config", str(file), cwd=Path(__file__).parents[2]
    )
    try:
        yield process, file
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="UDP port 1000 needs root")
async def test_real_processes_come_up_stay_small_and_end(lab):
    async with agent_process(lab, "dpu-0") as (process, file):
        await lab.until(lambda: lab.status("dpu-0").applied_revision != b"")
        children = children_of(process.pid)
        assert len(children) == 2
        assert resident_mib(process.pid) < 150
        check = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ztdpu", "agent", "healthcheck", "--config", str(file), cwd=Path(__file__).parents[2]
        )
        assert await check.wait() in (0, 1)
        process.terminate()
        async with asyncio.timeout(30):
            assert await process.wait() == 0
    await lab.until(lambda: not any(map(is_alive, children)))


@pytest.mark.skipif(os.geteuid() != 0, reason="UDP port 1000 needs root")
async def test_real_workers_get_keys_ahead_of_need_and_again_after_a_rotation(lab):
    for device in ("dpu-0", "dpu-1"):
        lab.run(device, worker=(sys.executable, "-m", "ztdpu.agent.worker", "--mailbox-fd"))
    daemons = [lab.daemons["dpu-0"], lab.daemons["dpu-1"]]
    await lab.until(lambda: all(one._exchange.devices and not one._exchange.missing() for one in daemons))
    before = await send_spis(daemons[0])
    assert len(before) == 1
    lab.control.push("dpu-1", rotate=agent_pb2.RotateKeys())  # dpu-1 receives what dpu-0 sends
    async with asyncio.timeout(45):
        while True:
            after = await send_spis(daemons[0])
            if after and after != before:
                break
            await asyncio.sleep(0.02)
    assert {spi >> 31 for spi in after} != {spi >> 31 for spi in before}


async def send_spis(daemon: Daemon) -> set[int]:
    channel = daemon._supervisor.channel
    assert channel is not None
    token = channel.next_token()
    answer = await channel.ask(mailbox.GetStatistics(token), mailbox.Statistics, key=token)
    return {row[4] for row in answer.send_sas}


@pytest.mark.skipif(os.geteuid() != 0, reason="UDP port 1000 needs root")
async def test_killed_daemon_leaves_no_process(lab):
    async with agent_process(lab, "dpu-0") as (process, _):
        await lab.until(lambda: lab.status("dpu-0").applied_revision != b"")
        children = children_of(process.pid)
        process.kill()
        await process.wait()
    await lab.until(lambda: not any(map(is_alive, children)))


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def resident_mib(pid: int) -> float:
    line = next(one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS"))
    return int(line.split()[1]) / 1024
