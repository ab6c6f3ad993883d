"""The table role x RPC x scope against every service descriptor, and the matrix over real mutual TLS."""

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
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor
from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from ztdpu.control.doors.authorisation import TABLE, Access, Caller, Role, Scope, authorise
from ztdpu.control.doors.listeners import SERVICES
from ztdpu.errors import NotFoundError, PermissionDeniedError
from ztdpu.trust.svid import create_authority, issue_svid
from ztdpu.v1 import (
    agent_pb2,
    attestation_pb2,
    audit_pb2,
    control_pb2,
    device_pb2,
    endpoint_pb2,
    identity_pb2,
    job_pb2,
    key_pb2,
    policy_pb2,
    tenant_pb2,
)

TRUST_DOMAIN = "test.example"
MODULES = (
    agent_pb2, attestation_pb2, audit_pb2, control_pb2, device_pb2, endpoint_pb2, identity_pb2, job_pb2, key_pb2,
    policy_pb2, tenant_pb2, health_pb2, reflection_pb2,
)  # fmt: skip


def all_methods() -> Iterator[MethodDescriptor]:
    for module in MODULES:
        for service in module.DESCRIPTOR.services_by_name.values():
            yield from service.methods


def path(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def test_every_rpc_is_in_the_table_and_nothing_else() -> None:
    assert {path(method) for method in all_methods()} == set(TABLE)


def test_every_service_is_served() -> None:
    ours = {m.containing_service.full_name for m in all_methods() if m.full_name.startswith("ztdpu.")}
    assert ours == set(SERVICES)


def test_only_operators_change_anything_but_their_own_keys() -> None:
    changing = ("Create", "Revoke", "Quarantine", "Restore", "Sync", "Rotate")
    for method, roles in TABLE.items():
        if method.rpartition("/")[2].startswith(changing):
            assert set(roles) <= {Role.OPERATOR, Role.TENANT_ADMIN}, method
            assert roles.get(Role.TENANT_ADMIN, Scope.TENANT) is Scope.TENANT, method


@pytest.mark.parametrize("role", list(Role))
def test_unknown_rpc_is_refused_for_everybody(role: Role) -> None:
    with pytest.raises(PermissionDeniedError):
        authorise(Caller(role=role, name="x"), "/ztdpu.v1.DeviceService/Nonsense")


def test_scope_of_a_tenant() -> None:
    access = Access(caller=Caller(role=Role.TENANT_ADMIN, name="x", tenants=frozenset({"blue"})), scope=Scope.TENANT)
    access.require_tenant("blue", "tenant")
    with pytest.raises(NotFoundError):
        access.require_tenant("red", "tenant")
    assert access.sees_device("dpu-0", ("blue", "red"))
    assert not access.sees_device("dpu-0", ("red",))


# --- over the wire ---


def identity(process: Any, path: str, *, ttl_s: int = 60, authority: Any = None) -> tuple[bytes, bytes]:
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    authority = authority or process.issuer.authority
    (der,) = issue_svid(
        authority,
        trust_domain=TRUST_DOMAIN,
        path=path,
        public_key=key.public_key(),
        not_before=now - timedelta(seconds=20),
        not_after=now + timedelta(seconds=ttl_s),
        serial=secrets.randbits(64) | 1,
    )
    pem = x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), pem


def open_channel(process: Any, port: int, pair: tuple[bytes, bytes] | None) -> aio.Channel:
    credentials = grpc.ssl_channel_credentials(
        root_certificates=process.issuer.bundle_pem,
        private_key=pair[0] if pair else None,
        certificate_chain=pair[1] if pair else None,
    )
    options = [("grpc.ssl_target_name_override", f"control.{TRUST_DOMAIN}"), ("grpc.use_local_subchannel_pool", 1)]
    return aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options)


async def call(channel: aio.Channel, method: MethodDescriptor, request: Any = None) -> grpc.StatusCode:
    """Call any method with an empty (or the given) request; the status tells whether it was let in."""
    answer_class = message_factory.GetMessageClass(method.output_type)
    request = request or message_factory.GetMessageClass(method.input_type)()
    streams = (
        ("stream" if method.client_streaming else "unary") + "_" + ("stream" if method.server_streaming else "unary")
    )
    stub = getattr(channel, streams)(
        path(method),
        request_serializer=lambda one: one.SerializeToString(),
        response_deserializer=answer_class.FromString,
    )
    try:
        running = stub(iter([request]) if method.client_streaming else request, timeout=5)
        if method.server_streaming:
            await running.read()
            running.cancel()
        else:
            await running
    except aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


ROLE_PATHS = {
    Role.OPERATOR: "/user/olga",
    Role.AUDITOR: "/user/anton",
    Role.TENANT_ADMIN: "/user/tina",
    Role.AGENT: "/dpu/dpu-0",
}


@pytest.fixture
def bound_roles(plant: Any) -> None:
    documents = []
    for role, path in ROLE_PATHS.items():
        if role is Role.AGENT:
            continue
        tenant = ", tenant: blue" if role is Role.TENANT_ADMIN else ""
        documents.append(
            f"apiVersion: ztdpu.dev/v1\nkind: RoleBinding\nmetadata: {{name: {role}}}\n"
            f'spec: {{spiffeId: "spiffe://{TRUST_DOMAIN}{path}", role: {role}{tenant}}}\n'
        )
    (plant.policy_dir / "roles.yaml").write_text("---\n".join(documents))


@pytest.mark.parametrize("role", list(ROLE_PATHS))
async def test_matrix_over_mutual_tls(role: Role, bound_roles: None, process: Any) -> None:
    async with open_channel(process, process.main_port, identity(process, ROLE_PATHS[role])) as channel:
        for method in all_methods():
            if "Reflection" in path(method):
                continue
            code = await call(channel, method)
            if role in TABLE[path(method)] and method.name != "Connect":
                assert code is not grpc.StatusCode.PERMISSION_DENIED, path(method)
            else:
                assert code is grpc.StatusCode.PERMISSION_DENIED, path(method)


async def test_enrolment_port_offers_attestation_only(process: Any) -> None:
    async with open_channel(process, process.enrolment_port, None) as channel:
        for method in all_methods():
            code = await call(channel, method)
            if path(method) == "/ztdpu.v1.AttestationService/Attest":
                assert code is grpc.StatusCode.PERMISSION_DENIED  # an empty first message
            elif "AttestationService" in path(method):
                assert code is grpc.StatusCode.PERMISSION_DENIED
            else:
                assert code is grpc.StatusCode.UNIMPLEMENTED, path(method)


@pytest.mark.parametrize("case", ["no certificate", "expired", "foreign authority", "no role"])
async def test_identities_that_do_not_count(case: str, bound_roles: None, process: Any) -> None:
    method = device_pb2.DESCRIPTOR.services_by_name["DeviceService"].methods_by_name["ListDevices"]
    pair: tuple[bytes, bytes] | None = None
    if case == "expired":
        pair = identity(process, "/user/olga", ttl_s=-5)
    elif case == "foreign authority":
        now = datetime.now(UTC)
        other = create_authority(TRUST_DOMAIN, now, ec.generate_private_key(ec.SECP384R1()), 7)
        pair = identity(process, "/user/olga", authority=other)
    elif case == "no role":
        pair = identity(process, "/user/nobody")
    async with open_channel(process, process.main_port, pair) as channel:
        code = await call(channel, method)
    expected = grpc.StatusCode.PERMISSION_DENIED if case == "no role" else grpc.StatusCode.UNAVAILABLE
    assert code is expected
    async with open_channel(process, process.main_port, identity(process, "/user/olga")) as channel:
        assert await call(channel, method) is grpc.StatusCode.OK


async def test_tenant_admin_sees_own_things_only(bound_roles: None, process: Any) -> None:
    def method(module: Any, service: str, name: str) -> MethodDescriptor:
        return module.DESCRIPTOR.services_by_name[service].methods_by_name[name]

    get_tenant = method(tenant_pb2, "TenantService", "GetTenant")
    get_endpoint = method(endpoint_pb2, "EndpointService", "GetEndpoint")
    rotate = method(key_pb2, "KeyService", "RotateKeys")
    listing = method(endpoint_pb2, "EndpointService", "ListEndpoints")
    job_token, get_job, end_job = (method(job_pb2, "JobService", one) for one in ("CreateJobToken", "GetJob", "EndJob"))
    new_job = {"job": "a", "world_size": 1, "reason": "x"}
    own, foreign, refused = grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.PERMISSION_DENIED
    cases = [
        (get_tenant, tenant_pb2.GetTenantRequest(name="blue"), own),
        (get_tenant, tenant_pb2.GetTenantRequest(name="red"), foreign),
        (get_endpoint, endpoint_pb2.GetEndpointRequest(name="blue-0"), own),
        (get_endpoint, endpoint_pb2.GetEndpointRequest(name="red-0"), foreign),
        (listing, endpoint_pb2.ListEndpointsRequest(tenant="blue"), own),
        (listing, endpoint_pb2.ListEndpointsRequest(tenant="red"), foreign),
        (rotate, key_pb2.RotateKeysRequest(tenant="blue", reason="x"), own),
        (rotate, key_pb2.RotateKeysRequest(tenant="red", reason="x"), foreign),
        (rotate, key_pb2.RotateKeysRequest(device="dpu-0", reason="x"), refused),
        (job_token, job_pb2.CreateJobTokenRequest(tenant="blue", **new_job), own),
        (job_token, job_pb2.CreateJobTokenRequest(tenant="red", **new_job), foreign),
        (get_job, job_pb2.GetJobRequest(tenant="blue", job="a"), own),
        (get_job, job_pb2.GetJobRequest(tenant="red", job="a"), foreign),
        (end_job, job_pb2.EndJobRequest(tenant="red", job="a", reason="x"), foreign),
        (end_job, job_pb2.EndJobRequest(tenant="blue", job="a", reason="x"), own),
    ]
    async with open_channel(process, process.main_port, identity(process, "/user/tina")) as channel:
        for descriptor, request, expected in cases:
            assert await call(channel, descriptor, request) is expected, request


async def test_peers_read_a_code_word_and_local_admins_the_whole_story(process: Any, admin: Any) -> None:
    async with open_channel(process, process.enrolment_port, None) as channel:
        stub = channel.stream_stream(
            "/ztdpu.v1.AttestationService/Attest",
            request_serializer=lambda one: one.SerializeToString(),
            response_deserializer=attestation_pb2.AttestResponse.FromString,
        )
        with pytest.raises(aio.AioRpcError) as caught:
            await stub(iter([attestation_pb2.AttestRequest()])).read()
    assert caught.value.details() == "evidence"
    assert not [key for key, _ in caught.value.trailing_metadata() or () if key.startswith("ztdpu")]
    with pytest.raises(NotFoundError) as story:
        await admin.get_tenant("nobody")
    assert "nobody" in story.value.message
    assert story.value.remedy
