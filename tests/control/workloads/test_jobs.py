"""Jobs and identities of workloads over a real control: tokens, ranks, signatures, and who is refused what."""

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ztdpu.control.run import ControlProcess
from ztdpu.errors import ConflictError, NotFoundError, PermissionDeniedError, UsageError
from ztdpu.model.job import JobState
from ztdpu.trust.jwt_svid import read_jwt_bundle, verify_jwt_svid
from ztdpu.trust.svid import verify_svid
from ztdpu.v1 import agent_pb2

TENANT_PATH = "spiffe://test.example/tenant"


class Device:
    """A leased device on its stream, asking for its endpoints."""

    def __init__(self, agent, stream, workloads):
        self.agent, self.stream, self.workloads = agent, stream, workloads
        self.number = 0

    async def ask(self, endpoint, **action):
        self.number += 1
        await self.stream.send(workload=agent_pb2.WorkloadRequest(number=self.number, endpoint=endpoint, **action))
        while True:
            message = await self.stream.receive()
            if message.HasField("workloads"):
                self.workloads = message.workloads
            elif message.HasField("workload_answer"):
                assert message.workload_answer.number == self.number
                return message.workload_answer

    async def join(self, endpoint, token, rank=0):
        return await self.ask(endpoint, join=agent_pb2.JoinJob(token=token, rank=rank))

    async def sign(self, endpoint, job="", key=None):
        key = key or ec.generate_private_key(ec.SECP256R1())
        public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return await self.ask(endpoint, x509=agent_pb2.SignX509Svid(public_key=public, job=job))

    async def hear(self):
        self.workloads = (await self.stream.receive("workloads")).workloads
        return self.workloads


@pytest.fixture
async def devices(make_agent, open_stream):
    made = []
    for name in ("dpu-0", "dpu-1"):
        agent = await make_agent(name)
        await agent.attest()
        stream = await open_stream(agent)
        made.append(Device(agent, stream, (await stream.receive("workloads")).workloads))
    return made


def names(workloads):
    return {(one.endpoint, one.job) for one in workloads.memberships}


async def token_of(admin, tenant="blue", job="train-1", size=2, **more):
    return (await admin.create_job_token(tenant, job, world_size=size, ttl_s=60, reason="test", **more)).token


async def test_an_agent_is_told_its_endpoints_and_gets_their_svids(devices, process: ControlProcess):
    first, _ = devices
    assert names(first.workloads) == {("blue-0", ""), ("green-0", ""), ("red-0", "")}
    answer = await first.sign("blue-0")
    spiffe_id = verify_svid(list(answer.x509_svid), process.issuer.bundle, datetime.now(UTC))
    assert str(spiffe_id) == answer.spiffe_id == f"{TENANT_PATH}/blue/endpoint/blue-0"
    leaf = x509.load_der_x509_certificate(answer.x509_svid[0])
    assert not list(leaf.subject)
    alternative = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert not alternative.get_values_for_type(x509.DNSName)
    answer = await first.ask("red-0", jwt=agent_pb2.SignJwtSvid(audience=["db"]))
    svid = verify_jwt_svid(
        answer.jwt_svid, keys=read_jwt_bundle(first.workloads.jwt_bundle), trust_domain="test.example",
        audience="db", now=datetime.now(UTC),
    )  # fmt: skip
    assert str(svid.spiffe_id) == f"{TENANT_PATH}/red/endpoint/red-0"
    assert list(first.workloads.authorities) == [
        one.public_bytes(Encoding.DER) for one in process.issuer.bundle.authorities
    ]


async def test_ranks_join_once_and_the_same_endpoint_again(devices, admin):
    first, second = devices
    token = await token_of(admin)
    answer = await first.join("blue-0", token, 0)
    assert answer.spiffe_id == f"{TENANT_PATH}/blue/job/train-1/rank/0"
    assert ("blue-0", "train-1") in names(first.workloads), "the list comes before the answer"
    assert (await first.join("blue-0", token, 0)).spiffe_id == answer.spiffe_id
    assert (await second.join("blue-1", token, 0)).refusal == "conflict"
    assert (await first.join("blue-0", token, 1)).refusal == "conflict"
    assert (await second.join("blue-1", token, 2)).refusal == "usage"
    assert (await second.join("blue-1", token, 1)).spiffe_id.endswith("/rank/1")
    job = await admin.get_job("blue", "train-1")
    assert (job.state, [(one.rank, one.endpoint) for one in job.ranks]) == (
        JobState.COMPLETE, [(0, "blue-0"), (1, "blue-1")],
    )  # fmt: skip
    assert (await first.sign("blue-0", "train-1")).x509_svid
    radius = (await admin.revoke_device("dpu-1", reason="ask", dry_run=True)).blast_radius
    assert (radius.jobs, radius.ranks, radius.tenants) == (("blue/train-1",), 1, ("blue", "red"))
    await admin.end_job("blue", "train-1", reason="done")
    radius = (await admin.revoke_device("dpu-1", reason="ask", dry_run=True)).blast_radius
    assert (radius.jobs, radius.ranks) == ((), 0)


async def test_a_token_says_what_it_is_for_and_is_no_option(admin):
    """A token that began with a dash would be an option to most programs that are given it."""
    assert (await token_of(admin)).startswith("ztj-")
    assert (await admin.create_join_token("dpu-0")).token.startswith("ztd-")


async def test_no_token_of_another_tenant_epoch_or_fancy(devices, admin):
    """W1: hijacking a rank; the twin is the endpoint whose token it is."""
    first, second = devices
    over = await token_of(admin)
    token = await token_of(admin, replace=True)
    ended = await token_of(admin, job="done")
    await admin.end_job("blue", "done", reason="test")
    foreign = [("red-0", token), ("green-0", token), ("blue-0", over), ("blue-0", ended), ("blue-0", token[:-1] + "~")]
    guesses = [("blue-0", secrets.token_urlsafe(32)) for _ in range(20)]
    for endpoint, bad in [*foreign, *guesses, ("blue-0", ""), ("blue-0", "x" * 200)]:
        assert (await first.join(endpoint, bad)).refusal == "permission-denied"
    for endpoint in ("blue-1", "red-1", "nobody", "../blue-0", ""):
        assert (await first.join(endpoint, token)).refusal == "permission-denied", "not an endpoint of dpu-0"
        assert (await first.sign(endpoint)).refusal == "permission-denied"
    assert not (await admin.get_job("blue", "train-1")).ranks
    assert (await first.join("blue-0", token)).spiffe_id
    assert (await second.join("blue-1", token, 1)).spiffe_id
    leaves = [json.loads(one.leaf) for one in await admin.list_audit(first=0)]
    refused = [one for one in leaves if (one["action"], one["outcome"]) == ("join-job", "refused")]
    assert {one["actor"] for one in refused} >= {"endpoint:red-0", "endpoint:green-0", "endpoint:blue-0"}
    assert {one["reason"] for one in refused} == {"permission-denied"}
    assert token not in json.dumps(leaves)


async def test_ten_thousand_joins_of_strangers_and_none_is_let_in(devices, admin, process: ControlProcess):
    """Beneath the rates of sidecar and control, which would let few of them through."""
    jobs, endpoints = process._listeners._jobs, process.fleet.desired.cluster.endpoints
    over = await token_of(admin)
    token = await token_of(admin, replace=True)
    other = await token_of(admin, tenant="red", job="other", size=4)
    tries = [
        lambda: ("red-0", token), lambda: ("blue-0", other), lambda: ("blue-0", over),
        lambda: ("blue-0", secrets.token_urlsafe(32)),
    ]  # fmt: skip
    for number in range(10_000):
        endpoint, bad = tries[number % 4]()
        with pytest.raises(PermissionDeniedError):
            jobs.join(endpoints[endpoint], token=bad, rank=number % 4)
    assert not any(one.ranks for one in await admin.list_jobs())
    assert jobs.join(endpoints["blue-0"], token=token, rank=0).name == "train-1"


async def test_identities_of_jobs_end_with_leave_end_and_replace(devices, admin):
    first, _ = devices
    token = await token_of(admin)
    for end in ("leave", "replace", "end"):
        await first.join("blue-0", token)
        assert ("blue-0", "train-1") in names(first.workloads)
        if end == "leave":
            assert not (await first.ask("blue-0", leave=agent_pb2.LeaveJob(job="train-1"))).refusal
            assert (await first.ask("blue-0", leave=agent_pb2.LeaveJob(job="train-1"))).refusal == "not-found"
        elif end == "replace":
            token = await token_of(admin, replace=True)
            await first.hear()
        else:
            await admin.end_job("blue", "train-1", reason="test")
            await first.hear()
        assert names(first.workloads) == {("blue-0", ""), ("green-0", ""), ("red-0", "")}
        assert (await first.sign("blue-0", "train-1")).refusal == "permission-denied"
        assert (await first.sign("blue-0")).x509_svid
    assert (await first.join("blue-0", token)).refusal == "permission-denied"
    assert (await admin.get_job("blue", "train-1")).state is JobState.ENDED


async def test_quarantine_withdraws_every_identity_at_once(devices, admin):
    first, second = devices
    await admin.quarantine_device("dpu-0", reason="test")
    assert not (await first.hear()).memberships
    assert (await first.sign("blue-0")).refusal == "lease"
    assert (await second.sign("blue-1")).x509_svid


@pytest.mark.parametrize(
    "key",
    [b"", b"x" * 300, b"no key",
     ec.derive_private_key(5, ec.SECP384R1()).public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)],
)  # fmt: skip
async def test_keys_that_are_none_are_refused(devices, key):
    first, _ = devices
    answer = await first.ask("blue-0", x509=agent_pb2.SignX509Svid(public_key=key))
    assert answer.refusal == "usage"
    assert (await first.ask("blue-0")).refusal == "usage"
    assert (await first.sign("blue-0")).x509_svid


async def test_what_is_no_job_is_refused_and_an_open_one_is_not_opened_twice(admin):
    made = await admin.create_job_token("blue", "a", world_size=1, ttl_s=0, reason="test")
    assert made.expires_unix_ms
    with pytest.raises(ConflictError):
        await token_of(admin, job="a")
    again = await admin.create_job_token("blue", "a", world_size=1, ttl_s=9, reason="test", replace=True)
    assert again.epoch > made.epoch
    for job, size, ttl_s in (
        ("A", 1, 1),
        ("a/b", 1, 1),
        ("x" * 64, 1, 1),
        ("b", 0, 1),
        ("b", 4097, 1),
        ("b", 1, 86_401),
    ):
        with pytest.raises(UsageError):
            await admin.create_job_token("blue", job, world_size=size, ttl_s=ttl_s, reason="test")
    with pytest.raises(NotFoundError):
        await token_of(admin, tenant="nobody")
    with pytest.raises(NotFoundError):
        await admin.end_job("blue", "b", reason="test")
    assert [(one.tenant, one.name) for one in await admin.list_jobs()] == [("blue", "a")]
    assert await admin.list_jobs("red") == []


async def test_jobs_outlive_control_and_end_with_their_tenant(plant, devices, admin, process: ControlProcess):
    first, _ = devices
    token = await token_of(admin)
    await first.join("blue-0", token)
    await process.stop()
    process._lock = None  # the fixture stops it once more
    again = ControlProcess(plant.configuration())
    await again.start()
    try:
        jobs = again._listeners._jobs
        assert [one.rank for one in jobs.get("blue", "train-1").ranks] == [0]
        tenants = dict(again.fleet.desired.cluster.tenants)
        del tenants["blue"]
        object.__setattr__(again.fleet.desired.cluster, "tenants", tenants)
        jobs.sweep()
        assert jobs.get("blue", "train-1").state is JobState.ENDED
    finally:
        await again.stop()
