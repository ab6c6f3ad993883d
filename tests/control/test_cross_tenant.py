"""Every RPC with every other tenant's names, three tenants: nothing is told and nothing changes.

What is called comes from the authorisation table and the services' descriptors, so a new RPC is tried without being
listed here. Each refusal has its twin: the same call with the caller's own name is let in.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from grpc import aio

from ztdpu.control.doors.authorisation import TABLE, Role, Scope
from ztdpu.control.doors.listeners import SERVICES
from ztdpu.trust.svid import issue_svid

TRUST_DOMAIN = "test.example"
TENANTS = ("blue", "green", "red")
CLOSED = {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.NOT_FOUND}
NAMING = ("tenant", "name", "endpoint", "device", "job")
"""Fields of requests that name whose thing it is."""


def methods() -> Iterator[MethodDescriptor]:
    pool = descriptor_pool.Default()
    for service in SERVICES:
        yield from pool.FindServiceByName(service).methods


def path(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def names_of(tenant: str, field: str, method: MethodDescriptor) -> tuple[str, ...]:
    """What a field of this name could hold that is of this tenant alone."""
    if field == "tenant":
        return (tenant,)
    if field == "endpoint":
        return (f"{tenant}-0",)
    if field == "device":
        return ("dpu-0",)
    if field == "job":
        return ("train",)
    noun = method.containing_service.name
    return {"TenantService": (tenant,), "EndpointService": (f"{tenant}-0",)}.get(noun, ("dpu-0",))


def requests(method: MethodDescriptor, tenant: str) -> Iterator[Any]:
    """One request for each field that names something, and one with all of them."""
    kind = message_factory.GetMessageClass(method.input_type)
    texts = [f.name for f in method.input_type.fields if f.type == FieldDescriptor.TYPE_STRING]
    naming = [name for name in texts if name in NAMING]
    rest = {name: "x" for name in texts if name == "reason"}
    for name in naming:
        for value in names_of(tenant, name, method):
            yield kind(**rest | {name: value})
    if len(naming) > 1 and not method.input_type.oneofs:
        yield kind(**rest | {name: names_of(tenant, name, method)[0] for name in naming})


@pytest.fixture
def bound(plant: Any) -> None:
    documents = [
        f"apiVersion: ztdpu.dev/v1\nkind: RoleBinding\nmetadata: {{name: admin-of-{tenant}}}\n"
        f'spec: {{spiffeId: "spiffe://{TRUST_DOMAIN}/user/{tenant}", role: tenant-admin, tenant: {tenant}}}\n'
        for tenant in TENANTS
    ]
    (plant.policy_dir / "roles.yaml").write_text("---\n".join(documents))


def open_as(process: Any, tenant: str) -> aio.Channel:
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    (der,) = issue_svid(
        process.issuer.authority, trust_domain=TRUST_DOMAIN, path=f"/user/{tenant}", public_key=key.public_key(),
        not_before=now - timedelta(seconds=20), not_after=now + timedelta(seconds=60), serial=secrets.randbits(64) | 1,
    )  # fmt: skip
    credentials = grpc.ssl_channel_credentials(
        root_certificates=process.issuer.bundle_pem,
        private_key=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        certificate_chain=x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM),
    )
    options = [("grpc.ssl_target_name_override", f"control.{TRUST_DOMAIN}"), ("grpc.use_local_subchannel_pool", 1)]
    return aio.secure_channel(f"127.0.0.1:{process.main_port}", credentials, options=options)


async def call(channel: aio.Channel, method: MethodDescriptor, request: Any) -> tuple[grpc.StatusCode, Any]:
    streams = "_".join("stream" if one else "unary" for one in (method.client_streaming, method.server_streaming))
    stub = getattr(channel, streams)(
        path(method),
        request_serializer=lambda one: one.SerializeToString(),
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )
    try:
        running = stub(iter([request]) if method.client_streaming else request, timeout=10)
        answer = await (running.read() if method.server_streaming else running)
        if method.server_streaming:
            code = await running.code() if answer is aio.EOF else grpc.StatusCode.OK
            running.cancel()
            return code, answer
    except aio.AioRpcError as error:
        return error.code(), None
    return grpc.StatusCode.OK, answer


def is_shared(method: MethodDescriptor) -> bool:
    """Whether the thing named is one that both tenants are on: a device hosts several."""
    return method.containing_service.name == "DeviceService"


@pytest.mark.parametrize("caller", TENANTS)
async def test_nothing_of_another_tenant_is_in_reach(caller: str, bound: None, process: Any) -> None:
    tried, allowed, own = 0, [], 0
    generation = process.fleet.generation
    epochs = {one.network.tenant: one.key.epoch for one in process.fleet.epochs.list()}
    async with open_as(process, caller) as channel:
        for method in methods():
            scope = TABLE[path(method)].get(Role.TENANT_ADMIN)
            for other in TENANTS:
                for request in requests(method, other):
                    if scope is Scope.TENANT and is_shared(method):
                        continue  # what is told about a shared device is the next test
                    code, answer = await call(channel, method, request)
                    if other == caller and scope is Scope.TENANT:
                        own += code != grpc.StatusCode.PERMISSION_DENIED
                        continue
                    tried += 1
                    told = code is grpc.StatusCode.OK and other in str(answer)
                    if told or (code not in CLOSED and code is not grpc.StatusCode.OK):
                        allowed.append((path(method), str(request), code))
    assert allowed == []
    assert tried > 30
    assert own >= 4
    after = {one.network.tenant: one.key.epoch for one in process.fleet.epochs.list()}
    others = [tenant for tenant in TENANTS if tenant != caller]
    assert [after[one] for one in others] == [epochs[one] for one in others]
    assert process.fleet.generation >= generation


@pytest.mark.parametrize("caller", TENANTS)
async def test_lists_tell_of_the_callers_own_things(caller: str, bound: None, process: Any) -> None:
    others = [tenant for tenant in TENANTS if tenant != caller]
    async with open_as(process, caller) as channel:
        for method in methods():
            if not method.name.startswith("List") or Role.TENANT_ADMIN not in TABLE[path(method)]:
                continue
            code, answer = await call(channel, method, message_factory.GetMessageClass(method.input_type)())
            assert code is grpc.StatusCode.OK, path(method)
            for other in others:
                assert f'"{other}-' not in str(answer).replace("blue-green", ""), path(method)
                assert f'tenant: "{other}"' not in str(answer), path(method)
