"""The stream of a leased device: who may open it, what comes first, the relay, revocation, restore, the end of a lease."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time

import grpc
import pytest
from grpc import aio

from ztdpu.agent.own_keys import generate_own_keys
from ztdpu.control.doors.hub import INSTANCE_BURST
from ztdpu.control.run import ControlProcess
from ztdpu.errors import ConflictError, NotFoundError, StateError, UsageError
from ztdpu.keys.epoch import open_epoch_keys
from ztdpu.keys.kem import kem_public_octets
from ztdpu.model.device import DeviceState
from ztdpu.trust.firmware import FirmwareFault, alter_firmware, default_firmware
from ztdpu.trust.profile import load_profile
from ztdpu.v1 import agent_pb2

PROFILE = load_profile("bluefield-3")


@pytest.fixture
async def pair(make_agent, open_stream):
    """Two attested, connected devices; each has read what comes first."""
    agents = [await make_agent("dpu-0"), await make_agent("dpu-1")]
    streams = []
    for agent in agents:
        await agent.attest()
        streams.append(await open_stream(agent))
        await streams[-1].receive("config")
    return (*agents, *streams)


async def until(condition, *, limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while not await condition():
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.02)


async def test_roster_peers_config_come_first(make_agent, open_stream, plant) -> None:
    agent = await make_agent()
    await agent.attest()
    stream = await open_stream(agent)
    kinds = [(await stream.receive()).WhichOneof("message") for _ in range(5)]
    assert kinds == ["bundle", "epoch_keys", "roster", "peers", "config"]


async def test_config_is_what_its_revision_says(make_agent, open_stream) -> None:
    agent = await make_agent()
    await agent.attest()
    config = (await (await open_stream(agent)).receive("config")).config
    assert hashlib.sha256(config.tables).digest() == config.revision


async def test_peers_show_each_other(pair) -> None:
    _, second, stream, _ = pair
    peers = (await stream.receive("peers")).peers.peers
    while not peers:
        peers = (await stream.receive("peers")).peers.peers
    assert [peer.device for peer in peers] == ["dpu-1"]
    assert peers[0].key_binding == second.binding
    assert peers[0].worker_instance == second.worker_instance


async def test_envelopes_are_relayed_unread(pair) -> None:
    _, _, stream, other = pair
    octets = secrets.token_bytes(500)
    await stream.send(sa=agent_pb2.SaEnvelope(device="dpu-1", envelope=octets))
    received = (await other.receive("sa")).sa
    assert (received.device, received.envelope) == ("dpu-0", octets)


async def test_envelopes_too_large_or_to_strangers_go_nowhere(pair, process) -> None:
    _, _, stream, other = pair
    await stream.send(sa=agent_pb2.SaEnvelope(device="dpu-1", envelope=bytes(64 * 1024 + 1)))
    await stream.send(sa=agent_pb2.SaEnvelope(device="dpu-9", envelope=b"x"))
    await stream.send(sa=agent_pb2.SaEnvelope(device="dpu-1", envelope=b"last"))
    assert (await other.receive("sa")).sa.envelope == b"last"


async def test_flood_of_envelopes_is_cut(pair, process) -> None:
    _, _, stream, other = pair
    for number in range(200):
        await stream.send(sa=agent_pb2.SaEnvelope(device="dpu-1", envelope=bytes([number])))

    def counted(result: str) -> int:
        return int(process.meters.relayed.labels(result=result)._value.get())

    async def all_counted() -> bool:
        return counted("relayed") + counted("rate") == 200

    await until(all_counted)
    assert counted("rate") > 0
    assert counted("relayed") >= 30
    for _ in range(counted("relayed")):
        await other.receive("sa")


async def test_without_an_svid_nobody_connects(make_agent, open_stream) -> None:
    agent = await make_agent()
    agent.binding = b""
    await agent.attest()
    agent.svid = ()
    with pytest.raises(aio.AioRpcError):
        await (await open_stream(agent)).receive()


async def test_stolen_svid_is_refused_once_the_device_has_another_key(make_agent, open_stream) -> None:
    thief = await make_agent()
    await thief.attest()
    honest_keys, stolen = generate_own_keys(), thief.keys
    device = await make_agent(token=False)
    device.root, device.keys = thief.root, honest_keys
    await device.attest()
    assert thief.keys is stolen
    stream = await open_stream(thief)
    assert await stream.code() is grpc.StatusCode.PERMISSION_DENIED
    await (await open_stream(device)).receive("config")


@pytest.mark.parametrize("changes", [{"device": "dpu-1"}, {"binding_sha256": b"\0" * 32}])
async def test_hello_must_fit(changes, make_agent, open_stream) -> None:
    agent = await make_agent()
    await agent.attest()
    assert await (await open_stream(agent, **changes)).code() is grpc.StatusCode.PERMISSION_DENIED
    await (await open_stream(agent)).receive("config")


async def test_newer_stream_takes_over(make_agent, open_stream) -> None:
    agent = await make_agent()
    await agent.attest()
    older = await open_stream(agent)
    await older.receive("config")
    newer = await open_stream(agent)
    await newer.receive("config")
    assert await older.code() is grpc.StatusCode.ABORTED


async def test_status_makes_a_device_ready(pair, admin) -> None:
    agent, _, stream, _ = pair
    wanted = await admin.get_device("dpu-0")
    assert not wanted.ready
    status = agent_pb2.AgentStatus(
        applied_generation=wanted.generation_wanted,
        applied_revision=bytes.fromhex(wanted.revision_wanted),
        worker_instance=agent.worker_instance,
        ready=True,
    )
    await stream.send(status=status)

    async def ready() -> bool:
        return (await admin.get_device("dpu-0")).ready

    await until(ready)


# --- revocation ---


async def test_revocation_is_pushed_with_new_keys_and_acknowledged(pair, admin, plant) -> None:
    first, _, stream, revoked = pair

    async def apply() -> agent_pb2.Revocation:
        revocation = (await stream.receive("revocation")).revocation
        await stream.send(revocation_applied=agent_pb2.RevocationApplied(generation=revocation.generation))
        return revocation

    asked_unix_ns = time.time_ns()
    pushed, change = await asyncio.gather(apply(), admin.revoke_device("dpu-1", reason="test"))
    assert pushed.device == "dpu-1"
    assert pushed.cause == "revoked"
    assert pushed.generation == change.generation
    public = kem_public_octets(first.kem)
    context = b"ztdpu/v1/epoch-keys\0" + hashlib.sha256(b"dpu-0\0" + public).digest()
    keys = open_epoch_keys(pushed.sealed_epoch_keys, kem_private_key=first.kem, context=context)
    epochs = {key.network_id: key.epoch for key in keys}
    # green has no endpoint on dpu-1: its key stays
    names = plant.networks
    peering = b"blue-green".ljust(16, b"-")
    assert epochs == {names["blue"]: 2, names["red"]: 2, names["green"]: 1, peering: 2}
    (peer,) = change.peers
    assert (peer.device, peer.applied) == ("dpu-0", True)
    assert peer.duration_ms > 0
    assert asked_unix_ns <= change.acknowledged_unix_ns <= time.time_ns()
    assert change.device.state is DeviceState.REVOKED
    assert await revoked.code() is grpc.StatusCode.PERMISSION_DENIED
    assert not (await stream.receive("peers")).peers.peers


async def test_revoked_device_gets_nothing_and_restore_needs_a_new_boot_and_keys(pair, admin, open_stream) -> None:
    _, agent, _, _ = pair
    await admin.revoke_device("dpu-1", reason="test")
    agent.token = ""
    refused = await agent.attest()
    assert refused.state == "revoked"
    assert not refused.svid
    assert not refused.HasField("lease")
    assert await (await open_stream(agent)).code() is grpc.StatusCode.PERMISSION_DENIED
    await admin.restore_device("dpu-1", reason="mended")
    assert (await admin.get_device("dpu-1")).state is DeviceState.PENDING
    agent.binding = b""
    assert (await agent.attest()).state == "pending"  # the same boot
    agent.boot_counter += 1
    agent.boot()
    result = await agent.attest()  # a newer boot, the old keys
    assert result.state == "pending"
    assert not result.HasField("lease")
    agent.reboot()
    assert (await agent.attest()).state == "affirming"


async def test_revocation_survives_a_restart(plant, pair, admin, process) -> None:
    change = await admin.revoke_device("dpu-1", reason="test")
    await process.stop()
    again = ControlProcess(plant.configuration())
    await again.start()
    try:
        assert again.fleet.record("dpu-1").state is DeviceState.REVOKED
        assert again.fleet.record("dpu-0").state is DeviceState.AFFIRMING  # its lease outlives control
        assert again.fleet.generation > change.generation
        epochs = {epoch.network.tenant: epoch.key.epoch for epoch in again.fleet.epochs.list()}
        assert epochs == {"blue": 3, "blue-green": 3, "green": 2, "red": 3}  # numbers never come twice
    finally:
        await again.stop()
        await process.start()


async def test_same_request_id_gives_the_same_answer(pair, admin) -> None:
    once = await admin.revoke_device("dpu-1", reason="test", request_id="r-1")
    size = (await admin.status()).audit_size
    again = await admin.revoke_device("dpu-1", reason="test", request_id="r-1")
    assert (again.generation, again.acknowledged_unix_ns, again.peers) == (
        once.generation,
        once.acknowledged_unix_ns,
        once.peers,
    )
    assert (await admin.status()).audit_size == size
    with pytest.raises(ConflictError):
        await admin.revoke_device("dpu-1", reason="another", request_id="r-1")
    with pytest.raises(StateError):
        await admin.revoke_device("dpu-1", reason="test", request_id="r-2")


async def test_expected_version(pair, admin) -> None:
    device = await admin.get_device("dpu-1")
    with pytest.raises(ConflictError) as caught:
        await admin.quarantine_device("dpu-1", reason="test", expected_version=device.version + 1)
    assert caught.value.remedy
    change = await admin.quarantine_device("dpu-1", reason="test", expected_version=device.version)
    assert change.device.state is DeviceState.QUARANTINED


async def test_dry_run_changes_nothing(pair, admin) -> None:
    before = (await admin.status()).audit_size
    preview = await admin.revoke_device("dpu-1", reason="", dry_run=True)
    assert preview.blast_radius.peers == ("dpu-0",)
    assert "blue-1" in preview.blast_radius.endpoints
    assert (await admin.get_device("dpu-1")).state is DeviceState.AFFIRMING
    assert (await admin.status()).audit_size == before


async def test_quarantined_device_keeps_its_stream_and_identity_but_no_lease(pair, admin) -> None:
    _, agent, _, stream = pair
    await admin.quarantine_device("dpu-1", reason="test")
    agent.token, agent.applied_generation = "", 1 << 50
    result = await agent.attest()
    assert result.state == "quarantined"
    assert not result.HasField("lease")
    await stream.send(status=agent_pb2.AgentStatus(waiting_for="a lease"))
    assert (await admin.get_device("dpu-1")).connected
    await admin.restore_device("dpu-1", reason="fine")
    result = await agent.attest()
    assert result.state == "affirming"


async def test_refused_words(admin) -> None:
    with pytest.raises(NotFoundError) as caught:
        await admin.revoke_device("dpu-9", reason="test")
    assert "dpu-0" in caught.value.remedy
    with pytest.raises(UsageError):
        await admin.revoke_device("dpu-0", reason=" ")
    with pytest.raises(StateError):
        await admin.restore_device("dpu-0", reason="test")


async def test_grant_that_began_before_a_revocation_grants_nothing(make_agent, admin) -> None:
    agent = await make_agent()

    def bind(nonce: bytes):
        revoking.result(timeout=5)
        return agent.bind(nonce)

    import concurrent.futures

    from ztdpu.rpc.client import ControlClient

    with concurrent.futures.ThreadPoolExecutor() as pool:
        socket = str(agent.process.spec.admin_socket)

        def revoke() -> None:
            with ControlClient.connect(socket) as client:
                client.revoke_device("dpu-0", reason="meanwhile")

        revoking = pool.submit(revoke)
        await asyncio.wrap_future(revoking)
        result_state = None
        try:
            result_state = (await agent.attest(bind=bind)).state
        except aio.AioRpcError as error:
            assert error.code() in (grpc.StatusCode.ABORTED, grpc.StatusCode.PERMISSION_DENIED)
        assert result_state in (None, "revoked")
    assert (await admin.get_device("dpu-0")).state is DeviceState.REVOKED


@pytest.mark.parametrize("change", ["revoke_device", "quarantine_device"])
async def test_agent_that_was_away_hears_who_is_shut_out(change, pair, admin, open_stream) -> None:
    agent, _, stream, _ = pair
    await stream.close()
    done = await getattr(admin, change)("dpu-1", reason="test")
    agent.token, agent.binding = "", b""
    await agent.attest()
    back = await open_stream(agent)
    told = (await back.receive("revocation")).revocation
    assert (told.device, told.generation) == ("dpu-1", done.generation)
    assert not told.sealed_epoch_keys
    assert not (await back.receive("peers")).peers.peers


async def test_new_workers_are_told_to_peers_at_a_bounded_rate(pair, process) -> None:
    agent, _, stream, peer = pair
    told: list[bytes] = []
    tell = process.fleet.set_worker_instance
    process.fleet.set_worker_instance = lambda device, one: told.append(one) or tell(device, one)  # type: ignore[method-assign]
    for _ in range(4 * int(INSTANCE_BURST)):
        await stream.send(status=agent_pb2.AgentStatus(worker_instance=secrets.token_bytes(16)))
    last = secrets.token_bytes(16)
    async with asyncio.timeout(20):
        while process.fleet.record(agent.name).worker_instance != last:  # none is lost: the newest comes through
            await stream.send(status=agent_pb2.AgentStatus(worker_instance=last))
            await asyncio.sleep(0.05)
    assert len(told) <= INSTANCE_BURST + 2
    while (await peer.receive("peers")).peers.peers[0].worker_instance != last:
        pass


async def test_agent_that_was_away_hears_nothing_of_a_stale_device(pair, process, open_stream) -> None:
    agent, _, stream, _ = pair
    await stream.close()
    process.fleet.end_lease("dpu-1", "no fresh evidence")
    agent.token, agent.binding = "", b""
    await agent.attest()
    back = await open_stream(agent)
    first = await back.receive()
    assert first.WhichOneof("message") != "revocation"
    assert not (await back.receive("peers")).peers.peers


async def test_agent_that_missed_a_revocation_gets_no_lease(pair, admin, process) -> None:
    agent = pair[0]
    change = await admin.revoke_device("dpu-1", reason="test")
    agent.token, agent.applied_generation = "", change.generation - 1
    assert (await agent.attest()).HasField("lease")  # younger than two seconds
    process.fleet.revocations[change.generation] -= 3_000_000_000
    with pytest.raises(aio.AioRpcError) as caught:
        await agent.attest()
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, "lease")
    agent.applied_generation = change.generation
    assert (await agent.attest()).HasField("lease")


async def test_leased_device_that_shows_altered_firmware_loses_everything_at_once(pair, admin) -> None:
    _, agent, stream, _ = pair
    agent.firmware = alter_firmware(PROFILE, default_firmware(PROFILE), FirmwareFault.FIRMWARE_ALTERED)
    agent.token = ""
    agent.reboot()
    result = await agent.attest()
    assert result.state == "contraindicated"
    assert not result.HasField("lease")
    revocation = (await stream.receive("revocation")).revocation
    assert (revocation.device, revocation.cause) == ("dpu-1", "contraindicated")
    assert revocation.sealed_epoch_keys
    assert not (await stream.receive("peers")).peers.peers
    assert (await admin.get_device("dpu-1")).lease_s == 0
    agent.firmware = None
    agent.reboot()
    assert (await agent.attest()).state == "affirming"


# --- time ---


async def test_lease_that_ends_makes_stale_and_fresh_evidence_mends_it(plant, make_agent, open_stream, admin) -> None:
    agent = await make_agent()
    agent.process.spec.attestation.__dict__["lease_s"] = 2
    await agent.attest()
    stream = await open_stream(agent)
    await stream.receive("config")

    async def stale() -> bool:
        return (await admin.get_device("dpu-0")).state is DeviceState.STALE

    await until(stale)
    assert await stream.code() is grpc.StatusCode.PERMISSION_DENIED
    agent.token, agent.binding = "", b""
    assert (await agent.attest()).state == "affirming"


async def test_stream_ends_with_its_certificate(make_agent, open_stream) -> None:
    agent = await make_agent()
    agent.process.spec.attestation.__dict__["svid_s"] = 5
    await agent.attest()
    stream = await open_stream(agent)
    await stream.receive("config")
    assert await stream.code() is grpc.StatusCode.PERMISSION_DENIED
