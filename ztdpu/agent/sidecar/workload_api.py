"""The SPIFFE Workload API for one endpoint (SPIFFE Workload API sections 4 to 6).

Streams say everything at once, and again whenever anything changed; when the identity goes they end with
PERMISSION_DENIED. JWT-SVIDs are signed by control, for each identity that was asked for, and kept for half their life.
"""

# ruff: noqa: N802 - gRPC fixes the names of methods
from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import grpc
from google.protobuf import json_format, struct_pb2

from ztdpu.agent.sidecar.asker import Asker
from ztdpu.agent.sidecar.book import Book
from ztdpu.agent.sidecar.gate import Bucket
from ztdpu.agent.sidecar.identities import Membership, Standing, View
from ztdpu.agent.sidecar.refusal import refuse
from ztdpu.errors import SvidError, ZtdpuError
from ztdpu.trust.jwt_svid import check_audience, read_jwt_bundle, verify_jwt_svid
from ztdpu.v1 import agent_pb2
from ztdpu.workloadapi import workload_pb2, workload_pb2_grpc

JWT_BURST: Final = 32.0
JWT_RATE_PER_S: Final = 4.0
"""New signatures of control for one endpoint."""
KEPT_JWTS_LIMIT: Final = 64

Message = TypeVar("Message")


class WorkloadApi(workload_pb2_grpc.SpiffeWorkloadAPIServicer):
    """One per endpoint."""

    def __init__(self, endpoint: str, book: Book, asker: Asker, *, unix_s: Callable[[], float] = time.time) -> None:
        self._endpoint = endpoint
        self._book = book
        self._asker = asker
        self._unix_s = unix_s
        self._bucket = Bucket(JWT_BURST, JWT_RATE_PER_S)
        self._kept: dict[tuple[Membership, tuple[str, ...]], tuple[workload_pb2.JWTSVID, float]] = {}
        """Token, and until when it is given out again."""
        self._kept_under = b""
        """The bundle that verifies those: under another, none is given out again."""

    # --- streams ---

    async def FetchX509SVID(self, _request: Any, context: Any) -> AsyncIterator[workload_pb2.X509SVIDResponse]:
        """Every X.509-SVID, the default one first."""
        async for message in self._stream(context, _svids):
            yield message

    async def FetchX509Bundles(self, _request: Any, context: Any) -> AsyncIterator[workload_pb2.X509BundlesResponse]:
        """Authorities of the trust domain."""
        async for message in self._stream(context, _x509_bundles):
            yield message

    async def FetchJWTBundles(self, _request: Any, context: Any) -> AsyncIterator[workload_pb2.JWTBundlesResponse]:
        """Keys of JWT-SVIDs."""
        async for message in self._stream(context, _jwt_bundles):
            yield message

    async def _stream(self, context: Any, make: Callable[[View], Message]) -> AsyncIterator[Message]:
        told: Message | None = None
        while True:
            view = self._book.view(self._endpoint)
            await _require(view, context)
            message = make(view)
            if message != told:
                told = message
                yield message
            await self._book.wait_changed(self._endpoint, view.version)

    # --- calls ---

    async def FetchJWTSVID(self, request: workload_pb2.JWTSVIDRequest, context: Any) -> workload_pb2.JWTSVIDResponse:
        """A JWT-SVID of the identity that was named, or of each."""
        view = self._book.view(self._endpoint)
        await _require(view, context)
        audience = tuple(request.audience)
        try:
            check_audience(audience)
        except SvidError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)
        wanted = [one for one in view.memberships if request.spiffe_id in ("", one.spiffe_id(view.trust_domain))]
        if not wanted:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not an identity of this workload")
        try:
            self._drop_if_under_another(view.jwt_bundle)
            return workload_pb2.JWTSVIDResponse(svids=[await self._jwt(one, audience, context) for one in wanted])
        except ZtdpuError as error:
            return await refuse(context, error)

    def _drop_if_under_another(self, bundle: bytes) -> None:
        if bundle != self._kept_under:
            self._kept.clear()
            self._kept_under = bundle

    async def _jwt(self, membership: Membership, audience: tuple[str, ...], context: Any) -> workload_pb2.JWTSVID:
        now_s = self._unix_s()
        kept = self._kept.get((membership, audience))
        if kept is not None and now_s < kept[1]:
            return kept[0]
        if not self._bucket.take(time.monotonic()):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many JWT-SVIDs")
        answer = await self._asker.ask(
            agent_pb2.WorkloadRequest(
                endpoint=membership.endpoint, jwt=agent_pb2.SignJwtSvid(audience=audience, job=membership.job)
            )
        )
        made = workload_pb2.JWTSVID(spiffe_id=answer.spiffe_id, svid=answer.jwt_svid, hint=membership.hint)
        while len(self._kept) >= KEPT_JWTS_LIMIT:
            del self._kept[next(iter(self._kept))]
        self._kept[membership, audience] = (made, now_s + (answer.expires_unix_s - now_s) / 2)
        return made

    async def ValidateJWTSVID(
        self, request: workload_pb2.ValidateJWTSVIDRequest, context: Any
    ) -> workload_pb2.ValidateJWTSVIDResponse:
        """Whose token it is, and what it says; INVALID_ARGUMENT for one that does not verify."""
        view = self._book.view(self._endpoint)
        await _require(view, context)
        try:
            svid = verify_jwt_svid(
                request.svid,
                keys=read_jwt_bundle(view.jwt_bundle),
                trust_domain=view.trust_domain,
                audience=request.audience,
                now=datetime.fromtimestamp(self._unix_s(), UTC),
            )
        except SvidError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)
        claims = json_format.ParseDict(dict(svid.claims), struct_pb2.Struct())
        return workload_pb2.ValidateJWTSVIDResponse(spiffe_id=str(svid.spiffe_id), claims=claims)


async def _require(view: View, context: Any) -> None:
    """End the call unless the caller has an identity."""
    if view.standing is Standing.STARTING:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "starting: no identity yet")
    if view.standing is Standing.DENIED:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "no identity issued")


def _svids(view: View) -> workload_pb2.X509SVIDResponse:
    bundle = b"".join(view.authorities)
    return workload_pb2.X509SVIDResponse(
        svids=[
            workload_pb2.X509SVID(
                spiffe_id=one.spiffe_id,
                x509_svid=b"".join(one.chain),
                x509_svid_key=one.key,
                bundle=bundle,
                hint=one.membership.hint,
            )
            for one in view.svids
        ]
    )


def _x509_bundles(view: View) -> workload_pb2.X509BundlesResponse:
    return workload_pb2.X509BundlesResponse(bundles={f"spiffe://{view.trust_domain}": b"".join(view.authorities)})


def _jwt_bundles(view: View) -> workload_pb2.JWTBundlesResponse:
    return workload_pb2.JWTBundlesResponse(bundles={f"spiffe://{view.trust_domain}": view.jwt_bundle})
