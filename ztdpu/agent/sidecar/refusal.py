"""How a refusal of control reaches a tenant: a status and the code word, never another tenant's business."""

from __future__ import annotations

from typing import Any, Final, NoReturn

import grpc

from ztdpu.errors import (
    ConflictError,
    LeaseError,
    NotFoundError,
    PermissionDeniedError,
    StateError,
    UnreachableError,
    UsageError,
    ZtdpuError,
)

_STATUS: Final[tuple[tuple[type[ZtdpuError], grpc.StatusCode], ...]] = (
    (ConflictError, grpc.StatusCode.ALREADY_EXISTS),
    (NotFoundError, grpc.StatusCode.NOT_FOUND),
    (UsageError, grpc.StatusCode.INVALID_ARGUMENT),
    (PermissionDeniedError, grpc.StatusCode.PERMISSION_DENIED),
    (StateError, grpc.StatusCode.FAILED_PRECONDITION),
    (UnreachableError, grpc.StatusCode.UNAVAILABLE),
    (LeaseError, grpc.StatusCode.UNAVAILABLE),
)


async def refuse(context: Any, error: ZtdpuError) -> NoReturn:
    """End the call."""
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), grpc.StatusCode.PERMISSION_DENIED)
    await context.abort(status, error.code)
    raise AssertionError("abort does not return")
