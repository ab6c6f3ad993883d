"""The interceptor in front of every servicer: who is calling, may they, and errors without text to peers.

One per server, because the port decides how a caller is known. A refusal is audited (`refusals` says how many are)
before it is answered. Messages
are decoded here, not by gRPC: only for whom is let in, and what is no message ends as `usage` instead of as a defect.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from google.protobuf.message import DecodeError
from grpc import aio

from ztdpu.control.audit import AuditEvent, AuditOutcome
from ztdpu.control.authority.issue import Issuer
from ztdpu.control.clock import as_datetime
from ztdpu.control.doors.authorisation import ACCESS, Access, Caller, Role, Scope, authorise
from ztdpu.control.doors.refusals import Refusals
from ztdpu.control.fleet import Fleet
from ztdpu.control.meters import Meters
from ztdpu.errors import NotFoundError, PermissionDeniedError, RefusedError, SvidError, UsageError, ZtdpuError
from ztdpu.rpc.interceptors import mapped_errors
from ztdpu.telemetry import get_logger
from ztdpu.trust.certificate import spki_sha256
from ztdpu.trust.svid import SpiffeId, verify_path

Identify = Callable[[Any], Caller]
Decode = Callable[[bytes], Any]

DEVICE_PATH = "/dpu/"
READING = ("Get", "List", "Export")


def identify_local(_context: Any) -> Caller:
    """Admin socket: whoever can open it, in its 0700 directory, is an operator."""
    return Caller(role=Role.OPERATOR, name="operator:admin-socket", is_local=True)


def identify_anyone(_context: Any) -> Caller:
    """Enrolment port."""
    return Caller(role=Role.ANYONE, name="unidentified")


class SvidIdentifier:
    """Main port: the client certificate's SPIFFE ID, verified again by our own rules, and what it stands for."""

    def __init__(self, fleet: Fleet, issuer: Issuer) -> None:
        self._fleet = fleet
        self._issuer = issuer

    def __call__(self, context: Any) -> Caller:
        """Who is calling. SvidError, PermissionDeniedError."""
        certificates = context.auth_context().get("x509_pem_cert") or []
        if len(certificates) != 1:
            raise SvidError("no client certificate")
        certificate = x509.load_pem_x509_certificate(certificates[0])
        now = as_datetime(self._fleet.now())
        spiffe_id, authority = verify_path([certificate.public_bytes(Encoding.DER)], self._issuer.bundle, now)
        role, tenants = self._role(spiffe_id)
        key = certificate.public_key()
        expires = certificate.not_valid_after_utc
        return Caller(
            role=role,
            name=str(spiffe_id),
            device=spiffe_id.path.removeprefix(DEVICE_PATH) if role is Role.AGENT else "",
            tenants=tenants,
            tls_spki_sha256=spki_sha256(key),  # type: ignore[arg-type]  # verify_path saw to it that it is P-256
            certificate_expires_unix_s=int(expires.timestamp()),
            certificate_serial=f"{certificate.serial_number:x}",
            authority=self._issuer.name_of_authority(authority),
        )

    def _role(self, spiffe_id: SpiffeId) -> tuple[Role, frozenset[str]]:
        if spiffe_id.path.startswith(DEVICE_PATH):
            return Role.AGENT, frozenset()
        bindings = self._fleet.desired.cluster.role_bindings.values()
        specs = [one.spec for one in bindings if one.spec.spiffe_id == str(spiffe_id)]
        for role in (Role.OPERATOR, Role.AUDITOR, Role.TENANT_ADMIN):
            chosen = [spec for spec in specs if spec.role == role]
            if chosen:
                return role, frozenset(spec.tenant for spec in chosen if spec.tenant)
        raise PermissionDeniedError(
            f"{spiffe_id} has no role", remedy="add a RoleBinding document to the policy and sync it"
        )


class Guard(aio.ServerInterceptor):
    """Authorises every call, then runs it with errors mapped."""

    def __init__(
        self,
        identify: Identify,
        refusals: Refusals,
        meters: Meters,
        *,
        is_local: bool = False,
        on_misuse: Callable[[str, str, str], None] | None = None,
    ) -> None:
        """`on_misuse` hears (device, cause, peer) when a device's SVID calls what no agent ever calls."""
        self._on_misuse = on_misuse
        self._identify = identify
        self._refusals = refusals
        self._meters = meters
        self._is_local = is_local

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Wrap the handler that gRPC found; without one gRPC answers UNIMPLEMENTED."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = str(handler_call_details.method)
        streams = handler.request_streaming
        decode = _decode_stream(handler.request_deserializer) if streams else _decode_one(handler.request_deserializer)
        if handler.response_streaming:
            make = grpc.stream_stream_rpc_method_handler if streams else grpc.unary_stream_rpc_method_handler
            wrapped = self._wrap_stream(method, handler.stream_stream or handler.unary_stream, decode)
        else:
            make = grpc.stream_unary_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
            wrapped = self._wrap_unary(method, handler.stream_unary or handler.unary_unary, decode)
        return make(wrapped, response_serializer=handler.response_serializer)

    def _wrap_unary(
        self, method: str, behaviour: Callable[..., Any], decode: Callable[[Any], Any]
    ) -> Callable[..., Any]:
        async def run(request: Any, context: Any) -> Any:
            async with mapped_errors(context, is_local=self._is_local, on_defect=self._on_defect(method)):
                with self._counted(method):
                    access = self._authorise(method, context)
                    ACCESS.set(access)
                    with self._refusals_audited(access, method, context):
                        return await behaviour(decode(request), context)

        return run

    def _wrap_stream(
        self, method: str, behaviour: Callable[..., Any], decode: Callable[[Any], Any]
    ) -> Callable[..., Any]:
        async def run(request: Any, context: Any) -> Any:
            async with mapped_errors(context, is_local=self._is_local, on_defect=self._on_defect(method)):
                with self._counted(method):
                    access = self._authorise(method, context)
                    ACCESS.set(access)
                    with self._refusals_audited(access, method, context):
                        answers = behaviour(decode(request), context)
                        if inspect.isawaitable(answers):  # writes through the context
                            await answers
                            return
                        async for answer in answers:
                            yield answer

        return run

    def _authorise(self, method: str, context: Any) -> Access:
        try:
            caller = self._identify(context)
        except ZtdpuError as error:
            self._audit(Caller(role=Role.ANYONE, name="unidentified"), method, error, context)
            raise
        try:
            return authorise(caller, method)
        except ZtdpuError as error:
            if caller.role is Role.AGENT and self._on_misuse is not None:
                self._on_misuse(caller.device, f"a call of {method.rpartition('/')[2]}", str(context.peer()))
            self._audit(caller, method, error, context)
            raise

    @contextmanager
    def _refusals_audited(self, access: Access, method: str, context: Any) -> Iterator[None]:
        """What a servicer refuses of itself: an agent's stream, and looks at what is out of reach.

        Changes and attestations leave their leaves themselves, before they answer.
        """
        try:
            yield
        except (PermissionDeniedError, RefusedError, UsageError) as error:
            if access.caller.role is Role.AGENT or method.rpartition("/")[2].startswith(READING):
                self._audit(access.caller, method, error, context)
            raise
        except NotFoundError as error:
            if access.scope is Scope.TENANT and method.rpartition("/")[2].startswith(READING):
                self._audit(access.caller, method, error, context)
            raise

    def _audit(self, caller: Caller, method: str, error: ZtdpuError, context: Any) -> None:
        self._refusals.audit(
            AuditEvent(
                actor=caller.name,
                role=str(caller.role),
                action=method,
                subject=caller.device,
                outcome=AuditOutcome.REFUSED,
                reason=error.code,
                detail={"message": error.message[:200], "peer": str(context.peer())[:100]},
            ),
            str(context.peer()),
        )

    def _counted(self, method: str) -> _Counted:
        return _Counted(self._meters, method)

    def _on_defect(self, method: str) -> Callable[[BaseException], None]:
        def report(error: BaseException) -> None:
            get_logger().error("rpc-defect", method=method, exc_info=error)

        return report


def _decode_one(deserialize: Decode) -> Decode:
    """UsageError for octets that are no message of this RPC."""

    def decode(octets: bytes) -> Any:
        try:
            return deserialize(octets)
        except DecodeError as error:
            raise UsageError("not a message of this RPC") from error

    return decode


def _decode_stream(deserialize: Decode) -> Callable[[AsyncIterator[bytes]], AsyncIterator[Any]]:
    """As `_decode_one`, for each message of a stream."""
    decode = _decode_one(deserialize)

    async def decode_all(messages: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for octets in messages:
            yield decode(octets)

    return decode_all


class _Counted:
    """Counts how one call ended."""

    def __init__(self, meters: Meters, method: str) -> None:
        self._meters = meters
        self._method = method

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        code = error.code if isinstance(error, ZtdpuError) else "ok" if kind is None else kind.__name__.lower()
        self._meters.rpc.labels(method=self._method, code=code).inc()
