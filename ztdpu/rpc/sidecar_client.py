"""SidecarClient: what a tenant's program asks its device over api.sock, without generated code in the caller.

Used by attacks and tests of labs, and by whoever joins a job from Python. Workloads that only want SVIDs use any
client of the SPIFFE Workload API. Every method raises a ZtdpuError; keys of SVIDs are not kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import grpc

from ztdpu.errors import (
    ConflictError,
    NotFoundError,
    PermissionDeniedError,
    StateError,
    UnreachableError,
    UsageError,
    ZtdpuError,
)
from ztdpu.v1 import sidecar_pb2, sidecar_pb2_grpc
from ztdpu.workloadapi import workload_pb2, workload_pb2_grpc

SOCKET_VARIABLE: Final = "SPIFFE_ENDPOINT_SOCKET"
CALL_LIMIT_S: Final = 10.0
HEADER: Final = (("workload.spiffe.io", "true"),)
_ERRORS: Final[dict[grpc.StatusCode, type[ZtdpuError]]] = {
    grpc.StatusCode.ALREADY_EXISTS: ConflictError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
    grpc.StatusCode.FAILED_PRECONDITION: StateError,
    grpc.StatusCode.INVALID_ARGUMENT: UsageError,
}

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class WhoAmI:
    """The endpoint behind a socket."""

    endpoint: str
    tenant: str
    """Empty while its device holds no lease."""
    spiffe_ids: tuple[str, ...]


class SidecarClient:
    """One connection to a sidecar; use it in a `with`."""

    def __init__(self, socket: str | None = None) -> None:
        """`socket` is a path, or what SPIFFE_ENDPOINT_SOCKET says. UsageError without either."""
        target = socket or os.environ.get(SOCKET_VARIABLE, "")
        if not target:
            raise UsageError("which socket?", remedy=f"set {SOCKET_VARIABLE}, as `ztdpu lab exec ENDPOINT` does")
        target = target if target.startswith("unix:") else f"unix:{target}"
        # The authority is what HTTP/2 calls its host; a socket has none.
        self._channel = grpc.insecure_channel(target, options=[("grpc.default_authority", "localhost")])
        self._sidecar = sidecar_pb2_grpc.SidecarServiceStub(self._channel)
        self._workload = workload_pb2_grpc.SpiffeWorkloadAPIStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def who_am_i(self) -> WhoAmI:
        """Who the device takes the caller for."""
        answer = _run(lambda: self._sidecar.WhoAmI(sidecar_pb2.WhoAmIRequest(), timeout=CALL_LIMIT_S))
        return WhoAmI(endpoint=answer.endpoint, tenant=answer.tenant, spiffe_ids=tuple(answer.spiffe_ids))

    def join(self, token: str, rank: int) -> str:
        """Take a rank of a job; returns the SPIFFE ID that comes with it."""
        request = sidecar_pb2.JoinRequest(token=token, rank=rank)
        return str(_run(lambda: self._sidecar.Join(request, timeout=CALL_LIMIT_S)).spiffe_id)

    def leave(self, job: str) -> None:
        """Give the rank back."""
        _run(lambda: self._sidecar.Leave(sidecar_pb2.LeaveRequest(job=job), timeout=CALL_LIMIT_S))

    def identities(self) -> tuple[str, ...]:
        """SPIFFE IDs of the X.509-SVIDs that the Workload API gives, the default one first."""

        def first() -> Any:
            stream = self._workload.FetchX509SVID(workload_pb2.X509SVIDRequest(), metadata=HEADER, timeout=CALL_LIMIT_S)
            try:
                return next(iter(stream))
            finally:
                stream.cancel()

        return tuple(one.spiffe_id for one in _run(first).svids)

    def jwt_svid(self, audience: str, *, spiffe_id: str = "") -> str:
        """A JWT-SVID of one identity."""
        request = workload_pb2.JWTSVIDRequest(audience=[audience], spiffe_id=spiffe_id)
        answer = _run(lambda: self._workload.FetchJWTSVID(request, metadata=HEADER, timeout=CALL_LIMIT_S))
        return str(answer.svids[0].svid)


def _run(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except StopIteration as error:
        raise UnreachableError("the sidecar said nothing") from error
    except grpc.RpcError as failure:
        kind = _ERRORS.get(failure.code(), UnreachableError)
        raise kind(f"the sidecar refused: {failure.details()}") from failure
