"""SidecarService for one endpoint: who am I, join and leave a job, how things stand."""

# ruff: noqa: N802 - gRPC fixes the names of methods
from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import grpc

from ztdpu.agent.journal import log, warn
from ztdpu.agent.sidecar.asker import Asker
from ztdpu.agent.sidecar.book import Book
from ztdpu.agent.sidecar.gate import Bucket
from ztdpu.agent.sidecar.identities import Membership, Standing, View
from ztdpu.agent.sidecar.refusal import refuse
from ztdpu.errors import ZtdpuError
from ztdpu.v1 import agent_pb2, sidecar_pb2, sidecar_pb2_grpc

TOKEN_LIMIT_CHARACTERS: Final = 128
JOIN_BURST: Final = 32.0
JOIN_RATE_PER_S: Final = 2.0
SVID_WAIT_S: Final = 5.0
"""How long Join waits for the SVID of the rank it took."""


class SidecarServicer(sidecar_pb2_grpc.SidecarServiceServicer):
    """One per endpoint."""

    def __init__(self, endpoint: str, book: Book, asker: Asker) -> None:
        self._endpoint = endpoint
        self._book = book
        self._asker = asker
        self._bucket = Bucket(JOIN_BURST, JOIN_RATE_PER_S)

    async def WhoAmI(self, _request: Any, _context: Any) -> sidecar_pb2.WhoAmIResponse:
        """The endpoint behind this socket."""
        view = self._book.view(self._endpoint)
        return sidecar_pb2.WhoAmIResponse(
            endpoint=self._endpoint,
            tenant=view.memberships[0].tenant if view.memberships else "",
            trust_domain=view.trust_domain,
            spiffe_ids=[one.spiffe_id(view.trust_domain) for one in view.memberships],
        )

    async def Join(self, request: sidecar_pb2.JoinRequest, context: Any) -> sidecar_pb2.JobMembership:
        """Take a rank; returns when its SVID is there, or soon will be."""
        await self._require(context)
        if not 1 <= len(request.token) <= TOKEN_LIMIT_CHARACTERS:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a job token has 1 to 128 characters")
        action = agent_pb2.JoinJob(token=request.token, rank=request.rank)
        try:
            answer = await self._asker.ask(agent_pb2.WorkloadRequest(endpoint=self._endpoint, join=action))
        except ZtdpuError as error:
            warn("job-join-refused", endpoint=self._endpoint, code=error.code)
            await refuse(context, error)
        membership = await self._wait_svid(answer.spiffe_id)
        if membership is None:
            return await context.abort(  # type: ignore[no-any-return]  # it does not return
                grpc.StatusCode.UNAVAILABLE, "joined; the identity is on its way"
            )
        log("job-joined", endpoint=self._endpoint, identity=answer.spiffe_id)
        return _membership(membership, self._book.view(self._endpoint))

    async def _wait_svid(self, spiffe_id: str) -> Membership | None:
        deadline_s = time.monotonic() + SVID_WAIT_S
        while True:
            view = self._book.view(self._endpoint)
            found = next((one.membership for one in view.svids if one.spiffe_id == spiffe_id), None)
            left_s = deadline_s - time.monotonic()
            if found is not None or left_s <= 0 or view.standing is Standing.DENIED:
                return found
            try:
                async with asyncio.timeout(left_s):
                    await self._book.wait_changed(self._endpoint, view.version)
            except TimeoutError:
                continue

    async def Leave(self, request: sidecar_pb2.LeaveRequest, context: Any) -> sidecar_pb2.LeaveResponse:
        """Give a rank back."""
        await self._require(context)
        action = agent_pb2.LeaveJob(job=request.job[:63])
        try:
            await self._asker.ask(agent_pb2.WorkloadRequest(endpoint=self._endpoint, leave=action))
        except ZtdpuError as error:
            await refuse(context, error)
        log("job-left", endpoint=self._endpoint, job=request.job[:63])
        return sidecar_pb2.LeaveResponse()

    async def Status(self, _request: Any, _context: Any) -> sidecar_pb2.StatusResponse:
        """How identities stand."""
        view = self._book.view(self._endpoint)
        expires = {one.membership: one.expires_unix_s for one in view.svids}
        return sidecar_pb2.StatusResponse(
            leased=self._book.is_leased,
            waiting_for=_waiting_for(view, leased=self._book.is_leased),
            identities=[
                sidecar_pb2.WorkloadIdentity(
                    spiffe_id=one.spiffe_id(view.trust_domain), hint=one.hint, expires_unix_s=expires.get(one, 0)
                )
                for one in view.memberships
            ],
            memberships=[_membership(one, view) for one in view.memberships if one.job],
        )

    async def _require(self, context: Any) -> None:
        view = self._book.view(self._endpoint)
        if view.standing is Standing.DENIED:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "no identity issued")
        if view.standing is Standing.STARTING:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "starting: no identity yet")
        if not self._bucket.take(time.monotonic()):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many joins")


def _waiting_for(view: View, *, leased: bool) -> str:
    if not leased:
        return "a lease of the device"
    if not view.memberships:
        return "control's word on this endpoint"
    missing = [one.hint for one in view.memberships if one not in {svid.membership for svid in view.svids}]
    return f"SVID of {missing[0]}" if missing else ""


def _membership(one: Membership, view: View) -> sidecar_pb2.JobMembership:
    return sidecar_pb2.JobMembership(
        tenant=one.tenant,
        job=one.job,
        rank=one.rank,
        world_size=one.world_size,
        epoch=one.epoch,
        spiffe_id=one.spiffe_id(view.trust_domain),
    )
