"""SidecarService: who am I, join, leave, status."""

import grpc
import pytest
from sidecar_ground import TRUST_DOMAIN

from ztdpu.agent.sidecar import service
from ztdpu.v1 import sidecar_pb2

RANK = f"spiffe://{TRUST_DOMAIN}/tenant/blue/job/train/rank/3"
OWN = f"spiffe://{TRUST_DOMAIN}/tenant/blue/endpoint/blue-0"


async def code_of(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


async def test_join_returns_when_the_rank_has_its_svid(ground):
    await ground.ready()
    stub = ground.service
    joined = await stub.Join(sidecar_pb2.JoinRequest(token="t", rank=3))
    assert (joined.spiffe_id, joined.job, joined.world_size, joined.epoch) == (RANK, "train", 4, 1)
    assert [one.spiffe_id for one in ground.sidecar.book.view("blue-0").svids] == [RANK, OWN]
    who = await stub.WhoAmI(sidecar_pb2.WhoAmIRequest())
    assert (who.tenant, who.endpoint, list(who.spiffe_ids)) == ("blue", "blue-0", [RANK, OWN])
    status = await stub.Status(sidecar_pb2.StatusRequest())
    assert (status.leased, status.waiting_for) == (True, "")
    assert all(one.expires_unix_s for one in status.identities)
    assert [one.rank for one in status.memberships] == [3]


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        ("permission-denied", grpc.StatusCode.PERMISSION_DENIED),
        ("conflict", grpc.StatusCode.ALREADY_EXISTS),
        ("usage", grpc.StatusCode.INVALID_ARGUMENT),
        ("lease", grpc.StatusCode.UNAVAILABLE),
        ("state", grpc.StatusCode.FAILED_PRECONDITION),
        ("something-new", grpc.StatusCode.PERMISSION_DENIED),
    ],
)
async def test_refusals_of_control_by_their_code_word(ground, refusal, code):
    await ground.ready()
    ground.refusal = refusal
    got = await code_of(ground.service.Join(sidecar_pb2.JoinRequest(token="t", rank=0)))
    assert got == (code, refusal if refusal != "something-new" else "refused")


async def test_tokens_are_bounded_and_guessing_is_slow(ground):
    await ground.ready()
    stub = ground.service
    for token in ("", "x" * 129):
        assert (await code_of(stub.Join(sidecar_pb2.JoinRequest(token=token))))[0] is grpc.StatusCode.INVALID_ARGUMENT
    ground.refusal = "permission-denied"
    codes = [
        (await code_of(stub.Join(sidecar_pb2.JoinRequest(token="guess"))))[0]
        for _ in range(int(service.JOIN_BURST) + 5)
    ]
    assert codes[0] is grpc.StatusCode.PERMISSION_DENIED
    assert codes[-1] is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_without_a_lease_who_am_i_still_answers(ground):
    await ground.ready()
    ground.lease(0)
    stub = ground.service
    who = await stub.WhoAmI(sidecar_pb2.WhoAmIRequest())
    assert (who.endpoint, who.tenant, list(who.spiffe_ids)) == ("blue-0", "", [])
    assert (await stub.Status(sidecar_pb2.StatusRequest())).waiting_for == "a lease of the device"
    for call in (stub.Join(sidecar_pb2.JoinRequest(token="t")), stub.Leave(sidecar_pb2.LeaveRequest(job="train"))):
        assert (await code_of(call))[0] is grpc.StatusCode.PERMISSION_DENIED


async def test_leave_asks_control(ground):
    await ground.ready()
    await ground.service.Leave(sidecar_pb2.LeaveRequest(job="train"))
    assert ground.requests[-1].leave.job == "train"
    ground.refusal = "not-found"
    got = await code_of(ground.service.Leave(sidecar_pb2.LeaveRequest(job="other")))
    assert got[0] is grpc.StatusCode.NOT_FOUND


async def test_answers_of_a_stream_before_are_not_waited_for(ground):
    await ground.ready()
    ground.answer = lambda _request: ground.sidecar.uplink_opened()
    got = await code_of(ground.service.Leave(sidecar_pb2.LeaveRequest(job="train")))
    assert got == (grpc.StatusCode.UNAVAILABLE, "unreachable")
