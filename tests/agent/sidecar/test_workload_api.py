"""The Workload API on its socket: our own stubs, and the PyPI `spiffe` client as an independent peer."""

import asyncio
import json
import os
import secrets
import sys
from datetime import UTC, datetime

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_der_private_key
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from sidecar_ground import HEADER, TRUST_DOMAIN

from ztdpu.agent.sidecar.identities import Membership
from ztdpu.trust.jwt_svid import key_id
from ztdpu.trust.svid import Bundle, create_authority, verify_svid
from ztdpu.workloadapi import workload_pb2

OWN = f"spiffe://{TRUST_DOMAIN}/tenant/blue/endpoint/blue-0"
JOB = Membership(endpoint="blue-0", tenant="blue", job="train-1", rank=2, world_size=4, epoch=7)
RANK = f"spiffe://{TRUST_DOMAIN}/tenant/blue/job/train-1/rank/2"
REQUEST = workload_pb2.X509SVIDRequest()


async def first(call):
    message = await call.read()
    call.cancel()
    return message


async def refusal(awaitable):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaitable
    return caught.value.code()


async def test_first_message_at_once_and_full_state_on_every_change(ground):
    await ground.ready()
    call = ground.workload.FetchX509SVID(REQUEST, metadata=HEADER)
    message = await call.read()
    assert [(one.spiffe_id, one.hint) for one in message.svids] == [(OWN, "endpoint")]
    one = message.svids[0]
    bundle = Bundle(trust_domain=TRUST_DOMAIN, authorities=(ground.authority.certificate,))
    assert str(verify_svid([one.x509_svid], bundle, datetime.now(UTC))) == OWN
    leaf = x509.load_der_x509_certificate(one.x509_svid)
    assert load_der_private_key(one.x509_svid_key, None).public_key() == leaf.public_key()
    assert not list(leaf.subject)
    assert one.bundle == ground.authority.certificate.public_bytes(Encoding.DER)
    ground.memberships = (*ground.memberships, JOB)
    ground.tell()
    while len(message.svids) < 2:
        message = await call.read()
    assert [(one.spiffe_id, one.hint) for one in message.svids] == [(RANK, "job:train-1"), (OWN, "endpoint")]
    ground.memberships = ground.memberships[:1]
    ground.tell()
    message = await call.read()
    assert [one.spiffe_id for one in message.svids] == [OWN]
    call.cancel()


@pytest.mark.parametrize("end", ["lease", "policy", "deadline"])
async def test_streams_end_with_permission_denied_when_the_identity_goes(ground, end):
    await ground.ready()
    stub = ground.workload
    calls = [
        stub.FetchX509SVID(REQUEST, metadata=HEADER),
        stub.FetchX509Bundles(workload_pb2.X509BundlesRequest(), metadata=HEADER),
        stub.FetchJWTBundles(workload_pb2.JWTBundlesRequest(), metadata=HEADER),
    ]
    for call in calls:
        await call.read()
    if end == "lease":
        ground.lease(0)
    elif end == "deadline":
        ground.lease(ground.sidecar.book._boottime_ns() + 50_000_000)
    else:
        ground.memberships = ()
        ground.tell()
    for call in calls:
        async with asyncio.timeout(2):
            assert await refusal(call.read()) is grpc.StatusCode.PERMISSION_DENIED
    assert await refusal(stub.FetchX509SVID(REQUEST, metadata=HEADER).read()) is grpc.StatusCode.PERMISSION_DENIED
    ground.memberships = (Membership(endpoint="blue-0", tenant="blue"),)
    ground.lease()
    ground.tell()
    await ground.wait(lambda: ground.sidecar.book.view("blue-0").svids)
    assert (await first(stub.FetchX509SVID(REQUEST, metadata=HEADER))).svids[0].spiffe_id == OWN


async def test_without_the_header_nothing_and_while_starting_unavailable(ground):
    ground.sidecar.set_endpoints(["blue-0"])
    await ground.wait(ground.socket.exists)
    stub = ground.workload
    for metadata in ((), (("workload.spiffe.io", "false"),), (*HEADER, *HEADER)):
        code = await refusal(stub.FetchX509SVID(REQUEST, metadata=metadata).read())
        assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert await refusal(stub.FetchX509SVID(REQUEST, metadata=HEADER).read()) is grpc.StatusCode.UNAVAILABLE
    ground.lease()
    ground.tell()
    await ground.wait(lambda: ground.sidecar.book.view("blue-0").svids)
    assert (await first(stub.FetchX509SVID(REQUEST, metadata=HEADER))).svids


async def test_wit_calls_are_unimplemented_and_reflection_is_there(ground):
    await ground.ready()
    channel = ground.channel()
    for name in ("FetchWITSVID", "FetchWITBundles"):
        call = channel.unary_unary(f"/SpiffeWorkloadAPI/{name}")
        assert await refusal(call(b"", metadata=HEADER)) is grpc.StatusCode.UNIMPLEMENTED
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    answers = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([asked]))
    answer = await answers.read()
    names = {one.name for one in answer.list_services_response.service}
    assert {"SpiffeWorkloadAPI", "ztdpu.v1.SidecarService"} <= names


async def test_jwt_svids_by_audience_and_identity(ground):
    await ground.ready()
    ground.memberships = (*ground.memberships, JOB)
    ground.tell()
    stub = ground.workload

    async def fetch(*audience, spiffe_id=""):
        request = workload_pb2.JWTSVIDRequest(audience=audience, spiffe_id=spiffe_id)
        return (await stub.FetchJWTSVID(request, metadata=HEADER)).svids

    assert [one.spiffe_id for one in await fetch("db")] == [RANK, OWN]
    (own,) = await fetch("db", spiffe_id=OWN)
    assert (await fetch("db", spiffe_id=OWN))[0].svid == own.svid, "kept for half its life"
    for audience in ((), ("",), ("a",) * 2, tuple("abcde"), ("x" * 256,)):
        assert await refusal(fetch(*audience)) is grpc.StatusCode.INVALID_ARGUMENT
    foreign = f"spiffe://{TRUST_DOMAIN}/tenant/red/endpoint/red-0"
    assert await refusal(fetch("db", spiffe_id=foreign)) is grpc.StatusCode.PERMISSION_DENIED

    async def validate(audience, token):
        request = workload_pb2.ValidateJWTSVIDRequest(audience=audience, svid=token)
        return await stub.ValidateJWTSVID(request, metadata=HEADER)

    answer = await validate("db", own.svid)
    assert (answer.spiffe_id, answer.claims["sub"]) == (OWN, OWN)
    for audience, token in (("web", own.svid), ("", own.svid), ("db", own.svid[:-4] + "AAAA"), ("db", "x")):
        assert await refusal(validate(audience, token)) is grpc.StatusCode.INVALID_ARGUMENT


async def test_svids_are_renewed_at_half_their_life_with_new_keys(ground):
    ground.ttl_s = 2
    await ground.ready()
    call = ground.workload.FetchX509SVID(REQUEST, metadata=HEADER)
    keys = {(await call.read()).svids[0].x509_svid_key for _ in range(3)}
    assert len(keys) == 3
    call.cancel()


async def test_control_that_refuses_or_is_away_leaves_what_there_is_until_it_ends(ground):
    ground.ttl_s = 2
    await ground.ready()
    call = ground.workload.FetchX509SVID(REQUEST, metadata=HEADER)
    await call.read()
    ground.connected = False
    async with asyncio.timeout(6):
        assert await refusal(call.read()) is grpc.StatusCode.UNAVAILABLE
    ground.connected = True
    await ground.wait(lambda: ground.sidecar.book.view("blue-0").svids)


PEER = """
import json, sys, threading
from spiffe import WorkloadApiClient
client = WorkloadApiClient()
said = {}
svid = client.fetch_x509_svid()
said["x509"] = str(svid.spiffe_id)
said["bundles"] = len(client.fetch_x509_bundles().get_bundle_for_trust_domain(svid.spiffe_id.trust_domain).x509_authorities)
jwt = client.fetch_jwt_svid(audience={"db"})
said["jwt"] = str(jwt.spiffe_id)
said["validated"] = str(client.validate_jwt_svid(jwt.token, "db").spiffe_id)
said["jwt_keys"] = len(client.fetch_jwt_bundles().get_bundle_for_trust_domain(svid.spiffe_id.trust_domain).jwt_authorities)
updates, enough = [], threading.Event()
def take(context):
    updates.append(str(context.default_svid.cert_chain[0].serial_number))
    if len(updates) == 3:
        enough.set()
stream = client.stream_x509_contexts(take, lambda error: None)
said["rotated"] = enough.wait(20) and len(set(updates)) == 3
stream.cancel()
print(json.dumps(said), flush=True)
"""


async def test_an_independent_client_fetches_streams_and_rotates(ground):
    pytest.importorskip("importlib.metadata").version("spiffe")
    ground.ttl_s = 4
    await ground.ready()
    peer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PEER, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"SPIFFE_ENDPOINT_SOCKET": f"unix://{ground.socket}"},
    )  # fmt: skip
    async with asyncio.timeout(40):
        out, errors = await peer.communicate()
    assert peer.returncode == 0, errors.decode()
    assert json.loads(out) == {
        "x509": OWN, "bundles": 1, "jwt": OWN, "validated": OWN, "jwt_keys": 1, "rotated": True,
    }  # fmt: skip


JWT_PEER = """
import json, threading
from spiffe import WorkloadApiClient
client = WorkloadApiClient()
heard, changed = [], threading.Condition()
def take(bundles):
    with changed:
        heard.append([sorted(one.jwt_authorities) for one in bundles.bundles])
        changed.notify()
stream = client.stream_jwt_bundles(take, lambda error: None)
def token_after(count):
    with changed:
        assert changed.wait_for(lambda: len(heard) >= count, 20)
    jwt = client.fetch_jwt_svid(audience={"db"})
    print(json.dumps([heard[-1], str(client.validate_jwt_svid(jwt.token, "db").spiffe_id), jwt.token]), flush=True)
token_after(1)
token_after(2)
stream.cancel()
"""


async def test_an_independent_client_follows_another_jwt_key(ground):
    """A token that was kept under the key of before verifies nothing any more: it is not given out again."""
    pytest.importorskip("importlib.metadata").version("spiffe")
    await ground.ready()
    peer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", JWT_PEER, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"SPIFFE_ENDPOINT_SOCKET": f"unix://{ground.socket}"},
    )  # fmt: skip
    async with asyncio.timeout(40):
        before = json.loads(await peer.stdout.readline())
        old, ground.jwt_key = ground.jwt_key, ec.generate_private_key(ec.SECP256R1())
        ground.tell()
        out, errors = await peer.communicate()
    assert peer.returncode == 0, errors.decode()
    after = json.loads(out)
    assert (before[:2], after[:2]) == tuple([[[key_id(key.public_key())]], OWN] for key in (old, ground.jwt_key))
    assert before[2] != after[2]


async def test_a_second_authority_reaches_open_streams(ground):
    await ground.ready()
    call = ground.workload.FetchX509Bundles(workload_pb2.X509BundlesRequest(), metadata=HEADER)
    before = (await call.read()).bundles[f"spiffe://{TRUST_DOMAIN}"]
    made = create_authority(
        TRUST_DOMAIN, datetime.now(UTC), ec.generate_private_key(ec.SECP256R1()), secrets.randbits(90)
    )
    second = made.certificate.public_bytes(Encoding.DER)
    ground.tell(authorities=[second])
    assert (await call.read()).bundles[f"spiffe://{TRUST_DOMAIN}"] == before + second
    call.cancel()


async def test_svids_are_signed_anew_when_the_bundle_changes(ground):
    await ground.ready()
    call = ground.workload.FetchX509SVID(REQUEST, metadata=HEADER)
    before = (await call.read()).svids[0]
    ground.authority = create_authority(
        TRUST_DOMAIN, datetime.now(UTC), ec.generate_private_key(ec.SECP256R1()), secrets.randbits(90)
    )
    ground.tell()
    async with asyncio.timeout(5):
        while (after := (await call.read()).svids[0]).x509_svid == before.x509_svid:
            pass
    bundle = Bundle(trust_domain=TRUST_DOMAIN, authorities=(ground.authority.certificate,))
    assert str(verify_svid([after.x509_svid], bundle, datetime.now(UTC))) == OWN
    call.cancel()
