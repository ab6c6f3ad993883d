"""An SVID and its TLS key in other hands, and identities that end while a stream is open (each beside its good twin)."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import secrets
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from cryptography import x509

from ztdpu.agent.own_keys import OwnKeys, generate_own_keys
from ztdpu.control.clock import SystemClock
from ztdpu.control.devices.leases import Instant
from ztdpu.control.run import ControlProcess
from ztdpu.rpc.client import ControlClient
from ztdpu.trust.svid import BACKDATING, issue_svid
from ztdpu.v1 import agent_pb2, device_pb2, device_pb2_grpc

DEADLINE_S = 10


async def leaves(admin, reason: str) -> list[dict]:
    found = [json.loads(one.leaf) for one in await admin.list_audit(limit=200)]
    return [leaf for leaf in found if leaf["reason"] == reason]


def alarms(process) -> float:
    return process.meters.identity_alarms._value.get()


@pytest.fixture
async def pair(make_agent, open_stream):
    agent = await make_agent()
    await agent.attest()
    stream = await open_stream(agent)
    await stream.receive("config")
    return agent, stream


async def test_stolen_svid_and_tls_key_open_no_stream_and_both_sides_hear_of_it(
    pair, process, admin, make_bare_agent, open_stream
) -> None:
    agent, stream = pair
    thief = make_bare_agent("dpu-0", process)
    thief.svid, thief.binding = agent.svid, agent.binding
    thief.keys = OwnKeys(agent.keys.tls_key, generate_own_keys().offer_key)
    async with asyncio.timeout(DEADLINE_S):
        assert await (await open_stream(thief)).code() is grpc.StatusCode.PERMISSION_DENIED
        alarm = (await stream.receive("identity_alarm")).identity_alarm
    assert "offer key" in alarm.cause
    assert alarm.peer.startswith("ipv4:127.0.0.1:")
    assert alarms(process) == 1
    (leaf,) = await leaves(admin, "identity-misuse")
    assert leaf["actor"].endswith("/dpu/dpu-0")
    # The device itself goes on, and may open another stream.
    await stream.send(status=agent_pb2.AgentStatus(worker_instance=agent.worker_instance))
    await (await open_stream(agent)).receive("config")
    assert alarms(process) == 1


async def test_a_hello_is_heard_once(pair, process, open_stream) -> None:
    agent, _ = pair
    await (await open_stream(agent, number=1 << 40)).receive("config")
    assert await (await open_stream(agent, number=1 << 40)).code() is grpc.StatusCode.PERMISSION_DENIED
    await (await open_stream(agent, number=(1 << 40) + 1)).receive("config")


async def test_an_svid_that_control_did_not_issue_is_refused_although_its_authority_signed_it(
    pair, process, open_stream
) -> None:
    agent, _ = pair
    good, now = agent.svid, datetime.now(UTC)
    agent.svid = issue_svid(
        process.issuer.authority, trust_domain="test.example", path="/dpu/dpu-0",
        public_key=agent.keys.tls_key.public_key(), not_before=now - BACKDATING,
        not_after=now + timedelta(minutes=5), serial=secrets.randbits(64) | 1,
    )  # fmt: skip
    assert await (await open_stream(agent)).code() is grpc.StatusCode.PERMISSION_DENIED
    assert alarms(process) == 1
    agent.svid = good
    await (await open_stream(agent)).receive("config")


async def test_a_ban_ends_an_open_stream_and_is_audited(pair, admin) -> None:
    _, stream = pair
    await admin.revoke_device("dpu-0", reason="test")
    async with asyncio.timeout(DEADLINE_S):
        assert await stream.code() is grpc.StatusCode.PERMISSION_DENIED
    assert await leaves(admin, "permission-denied")


class ShiftedClock(SystemClock):
    """The machine's clocks, with the wall clock moved forward: leases go on, certificates end."""

    shift_ms = 0

    def now(self) -> Instant:
        real = super().now()
        return dataclasses.replace(real, unix_ms=real.unix_ms + self.shift_ms)


@pytest.mark.parametrize("does", ["waits", "speaks"])
async def test_an_svid_that_ends_ends_its_stream(does, plant, make_bare_agent, open_stream) -> None:
    clock = ShiftedClock()
    process = ControlProcess(plant.configuration(), clock=clock)
    await process.start()
    try:
        with ControlClient.connect(str(process.spec.admin_socket)) as client:
            token = await asyncio.to_thread(client.create_join_token, "dpu-0")
        agent = make_bare_agent("dpu-0", process)
        agent.token = token.token
        await agent.attest()
        stream = await open_stream(agent)
        await stream.receive("config")
        if does == "speaks":
            process._tasks[0].cancel()  # without the sweeper it is the message alone that finds out
        certificate = x509.load_der_x509_certificate(agent.svid[0])
        over = certificate.not_valid_after_utc + timedelta(seconds=1)  # at notAfter itself it still counts
        clock.shift_ms = int((over - datetime.now(UTC)).total_seconds() * 1000) + 1
        if does == "speaks":
            await stream.send(status=agent_pb2.AgentStatus(worker_instance=agent.worker_instance))
        async with asyncio.timeout(DEADLINE_S):
            assert await stream.code() is grpc.StatusCode.PERMISSION_DENIED
    finally:
        await process.stop()


async def test_a_device_that_calls_what_agents_never_call_is_alarmed(pair, process, admin) -> None:
    agent, stream = pair
    async with agent.channel(process.main_port, mutual=True) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await device_pb2_grpc.DeviceServiceStub(channel).ListDevices(device_pb2.ListDevicesRequest())
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "ListDevices" in (await stream.receive("identity_alarm")).identity_alarm.cause
    assert alarms(process) == 1
    (leaf,) = await leaves(admin, "permission-denied")
    assert leaf["subject"] == "dpu-0"
