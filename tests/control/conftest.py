"""A control process on loopback with real TLS and SQLite, and agents that attest through the emulated root of trust."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from grpc import aio

from ztdpu.agent.own_keys import (
    OwnKeys,
    generate_kem_key,
    generate_own_keys,
    make_csr,
    prove_possession,
    sign_hello,
    sign_lease_request,
)
from ztdpu.control.configuration import ControlConfiguration
from ztdpu.control.run import ControlProcess
from ztdpu.keys.kem import kem_public_octets
from ztdpu.rpc.client import ControlClient
from ztdpu.trust import dice
from ztdpu.trust.binding import BindRequest, binding_sha256
from ztdpu.trust.firmware import Firmware, default_firmware
from ztdpu.trust.manufacture import DeviceSecrets, create_manufacturer
from ztdpu.trust.profile import load_profile
from ztdpu.trust.root import EmulatedRoot
from ztdpu.trust.roster import Roster, RosterDevice, RosterNetwork, encode_roster, sign_roster
from ztdpu.v1 import agent_pb2, agent_pb2_grpc, attestation_pb2, attestation_pb2_grpc

TRUST_DOMAIN = "test.example"
POLICIES = Path(__file__).parents[2] / "policies"
PROFILE = load_profile("bluefield-3")
DEVICES = ("dpu-0", "dpu-1")
_HELLOS = itertools.count(1)
TENANTS = ("blue", "green", "red")


PEERING_ID = b"blue-green".ljust(16, b"-")
"""Network of the examples' Peering."""


@dataclass
class Plant:
    """Files of one deployment: policy, roster, manufacturer, device secrets."""

    folder: Path
    secrets: dict[str, DeviceSecrets]
    operator_key: Ed25519PrivateKey
    networks: dict[str, bytes]
    serial: int = 1
    lease_s: float = 60
    svid_s: int = 600

    @property
    def policy_dir(self) -> Path:
        return self.folder / "policy"

    def sign_roster(self) -> None:
        roster = Roster(
            serial=self.serial,
            trust_domain=TRUST_DOMAIN,
            devices=tuple(
                RosterDevice(name=name, device_id_sha256=device_id_sha256(one), tenants=TENANTS)
                for name, one in sorted(self.secrets.items())
                if name in DEVICES
            ),
            networks=(
                *(RosterNetwork(tenant=t, network_id=network, generation=1) for t, network in self.networks.items()),
                RosterNetwork(tenant="blue-green", network_id=PEERING_ID, generation=1, members=("blue", "green")),
            ),
        )
        blob = encode_roster(roster)
        (self.folder / "roster.cbor").write_bytes(blob)
        (self.folder / "roster.sig").write_text(sign_roster(blob, self.operator_key))

    def configuration(self) -> ControlConfiguration:
        return ControlConfiguration.model_validate(
            {
                "apiVersion": "ztdpu.dev/v1",
                "kind": "ControlConfiguration",
                "spec": {
                    "trustDomain": TRUST_DOMAIN,
                    "stateDir": self.folder / "state",
                    "policyDir": self.policy_dir,
                    "rosterFile": self.folder / "roster.cbor",
                    "rosterSignatureFile": self.folder / "roster.sig",
                    "rosterKeysFile": self.folder / "operators",
                    "manufacturerRootsFile": self.folder / "roots.pem",
                    "listen": {"enrolment": "127.0.0.1:0", "main": "127.0.0.1:0"},
                    "adminSocket": self.folder / "admin" / "admin.sock",
                    "attestation": {"intervalS": 1, "leaseS": self.lease_s, "svidS": self.svid_s},
                },
            }
        )


def device_id_sha256(one: DeviceSecrets) -> bytes:
    import hashlib

    return hashlib.sha256(dice.encode_spki(dice.derive_key(one.uds).public_key())).digest()


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    now = datetime.now(UTC) - timedelta(hours=1)
    manufacturer = create_manufacturer(profile=PROFILE, random=secrets.token_bytes, now=now)
    made = {
        name: manufacturer.make_device(serial=f"SN-{name}", uds=secrets.token_bytes(32), now=now)
        for name in (*DEVICES, "stranger")
    }
    operator_key = Ed25519PrivateKey.generate()
    public = operator_key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    (tmp_path / "operators").write_text(f"{public} operator\n")
    (tmp_path / "roots.pem").write_text(manufacturer.root_pem())
    # Without its policy tests: most tests here change something that these would refuse.
    shutil.copytree(POLICIES, tmp_path / "policy", ignore=shutil.ignore_patterns("tests"))
    plant = Plant(
        folder=tmp_path,
        secrets=made,
        operator_key=operator_key,
        networks={tenant: secrets.token_bytes(16) for tenant in TENANTS},
    )
    plant.sign_roster()
    return plant


@dataclass
class Agent:
    """A device with its agent, as far as control can tell; every answer can be tampered with."""

    name: str
    process: ControlProcess
    device: DeviceSecrets
    firmware: Firmware | None = None
    boot_counter: int = 1
    keys: OwnKeys = field(default_factory=generate_own_keys)
    token: str = ""
    applied_generation: int = 0
    binding: bytes = b""
    svid: tuple[bytes, ...] = ()
    worker_instance: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    kem: Any = None
    asked: dict[str, Any] = field(default_factory=dict)
    """What a proof of possession covers of the lease request."""
    challenged: int = 0
    root: EmulatedRoot = field(init=False)

    def __post_init__(self) -> None:
        self.boot()

    def boot(self) -> None:
        self.root = EmulatedRoot(
            secrets=self.device,
            profile=PROFILE,
            firmware=self.firmware or default_firmware(PROFILE),
            boot_counter=self.boot_counter,
            boot_nonce=secrets.token_bytes(16),
            random=secrets.token_bytes,
        )

    def reboot(self) -> None:
        """A newer boot and new keys, as after a revocation."""
        self.boot_counter += 1
        self.keys = generate_own_keys()
        self.binding = b""
        self.boot()

    def channel(self, port: int, *, mutual: bool) -> aio.Channel:
        name = f"control.{TRUST_DOMAIN}"
        pem = b"".join(x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM) for der in self.svid)
        credentials = grpc.ssl_channel_credentials(
            root_certificates=self.process.issuer.bundle_pem,
            private_key=self.keys.tls_key_pem if mutual and pem else None,
            certificate_chain=pem if mutual and pem else None,
        )
        options = [
            ("grpc.ssl_target_name_override", name),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
        ]
        return aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options)

    def begin(self, **changes: Any) -> attestation_pb2.AttestRequest:
        self.kem = generate_kem_key()
        lease: dict[str, Any] = {
            "binding_sha256": binding_sha256(self.binding) if self.binding else b"",
            "applied_generation": self.applied_generation,
            "kem_public_key": kem_public_octets(self.kem),
        }
        self.asked = {name: lease[name] for name in ("applied_generation", "kem_public_key")}
        signature = sign_lease_request(self.keys, device=self.name, **lease)
        lease |= {"offer_signature": signature} | changes
        return attestation_pb2.AttestRequest(
            begin=attestation_pb2.AttestBegin(
                device=self.name, join_token=self.token, lease=attestation_pb2.LeaseRequest(**lease)
            )
        )

    def bind(self, nonce: bytes, *, keys: OwnKeys | None = None, **changes: Any) -> attestation_pb2.AttestRequest:
        keys = keys or self.keys
        request: dict[str, Any] = {
            "trust_domain": TRUST_DOMAIN,
            "nonce": nonce,
            "tls_spki_sha256": keys.tls_spki_sha256,
            "offer_spki": keys.offer_spki,
            "ttl_s": 3600,
            "agent_digest": b"\1" * 32,
        }
        self.binding = self.root.bind_keys(BindRequest(**request | changes))
        name = binding_sha256(self.binding)
        return attestation_pb2.AttestRequest(
            binding=attestation_pb2.BindingAnswer(
                key_binding=self.binding,
                csr=make_csr(keys, trust_domain=TRUST_DOMAIN, device=self.name),
                tls_possession=prove_possession(keys.tls_key, nonce=nonce, binding_sha256=name, **self.asked),
                offer_possession=prove_possession(keys.offer_key, nonce=nonce, binding_sha256=name, **self.asked),
            )
        )

    async def attest(
        self,
        *,
        begin: attestation_pb2.AttestRequest | None = None,
        spdm: Callable[[bytes], bytes] | None = None,
        bind: Callable[[bytes], attestation_pb2.AttestRequest] | None = None,
    ) -> attestation_pb2.AttestResult:
        async with self.channel(self.process.enrolment_port, mutual=False) as channel:
            call = attestation_pb2_grpc.AttestationServiceStub(channel).Attest()
            await call.write(begin or self.begin())
            while True:
                response = await call.read()
                if response is aio.EOF:
                    await call.wait_for_connection()
                    raise AssertionError(await call.code())
                match response.WhichOneof("step"):
                    case "spdm":
                        answer = (spdm or self.root.spdm)(response.spdm)
                        await call.write(attestation_pb2.AttestRequest(spdm=answer))
                    case "bind":
                        self.challenged += 1
                        await call.write((bind or self.bind)(response.bind.nonce))
                    case "result":
                        if response.result.svid:
                            self.svid = tuple(response.result.svid)
                        return response.result


@dataclass
class Stream:
    """An open Connect stream."""

    call: Any
    channel: aio.Channel

    async def send(self, **message: Any) -> None:
        await self.call.write(agent_pb2.AgentMessage(**message))

    async def receive(self, kind: str | None = None, *, limit_s: float = 30) -> agent_pb2.ControlMessage:
        """The next message (of that kind); a refusal raises."""
        async with asyncio.timeout(limit_s):
            while True:
                message = await self.call.read()
                if message is aio.EOF:
                    raise AssertionError("stream ended without an error")
                if kind is None or message.WhichOneof("message") == kind:
                    return message

    async def code(self, *, limit_s: float = 30) -> grpc.StatusCode:
        """How the stream ended."""
        async with asyncio.timeout(limit_s):
            try:
                while await self.call.read() is not aio.EOF:
                    pass
            except aio.AioRpcError:
                pass
            return await self.call.code()

    async def close(self) -> None:
        self.call.cancel()
        await self.channel.close()


async def connect(agent: Agent, **changes: Any) -> Stream:
    channel = agent.channel(agent.process.main_port, mutual=True)
    call = agent_pb2_grpc.AgentServiceStub(channel).Connect()
    hello = {
        "device": agent.name,
        "binding_sha256": binding_sha256(agent.binding),
        "worker_instance": agent.worker_instance,
        "number": next(_HELLOS),
    } | changes
    hello["offer_signature"] = sign_hello(agent.keys, **hello) if "offer_signature" not in changes else b""
    with suppress(grpc.RpcError):  # refused before the hello was out: the caller reads the code
        await call.write(agent_pb2.AgentMessage(hello=agent_pb2.AgentHello(**hello | changes)))
    return Stream(call, channel)


@pytest.fixture
async def open_stream() -> AsyncIterator[Callable[..., Any]]:
    streams: list[Stream] = []

    async def open_one(agent: Agent, **changes: Any) -> Stream:
        streams.append(await connect(agent, **changes))
        return streams[-1]

    yield open_one
    for stream in streams:
        await stream.close()


@pytest.fixture
async def process(plant: Plant) -> AsyncIterator[ControlProcess]:
    process = ControlProcess(plant.configuration())
    await process.start()
    yield process
    await process.stop()


class Admin:
    """The synchronous client, usable from a test's loop."""

    def __init__(self, client: ControlClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        async def call(*arguments: Any, **keywords: Any) -> Any:
            return await asyncio.to_thread(method, *arguments, **keywords)

        return call


@pytest.fixture
async def admin(process: ControlProcess) -> AsyncIterator[Admin]:
    with ControlClient.connect(str(process.spec.admin_socket)) as client:
        yield Admin(client)


@pytest.fixture
def make_agent(plant: Plant, process: ControlProcess, admin: Admin) -> Callable[..., Any]:
    async def make(name: str = "dpu-0", *, token: bool = True, secrets_of: str = "", **changes: Any) -> Agent:
        agent = Agent(name, process, plant.secrets[secrets_of or name], **changes)
        if token:
            agent.token = (await admin.create_join_token(name)).token
        return agent

    return make


@pytest.fixture
def make_bare_agent(plant: Plant) -> Callable[[str, ControlProcess], Agent]:
    """An agent of any control process, without a token."""
    return lambda name, process: Agent(name, process, plant.secrets[name])
