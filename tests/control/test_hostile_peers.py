"""What anybody can do to control's doors: octets that are no message, attestations that are left standing."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator

import grpc
import pytest
from grpc import aio

from ztdpu.control.api.attestation import SESSIONS_PER_ADDRESS_LIMIT
from ztdpu.control.doors.refusals import ADDRESS_BURST
from ztdpu.trust.firmware import default_firmware
from ztdpu.v1 import attestation_pb2_grpc

NO_MESSAGES = (b"\xff" * 10, b"\x0a\xff\xff\xff\xff\x0f", b"\x0b" * 9000, b"\x80" * 50, b"\x0a\x02\xc3\x28")


async def say(channel: aio.Channel, method: str, octets: bytes, *, streams: bool) -> aio.AioRpcError:
    """Send octets as they are; return how the call was refused."""
    try:
        if not streams:
            await channel.unary_unary(method)(octets, timeout=5)
        else:
            call = channel.stream_stream(method)(timeout=5)
            await call.write(octets)
            while await call.read() is not aio.EOF:
                pass
    except aio.AioRpcError as error:
        return error
    raise AssertionError("not refused")


@pytest.fixture
async def agent_channel(make_agent, process) -> AsyncIterator[aio.Channel]:
    agent = await make_agent()
    await agent.attest()
    async with agent.channel(process.main_port, mutual=True) as channel:
        yield channel


@pytest.mark.parametrize("octets", NO_MESSAGES, ids=lambda octets: octets[:4].hex())
async def test_octets_that_are_no_message_are_a_usage_error_without_text(agent_channel, octets) -> None:
    for method, streams in (("ztdpu.v1.AgentService/Connect", True), ("grpc.health.v1.Health/Check", False)):
        refusal = await say(agent_channel, f"/{method}", octets, streams=streams)
        assert (refusal.code(), refusal.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "usage")


async def test_nothing_is_decoded_for_whom_is_not_let_in(agent_channel, admin) -> None:
    refusal = await say(agent_channel, "/ztdpu.v1.DeviceService/RevokeDevice", NO_MESSAGES[0], streams=False)
    assert (refusal.code(), refusal.details()) == (grpc.StatusCode.PERMISSION_DENIED, "permission-denied")
    leaf = json.loads((await admin.list_audit())[-1].leaf)
    assert (leaf["action"], leaf["outcome"]) == ("/ztdpu.v1.DeviceService/RevokeDevice", "refused")


async def test_attestations_left_standing_are_few_from_one_address(make_agent, process) -> None:
    agent, standing, codes = await make_agent(), [], []
    async with agent.channel(process.enrolment_port, mutual=False) as channel:
        stub = attestation_pb2_grpc.AttestationServiceStub(channel)
        for _ in range(SESSIONS_PER_ADDRESS_LIMIT):
            standing.append(stub.Attest())
            await standing[-1].write(agent.begin())
            assert (await standing[-1].read()).spdm
        with pytest.raises(aio.AioRpcError) as refused:
            await agent.attest()
        codes.append(refused.value.code())
        for call in standing:
            call.cancel()
    async with asyncio.timeout(30):
        while True:  # until control has noticed
            try:
                assert (await agent.attest()).state == "affirming"
                break
            except aio.AioRpcError as error:
                codes.append(error.code())
                await asyncio.sleep(0.02)
    assert set(codes) == {grpc.StatusCode.UNAVAILABLE}


async def count_leaves(admin, device: str) -> int:
    leaves = [json.loads(one.leaf) for one in await admin.list_audit()]
    return sum(leaf["action"] == "attest" and leaf["subject"] == device for leaf in leaves)


@pytest.mark.parametrize("by", ["operator", "evidence"])
async def test_a_device_that_is_refused_does_not_fill_the_audit_log(by, make_agent, admin, process) -> None:
    """Each leaf is a commit that stays for ever; the change itself has its leaf at once, and what follows a bound."""
    agent, attempts = await make_agent(applied_generation=1 << 50), int(ADDRESS_BURST) + 20
    await agent.attest()
    agent.token = ""
    if by == "operator":
        await admin.revoke_device("dpu-0", reason="stolen")
    else:
        shipped = default_firmware(agent.root.device.profile)
        agent.firmware = dataclasses.replace(shipped, components={**shipped.components, "nic-firmware": "changed"})
    agent.reboot()
    before = await count_leaves(admin, "dpu-0")
    first = await agent.attest()
    assert not first.HasField("lease")
    assert await count_leaves(admin, "dpu-0") == before + 1
    for _ in range(attempts):
        assert not (await agent.attest()).HasField("lease")
    assert before + 20 < await count_leaves(admin, "dpu-0") < before + attempts
    assert process.meters.refusals_summarised._value.get() > 0


async def test_a_defect_of_control_is_audited_and_grants_nothing(make_agent, admin, monkeypatch) -> None:
    from ztdpu.control.appraisal import judgement

    agent = await make_agent(applied_generation=1 << 50)
    with monkeypatch.context() as broken:
        broken.setattr(judgement, "bound_keys", lambda *_: 1 / 0)
        with pytest.raises(aio.AioRpcError) as refused:
            await agent.attest()
    assert "division" not in str(refused.value.details())
    leaves = [json.loads(one.leaf) for one in await admin.list_audit()]
    attempts = [leaf for leaf in leaves if leaf["action"] == "attest"]
    assert [(leaf["subject"], leaf["outcome"], leaf["reason"]) for leaf in attempts] == [
        ("dpu-0", "refused", "internal")
    ]
    assert (await agent.attest()).HasField("lease")


async def test_the_leaf_of_an_unknown_device_says_what_it_called_itself(make_agent, admin) -> None:
    agent = await make_agent(token=False)
    agent.name = "dpu-\x1b[2J" + "x" * 5000
    with pytest.raises(aio.AioRpcError) as refused:
        await agent.attest()
    assert "dpu-" not in str(refused.value.details())
    leaf = json.loads((await admin.list_audit(limit=1))[0].leaf)
    assert (leaf["subject"], leaf["reason"]) == ("", "permission-denied")
    assert r"dpu-\x1b[2Jxxx" in leaf["detail"]["message"]
    assert len(leaf["detail"]["message"]) < 200
