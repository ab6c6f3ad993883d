"""Attacks on attestation against a real control: replayed, relayed, rolled back, duplicated, out of time, changed later.

Every attack is followed by its honest twin, and every refusal has a leaf in the audit log with its reason and device.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from cryptography import x509
from grpc import aio

from tests.control.conftest import PROFILE, Agent
from ztdpu.agent.own_keys import generate_own_keys
from ztdpu.control.devices.leases import Instant
from ztdpu.control.doors import refusals
from ztdpu.control.run import ControlProcess
from ztdpu.model.device import DeviceState
from ztdpu.rpc.client import ControlClient
from ztdpu.trust import manufacture
from ztdpu.trust.firmware import Firmware, default_firmware
from ztdpu.trust.manufacture import create_manufacturer
from ztdpu.v1 import attestation_pb2, attestation_pb2_grpc

UP_TO_DATE = 1 << 50
"""An applied generation beyond all revocations: whether those were applied is tested elsewhere."""


@pytest.fixture(autouse=True)
def _every_refusal_has_its_leaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate at which strangers' refusals are written is tested elsewhere; here each of them counts."""
    for name in ("ADDRESS_BURST", "TOTAL_BURST"):
        monkeypatch.setattr(refusals, name, 1e6)


@dataclass
class Line:
    """One channel to the enrolment port, for many attempts."""

    agent: Agent
    channel: aio.Channel
    outcomes: Counter[str] = field(default_factory=Counter)

    async def attempt(
        self,
        *,
        begin: attestation_pb2.AttestRequest | None = None,
        spdm: Callable[[bytes], bytes] | None = None,
        bind: Callable[[bytes], attestation_pb2.AttestRequest] | None = None,
    ) -> attestation_pb2.AttestResult | None:
        """One attestation; counts how it ended. None: refused."""
        agent = self.agent
        call = attestation_pb2_grpc.AttestationServiceStub(self.channel).Attest()
        try:
            await call.write(begin or agent.begin())
            while (response := await call.read()) is not aio.EOF:
                step = response.WhichOneof("step")
                if step == "result":
                    granted = response.result.HasField("lease") or bool(response.result.svid)
                    self.outcomes["granted" if granted else response.result.state] += 1
                    return response.result
                if step == "spdm":
                    answer = attestation_pb2.AttestRequest(spdm=(spdm or agent.root.spdm)(response.spdm))
                else:
                    answer = (bind or agent.bind)(response.bind.nonce)
                await call.write(answer)
        except aio.AioRpcError as error:
            self.outcomes[error.details() or str(error.code())] += 1
            return None
        except asyncio.InvalidStateError:
            pass
        self.outcomes[await call.details() or str(await call.code())] += 1
        return None


@pytest.fixture
async def open_line() -> AsyncIterator[Callable[[Agent], Line]]:
    lines: list[Line] = []

    def open_one(agent: Agent) -> Line:
        lines.append(Line(agent, agent.channel(agent.process.enrolment_port, mutual=False)))
        return lines[-1]

    yield open_one
    for line in lines:
        await line.channel.close()


async def leaves(admin: Any, device: str) -> Counter[str]:
    """Refused attestations of a device in the audit log, by reason."""
    found: Counter[str] = Counter()
    first = 0
    while entries := await admin.list_audit(first=first, limit=500):
        for entry in entries:
            leaf = json.loads(entry.leaf)
            if (leaf["action"], leaf["subject"], leaf["outcome"]) == ("attest", device, "refused"):
                found[leaf["reason"]] += 1
        first = entries[-1].index + 1
    return found


@dataclass
class Recorder:
    """Keeps what a genuine device answered, and plays it again."""

    root: Any
    answers: list[bytes] = field(default_factory=list)
    played: int = 0

    def record(self, request: bytes) -> bytes:
        self.answers.append(self.root.spdm(request))
        return self.answers[-1]

    def replay(self, _request: bytes) -> bytes:
        self.played += 1
        return self.answers[(self.played - 1) % len(self.answers)]


# --- A1: replay ---


@pytest.mark.parametrize("rounds", [pytest.param(25, id="75"), pytest.param(334, id="1002", marks=pytest.mark.soak)])
async def test_replayed_evidence_is_never_accepted(plant, rounds, open_line) -> None:
    process = ControlProcess(plant.configuration())
    await process.start()
    agent = await enrol(plant, process)
    line, recorder, bindings = open_line(agent), Recorder(agent.root), []

    def bind(nonce: bytes) -> attestation_pb2.AttestRequest:
        bindings.append(agent.bind(nonce))
        return bindings[-1]

    agent.token = ""
    begin = agent.begin(offer_signature=b"")
    assert await line.attempt(begin=begin, spdm=recorder.record, bind=bind)
    line.outcomes.clear()
    for _ in range(rounds):
        recorder.played = 0
        assert await line.attempt(begin=begin, spdm=recorder.replay, bind=lambda _n: bindings[0]) is None
        # the measurements alone are old; then only the binding is
        fresh = Mixed(agent.root, recorder.answers[-1])
        assert await line.attempt(begin=begin, spdm=fresh.answer, bind=lambda _n: bindings[0]) is None
    assert line.outcomes["granted"] == 0
    before = process.fleet.record("dpu-0")
    await process.stop()

    process = ControlProcess(plant.configuration())  # restarted: its nonces are others again
    await process.start()
    agent.process = process
    line = open_line(agent)
    for number in range(rounds):
        recorder.played = 0
        spdm = recorder.replay if number % 2 else agent.root.spdm
        assert await line.attempt(begin=begin, spdm=spdm, bind=lambda _n: bindings[0]) is None
    assert line.outcomes["granted"] == 0
    assert set(line.outcomes) <= {"spdm", "evidence", "binding"}
    assert process.fleet.record("dpu-0").binding_sha256 == before.binding_sha256
    with ControlClient.connect(str(process.spec.admin_socket)) as client:
        audited = await leaves(Asynchronous(client), "dpu-0")
    assert audited.total() == 3 * rounds
    assert await line.attempt()  # the twin: fresh answers, same channel
    assert line.outcomes["granted"] == 1
    await process.stop()


@dataclass
class Mixed:
    """A genuine device whose last answer is replaced by an older one of its own."""

    root: Any
    old: bytes

    def answer(self, request: bytes) -> bytes:
        fresh = self.root.spdm(request)
        return self.old if fresh[1] == self.old[1] else fresh


class Asynchronous:
    """The synchronous client in a thread."""

    def __init__(self, client: ControlClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        async def call(*arguments: Any, **keywords: Any) -> Any:
            return await asyncio.to_thread(method, *arguments, **keywords)

        return call


async def enrol(plant: Any, process: ControlProcess, name: str = "dpu-0", **changes: Any) -> Agent:
    with ControlClient.connect(str(process.spec.admin_socket)) as client:
        token = (await asyncio.to_thread(client.create_join_token, name)).token
    agent = Agent(name, process, plant.secrets[name], token=token, applied_generation=UP_TO_DATE, **changes)
    assert (await agent.attest()).state == "affirming"
    return agent


# --- A2: relay ---


async def test_relayed_evidence_is_never_accepted(make_agent, open_line, admin, process) -> None:
    """X is genuine and enrolled; Y holds another genuine device and everything that X sends, except X's door two."""
    x, y = [await make_agent(name, applied_generation=UP_TO_DATE) for name in ("dpu-0", "dpu-1")]
    for agent in (x, y):
        assert (await agent.attest()).state == "affirming"
        agent.token = ""
    known = process.fleet.record("dpu-0").binding_sha256
    as_x = Agent("dpu-0", process, y.device, boot_counter=y.boot_counter)
    as_x.root = y.root
    as_itself, stolen = open_line(y), x.binding
    line = open_line(as_x)

    def with_stolen_binding(nonce: bytes) -> attestation_pb2.AttestRequest:
        message = as_x.bind(nonce)
        message.binding.key_binding = stolen
        return message

    def with_other_domain(nonce: bytes) -> attestation_pb2.AttestRequest:
        return as_x.bind(nonce, trust_domain="other.example")

    rounds = 40
    for _ in range(rounds):
        begin = as_x.begin(offer_signature=b"")
        await line.attempt(begin=begin, spdm=x.root.spdm)  # X's evidence, keys bound by Y's own root
        await line.attempt(begin=begin, spdm=x.root.spdm, bind=with_stolen_binding)  # X's old binding, Y's keys
        await line.attempt(begin=begin, spdm=x.root.spdm, bind=with_other_domain)
        await line.attempt(begin=begin)  # its own evidence under X's name
        await as_itself.attempt(begin=y.begin(offer_signature=b""), spdm=x.root.spdm)  # X's evidence under its own
    outcomes = line.outcomes + as_itself.outcomes
    assert outcomes["granted"] == 0
    assert set(outcomes) == {"binding", "certificate"}
    assert outcomes.total() == 5 * rounds
    assert process.fleet.record("dpu-0").binding_sha256 == known
    assert await leaves(admin, "dpu-0") == Counter({"binding": 3 * rounds, "certificate": rounds})
    assert await leaves(admin, "dpu-1") == Counter({"certificate": rounds})
    for agent in (x, y):
        agent.keys = generate_own_keys()
        agent.binding = b""
        assert (await agent.attest()).HasField("lease")


# --- A3: rollback ---


@pytest.mark.parametrize("component", ["version", "nic-rollback-counters", "arm-rollback-counters"])
async def test_one_version_below_the_highest_ever_seen(component, make_agent, admin) -> None:
    shipped = default_firmware(PROFILE)
    agent = await make_agent(firmware=shipped, applied_generation=UP_TO_DATE)
    assert (await agent.attest()).HasField("lease")
    agent.token, agent.firmware = "", _with(shipped, component, up=True)
    agent.reboot()
    assert (await agent.attest()).HasField("lease"), "the highest rises with it"
    agent.firmware = shipped
    agent.reboot()
    result = await agent.attest()
    assert (result.state, result.HasField("lease"), len(result.svid)) == ("contraindicated", False, 0)
    assert [(one.code, one.component) for one in result.findings] == [("version_rolled_back", component)]
    assert result.findings[0].index == PROFILE.component(component).index
    (reason,) = await leaves(admin, "dpu-0")
    assert component in reason
    await admin.restore_device("dpu-0", reason="the new one is faulty", allow_rollback=True)
    agent.reboot()
    assert (await agent.attest()).HasField("lease")  # once, and from then on this is the highest
    agent.reboot()
    assert (await agent.attest()).HasField("lease")


@pytest.mark.parametrize("component", ["version", "nic-rollback-counters", "arm-rollback-counters"])
async def test_one_version_below_the_minimum_of_policy(component, make_agent, admin, plant) -> None:
    agent = await make_agent(applied_generation=UP_TO_DATE)
    assert (await agent.attest()).HasField("lease")
    file = plant.policy_dir / "attestation" / "bluefield-3.yaml"
    text = file.read_text()
    older = {"version": '"1.0.0"', "nic-rollback-counters": '"1"', "arm-rollback-counters": '"1"'}[component]
    newer = {"version": '"99.0.0"', "nic-rollback-counters": '"99"', "arm-rollback-counters": '"99"'}[component]
    line = f"component: {component}, version: {older}"
    assert line in text
    file.write_text(text.replace(line, f"component: {component}, version: {newer}"))
    assert not (await admin.sync_policy()).faults
    # stored evidence is appraised again at once: nobody had to wait for the next
    assert (await admin.get_device("dpu-0")).state is DeviceState.CONTRAINDICATED
    (finding,) = (await admin.get_attestation("dpu-0")).findings
    assert (finding.code, finding.component) == ("version_below_minimum", component)
    place, row, _ = finding.source.rsplit(":", 2)
    assert place.endswith("bluefield-3.yaml")
    assert component in file.read_text().splitlines()[int(row) - 1]
    agent.token = ""
    assert not (await agent.attest()).HasField("lease")
    file.write_text(text)
    await admin.sync_policy()
    assert (await agent.attest()).HasField("lease")


async def test_reset_counter_below_the_last_seen(make_agent, admin) -> None:
    agent = await make_agent(boot_counter=5, applied_generation=UP_TO_DATE)
    assert (await agent.attest()).HasField("lease")
    agent.token = ""
    agent.boot_counter = 3  # reboot adds one: a lower counter than control has seen
    agent.reboot()
    with pytest.raises(aio.AioRpcError) as caught:
        await agent.attest()
    assert caught.value.details() == "evidence"
    assert await leaves(admin, "dpu-0") == Counter({"evidence": 1})
    agent.boot_counter = 5
    agent.reboot()
    assert (await agent.attest()).HasField("lease")


def _with(firmware: Firmware, component: str, *, up: bool) -> Firmware:
    value = firmware.components[component]
    step = 1 if up else -1
    if isinstance(value, int):
        changed: str | int = value + step
    else:
        *most, last = value.split(".")
        changed = ".".join([*most, str(int(last) + step)])
    return dataclasses.replace(firmware, components={**firmware.components, component: changed})


# --- A5: one name, many keys ---


async def test_fifty_devices_race_for_one_name_and_one_wins(plant, open_line) -> None:
    """Nothing pins dpu-1 beforehand; each of fifty genuine devices has a valid token of its own for it."""
    for file in (plant.policy_dir / "endpoints").glob("*.yaml"):
        file.write_text(file.read_text().replace("device: dpu-1", "device: dpu-0"))
    plant.secrets.pop("dpu-1")
    plant.sign_roster()
    now = datetime.now(UTC) - timedelta(hours=1)
    maker = create_manufacturer(profile=PROFILE, random=secrets.token_bytes, now=now)
    with (plant.folder / "roots.pem").open("a") as roots:
        roots.write(maker.root_pem())
    process = ControlProcess(plant.configuration())
    await process.start()
    with ControlClient.connect(str(process.spec.admin_socket)) as client:
        admin = Asynchronous(client)
        rivals = []
        for number in range(50):
            made = maker.make_device(serial=f"{number}", uds=secrets.token_bytes(32), now=now)
            rivals.append(
                Agent(
                    "dpu-1",
                    process,
                    made,
                    applied_generation=UP_TO_DATE,
                    token=(await admin.create_join_token("dpu-1")).token,
                )
            )
        lines = [open_line(rival) for rival in rivals]
        # 32 at once is what one address may have open
        gate = asyncio.Semaphore(25)

        async def enrol_one(line: Line) -> Any:
            async with gate:
                return await line.attempt()

        results = await asyncio.gather(*(enrol_one(line) for line in lines))
        outcomes = sum((line.outcomes for line in lines), Counter())
        assert outcomes["granted"] == 1
        assert set(outcomes) <= {"granted", "conflict", "certificate", "binding"}
        winner = next(rival for rival, result in zip(rivals, results, strict=True) if result)
        record = process.fleet.record("dpu-1")
        assert (await leaves(admin, "dpu-1")).total() == 49
        with pytest.raises(Exception, match="pinned"):
            await admin.create_join_token("dpu-1")
        for line in lines:
            if line.agent is not winner:
                assert await line.attempt() is None  # later, with the token that is still unspent
        after = process.fleet.record("dpu-1")
        assert (after.device_id_sha256, after.binding_sha256) == (record.device_id_sha256, record.binding_sha256)
        winner.token = ""
        assert (await winner.attest()).HasField("lease")
    await process.stop()


# --- A6: time ---


class ShiftedClock:
    """The machine's clocks, with the wall clock where a test wants it."""

    def __init__(self) -> None:
        import time

        self.offset_ms = 0
        self._time = time

    def now(self) -> Instant:
        return Instant(
            unix_ms=self._time.time_ns() // 1_000_000 + self.offset_ms,
            boottime_ns=self._time.clock_gettime_ns(self._time.CLOCK_BOOTTIME),
            boot_id="boot",
        )


class FrozenClock(ShiftedClock):
    """All clocks stand until a test moves them."""

    def __init__(self) -> None:
        super().__init__()
        self.unix_ms = self._time.time_ns() // 1_000_000
        self.boottime_ns = 10**15

    def now(self) -> Instant:
        return Instant(unix_ms=self.unix_ms, boottime_ns=self.boottime_ns, boot_id="boot")


@pytest.fixture
async def frozen(plant) -> AsyncIterator[tuple[ControlProcess, FrozenClock]]:
    clock = FrozenClock()
    process = ControlProcess(plant.configuration(), clock=clock)
    await process.start()
    yield process, clock
    await process.stop()


async def test_device_certificate_counts_from_its_first_second(plant, frozen, open_line) -> None:
    process, clock = frozen
    real_ms = clock.unix_ms
    device_id = x509.load_der_x509_certificate(plant.secrets["dpu-0"].certificates[-1])
    valid_ms = int(device_id.not_valid_before_utc.timestamp() * 1000)
    agent = await enrol(plant, process)
    agent.token = ""
    line = open_line(agent)
    for at_ms, accepted in (
        (valid_ms - 1, False),
        (valid_ms - 1000, False),
        (valid_ms - 3_600_000, False),
        (valid_ms, True),
        (valid_ms + 1000, True),
        (real_ms, True),
    ):
        clock.unix_ms = at_ms
        result = await line.attempt()
        assert (result is not None) is accepted, (at_ms - valid_ms, line.outcomes)
    assert line.outcomes["certificate"] == 3
    with process.fleet.transaction() as transaction:
        reasons = [json.loads(one.leaf) for one in transaction.list_audit(first=0, limit=1000)]
    assert sum(one["reason"] == "certificate" and one["subject"] == "dpu-0" for one in reasons) == 3


REFUSED = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}


@pytest.fixture
def last_ms(monkeypatch) -> int:
    """When every certificate of the devices ends: asked for before `plant`, which makes them."""
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    monkeypatch.setattr(manufacture, "NO_END", end)
    return int(end.timestamp() * 1000)


async def test_device_certificate_counts_to_its_last_second(last_ms, plant, frozen, open_line) -> None:
    process, clock = frozen
    real_ms = clock.unix_ms
    agent = await enrol(plant, process)
    agent.token = ""
    line = open_line(agent)
    for at_ms, accepted in (
        (last_ms, True),
        (last_ms + 1, False),
        (last_ms + 1000, False),
        (last_ms + 30_000, False),
        (last_ms + 3_600_000, False),
        (last_ms - 1000, True),
        (real_ms, True),
    ):
        clock.unix_ms = at_ms
        result = await line.attempt()
        assert (result is not None) is accepted, (at_ms - last_ms, line.outcomes)
    assert line.outcomes["certificate"] == 4


async def test_an_svid_counts_from_its_first_to_its_last_second(plant, frozen, open_stream) -> None:
    """By control's own clock; OpenSSL below looks at the machine's, by which it is good all the time."""
    process, clock = frozen
    agent = await enrol(plant, process)
    certificate = x509.load_der_x509_certificate(agent.svid[0])
    first_ms, last_ms = (
        int(end.timestamp() * 1000) for end in (certificate.not_valid_before_utc, certificate.not_valid_after_utc)
    )
    for at_ms, accepted in (
        (first_ms - 1, False),
        (first_ms, True),
        (last_ms, True),
        (last_ms + 1, False),
        (last_ms + 30_000, False),
        (first_ms - 30_000, False),
    ):
        clock.unix_ms = at_ms
        stream = await open_stream(agent)
        if accepted:
            await stream.receive("config", limit_s=5)
            await stream.close()
        else:
            assert await stream.code(limit_s=5) in REFUSED, at_ms


async def test_a_stream_ends_after_the_last_second_of_its_svid(plant, frozen, open_stream) -> None:
    process, clock = frozen
    agent = await enrol(plant, process)
    last_ms = int(x509.load_der_x509_certificate(agent.svid[0]).not_valid_after_utc.timestamp() * 1000)
    stream = await open_stream(agent)
    await stream.receive("config", limit_s=5)
    clock.unix_ms = last_ms
    process.fleet.sweep()
    assert process.fleet.hub.get("dpu-0") is not None
    clock.unix_ms = last_ms + 1
    process.fleet.sweep()
    assert await stream.code(limit_s=5) is grpc.StatusCode.PERMISSION_DENIED


async def test_join_token_ends_to_the_millisecond(plant, frozen) -> None:
    process, clock = frozen
    with ControlClient.connect(str(process.spec.admin_socket)) as client:
        token = await asyncio.to_thread(client.create_join_token, "dpu-0", ttl_s=60)
    agent = Agent("dpu-0", process, plant.secrets["dpu-0"], token=token.token)
    clock.unix_ms = token.expires_unix_ms
    with pytest.raises(aio.AioRpcError) as caught:
        await agent.attest()
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    clock.unix_ms = token.expires_unix_ms - 1
    assert (await agent.attest()).HasField("lease")


@pytest.mark.parametrize("step_ms", [30_000, -30_000, 3_600_000, -3_600_000])
async def test_a_step_of_the_wall_clock_gives_and_takes_no_lease(step_ms, plant, frozen) -> None:
    process, clock = frozen
    await enrol(plant, process)
    clock.unix_ms += step_ms
    process.fleet.sweep()
    assert process.fleet.is_leased("dpu-0")
    clock.boottime_ns += 60 * 10**9 - 1_000_000
    process.fleet.sweep()
    assert process.fleet.is_leased("dpu-0")
    clock.boottime_ns += 1_000_000
    assert not process.fleet.is_leased("dpu-0")
    process.fleet.sweep()
    assert process.fleet.record("dpu-0").state is DeviceState.STALE


async def test_everything_expired_at_once_comes_back_by_itself(plant, frozen) -> None:
    """Lease, SVID, EAR and binding are all over: neither a token nor a valid SVID is needed to come back."""
    process, clock = frozen
    agents = [await enrol(plant, process, name) for name in ("dpu-0", "dpu-1")]
    clock.unix_ms += 7_200_000
    clock.boottime_ns += 7_200 * 10**9
    process.fleet.sweep()
    assert {process.fleet.record(one.name).state for one in agents} == {DeviceState.STALE}
    for agent in agents:
        agent.token, agent.binding = "", b""  # as the agent's life has it: without a lease it begins afresh
        result = await agent.attest()
        assert (result.HasField("lease"), len(result.svid), agent.challenged) == (True, 1, 2)


# --- A7, and what an operator decided ---


async def test_measured_good_then_changed(make_agent, open_stream, admin) -> None:
    agent, peer = [await make_agent(name, applied_generation=UP_TO_DATE) for name in ("dpu-0", "dpu-1")]
    for one in (agent, peer):
        await one.attest()
        one.token = ""
    stream = await open_stream(peer)
    await stream.receive("config")
    assert (await agent.attest()).HasField("lease")
    agent.firmware = dataclasses.replace(
        default_firmware(PROFILE), components={**default_firmware(PROFILE).components, "nic-firmware": "changed"}
    )
    agent.reboot()
    assert (await agent.attest()).state == "contraindicated"
    told = (await stream.receive("revocation", limit_s=1)).revocation
    assert (told.device, told.cause) == ("dpu-0", "contraindicated")
    (reason,) = await leaves(admin, "dpu-0")
    assert "measurement 3" in reason
    assert (await peer.attest()).HasField("lease")


async def test_a_boot_that_was_shown_ends_every_older_one_whatever_came_of_it(make_agent, admin, process) -> None:
    """A thief of the old boot's Alias key gets nothing while the device itself stands there with firmware nobody knows."""
    agent = await make_agent(applied_generation=UP_TO_DATE)
    await agent.attest()
    agent.token = ""
    thief = await make_agent(token=False, applied_generation=UP_TO_DATE)
    thief.root, thief.keys, thief.binding = agent.root, agent.keys, agent.binding
    assert (await thief.attest()).HasField("lease"), "with the key it is the device, until that boots"
    shipped = default_firmware(PROFILE)
    agent.firmware = dataclasses.replace(shipped, components={**shipped.components, "nic-firmware": "changed"})
    agent.reboot()
    assert (await agent.attest()).state == "contraindicated"
    with pytest.raises(grpc.RpcError):
        await thief.attest()
    assert process.fleet.record("dpu-0").boot_counter == 2
    assert (await admin.get_device("dpu-0")).state is DeviceState.CONTRAINDICATED
    agent.firmware = None
    agent.reboot()
    assert (await agent.attest()).HasField("lease")


async def test_a_binding_does_not_outlive_its_boot(make_agent, process) -> None:
    """Keys and binding of the boot before, and proof that both are held: a new boot binds anew all the same."""
    agent = await make_agent(applied_generation=UP_TO_DATE)
    await agent.attest()
    agent.token = ""
    assert (await agent.attest()).HasField("lease")
    assert agent.challenged == 1, "in one boot it goes on"
    before = process.fleet.binding("dpu-0")
    agent.boot_counter += 1
    agent.boot()
    assert (await agent.attest()).HasField("lease")
    assert agent.challenged == 2
    live = process.fleet.binding("dpu-0")
    assert (live.boot_counter, live.tls_spki_sha256) == (2, before.tls_spki_sha256)
    with process.fleet.transaction() as transaction:
        assert not transaction.get_binding(before.binding_sha256).live


async def test_revoked_for_what_it_booted_needs_another_boot(make_agent, admin) -> None:
    agent = await make_agent(applied_generation=UP_TO_DATE)
    await agent.attest()
    agent.token = ""
    shipped = default_firmware(PROFILE)
    agent.firmware = dataclasses.replace(shipped, components={**shipped.components, "nic-firmware": "changed"})
    agent.reboot()
    assert (await agent.attest()).state == "contraindicated"
    await admin.revoke_device("dpu-0", reason="unknown firmware")
    await admin.restore_device("dpu-0", reason="looked at")
    assert "a newer boot" in (await agent.attest()).reason
    agent.firmware = None
    agent.reboot()
    assert (await agent.attest()).HasField("lease")


async def test_quarantine_gives_an_identity_to_good_evidence_only(make_agent, admin) -> None:
    agent = await make_agent(applied_generation=UP_TO_DATE)
    await agent.attest()
    agent.token = ""
    await admin.quarantine_device("dpu-0", reason="odd counters")
    agent.keys, agent.binding = generate_own_keys(), b""
    good = await agent.attest()
    assert (good.state, good.HasField("lease"), len(good.svid)) == ("quarantined", False, 1)
    agent.firmware = dataclasses.replace(
        default_firmware(PROFILE), components={**default_firmware(PROFILE).components, "nic-firmware": "changed"}
    )
    agent.reboot()
    bad = await agent.attest()
    assert (bad.state, bad.HasField("lease"), len(bad.svid)) == ("quarantined", False, 0)
    assert bad.findings
    status = await admin.get_device("dpu-0")
    assert (status.state, status.reason, status.tier) == (DeviceState.QUARANTINED, "odd counters", "contraindicated")
    (reason,) = await leaves(admin, "dpu-0")
    assert "measurement 3" in reason


async def test_exported_evidence_verifies_offline_with_the_same_findings(make_agent, admin, plant, tmp_path) -> None:
    from ztdpu.errors import RefusedError
    from ztdpu.policy.verify_evidence import verify_evidence

    agent = await make_agent(applied_generation=UP_TO_DATE)
    for firmware in (None, {"nic-firmware": "changed"}):
        if firmware:
            shipped = default_firmware(PROFILE)
            agent.firmware = dataclasses.replace(shipped, components={**shipped.components, **firmware})
            agent.token = ""
            agent.reboot()
        await agent.attest()
        content = await admin.export_attestation("dpu-0")
        file = tmp_path / "dpu-0.evidence"
        file.write_bytes(content)
        named = {
            "roots_file": plant.folder / "roots.pem",
            "ear_key_file": plant.folder / "state" / "ear.pem",
        }
        done = verify_evidence(file, plant.policy_dir, **named)
        report = await admin.get_attestation("dpu-0")
        assert done.verified.agrees
        assert done.may_hold_lease is not bool(firmware)
        assert done.verified.appraisal.findings == report.findings
        assert done.verified.appraisal.checks == report.checks
        changed = bytearray(content)
        changed[len(changed) // 2] ^= 1
        file.write_bytes(changed)
        with pytest.raises(RefusedError):
            verify_evidence(file, plant.policy_dir)
