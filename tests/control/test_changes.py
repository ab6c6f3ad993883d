"""Changes of operators: a caller who goes away leaves nothing half done, refusals are in the log, repeats change nothing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from grpc import aio

from ztdpu.errors import ConfigurationError, ConflictError, NotFoundError, StateError, UsageError
from ztdpu.model.device import DeviceState
from ztdpu.v1 import agent_pb2, device_pb2, device_pb2_grpc


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


async def leaves(admin: Any) -> list[dict[str, Any]]:
    return [json.loads(entry.leaf) for entry in await admin.list_audit()]


async def peers_without(stream: Any, device: str) -> None:
    while device in {peer.device for peer in (await stream.receive("peers", limit_s=0.8)).peers.peers}:
        pass


@pytest.mark.parametrize("goes_away", [True, False], ids=["caller cancels", "caller stays"])
async def test_a_revocation_is_followed_whether_or_not_its_caller_stays(pair, admin, process, goes_away) -> None:
    stream = pair[2]
    async with aio.insecure_channel(f"unix:{process.spec.admin_socket}") as channel:
        request = device_pb2.ChangeDeviceRequest(name="dpu-1", reason="test", request_id="r-1")
        call = device_pb2_grpc.DeviceServiceStub(channel).RevokeDevice(request, timeout=5)
        generation = (await stream.receive("revocation")).revocation.generation
        if goes_away:
            call.cancel()
        # before anybody answered: the list of peers does not wait for them
        await peers_without(stream, "dpu-1")
        first = await admin.revoke_device("dpu-1", reason="test", request_id="r-1")
        assert (first.generation, first.acknowledged_unix_ns > 0) == (generation, True)
        await stream.send(revocation_applied=agent_pb2.RevocationApplied(generation=generation))
        async with asyncio.timeout(5):
            while not (last := await admin.revoke_device("dpu-1", reason="test", request_id="r-1")).peers:
                await asyncio.sleep(0.02)
        assert [(peer.device, peer.applied) for peer in last.peers] == [("dpu-0", True)]
        assert last.acknowledged_unix_ns == first.acknowledged_unix_ns
        if not goes_away:
            assert (await call).acknowledged_unix_ns == first.acknowledged_unix_ns


async def test_every_refused_change_leaves_its_leaf(pair, admin, plant) -> None:
    cases = [
        (admin.revoke_device, ["dpu-1"], {"expected_version": 9999}, ConflictError, "revoke-device"),
        (admin.quarantine_device, ["nobody"], {}, NotFoundError, "quarantine-device"),
        (admin.restore_device, ["dpu-1"], {}, StateError, "restore-device"),
        (admin.create_join_token, ["dpu-1"], {"ttl_s": 1_000_000}, UsageError, "create-join-token"),
        (admin.rotate_keys, [], {"tenant": "nobody"}, NotFoundError, "rotate-tenant-key"),
        (admin.rotate_keys, [], {"device": "nobody"}, NotFoundError, "rotate-device-key"),
    ]
    for call, arguments, named, error, action in cases:
        before = len(await leaves(admin))
        with pytest.raises(error):
            await call(*arguments, reason="because", **named)
        (leaf,) = (await leaves(admin))[before:]
        told = (leaf["action"], leaf["outcome"], leaf["reason"], leaf["detail"]["said"])
        assert told == (action, "refused", error.code, "because")
    (plant.folder / "roster.cbor").rename(plant.folder / "elsewhere")
    with pytest.raises(ConfigurationError):
        await admin.sync_policy()
    assert [(await leaves(admin))[-1][key] for key in ("action", "reason")] == ["sync-policy", "configuration"]
    assert (await admin.get_device("dpu-1")).state is DeviceState.AFFIRMING
    await admin.quarantine_device("dpu-1", reason="because")
    assert (await leaves(admin))[-1]["outcome"] == "done"


async def test_a_dry_run_that_is_refused_leaves_no_leaf(admin) -> None:
    before = len(await leaves(admin))
    with pytest.raises(StateError):
        await admin.restore_device("dpu-1", reason="", dry_run=True)
    assert len(await leaves(admin)) == before


async def test_a_repeated_sync_reads_nothing_and_a_fresh_one_does(admin, plant) -> None:
    first = await admin.sync_policy(reason="x", request_id="s-1")
    (plant.policy_dir / "network" / "blue.yaml").unlink()
    again = await admin.sync_policy(reason="x", request_id="s-1")
    assert (again.changed_devices, again.status.generation) == (first.changed_devices, first.status.generation)
    assert set((await admin.sync_policy(reason="x", request_id="s-2")).changed_devices) == {"dpu-0", "dpu-1"}


async def test_a_repeated_rotation_is_answered_when_the_device_is_gone(pair, admin, process) -> None:
    once = await admin.rotate_keys(device="dpu-1", reason="x", request_id="k-1")
    await pair[3].close()
    async with asyncio.timeout(5):
        while (await admin.get_device("dpu-1")).connected:
            await asyncio.sleep(0.02)
    assert await admin.rotate_keys(device="dpu-1", reason="x", request_id="k-1") == once
    with pytest.raises(StateError):
        await admin.rotate_keys(device="dpu-1", reason="x", request_id="k-2")


async def test_a_token_request_is_known_again_after_its_token_was_spent(make_agent, admin, process) -> None:
    stub_request = device_pb2.CreateJoinTokenRequest(name="dpu-0", reason="x", request_id="t-1")
    async with aio.insecure_channel(f"unix:{process.spec.admin_socket}") as channel:
        stub = device_pb2_grpc.DeviceServiceStub(channel)
        agent = await make_agent(token=False)
        agent.token = (await stub.CreateJoinToken(stub_request)).token
        await agent.attest()
        codes = []
        for request_id in ("t-1", "t-2"):
            stub_request.request_id = request_id
            with pytest.raises(aio.AioRpcError) as refused:
                await stub.CreateJoinToken(stub_request)
            codes.append(refused.value.details())
    assert codes == ["conflict", "state"]
