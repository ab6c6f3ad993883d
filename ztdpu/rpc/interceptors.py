"""Errors across gRPC: a ZtdpuError becomes a status whose details are its code word and nothing else.

To local admins (UNIX socket) message and remedy travel too, in the trailing metadata. Anything that is no ZtdpuError
is a defect: the peer reads `internal`, the log has the rest. The client side turns statuses back into errors.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, NoReturn

import grpc
from grpc import aio

from ztdpu import errors
from ztdpu.errors import (
    ConflictError,
    EvidenceError,
    LeaseError,
    Location,
    NotFoundError,
    PermissionDeniedError,
    PolicyError,
    RefusedError,
    StateError,
    UnreachableError,
    UsageError,
    ZtdpuError,
)
from ztdpu.rpc.channel import is_forbidden

DETAIL_KEY: Final = "ztdpu-error-bin"
"""Trailing metadata for local admins: JSON with message, remedy and place."""
TEXT_LIMIT: Final = 2000

_STATUS: Final[tuple[tuple[type[ZtdpuError], grpc.StatusCode], ...]] = (
    (NotFoundError, grpc.StatusCode.NOT_FOUND),
    (ConflictError, grpc.StatusCode.ABORTED),
    (PermissionDeniedError, grpc.StatusCode.PERMISSION_DENIED),
    (UsageError, grpc.StatusCode.INVALID_ARGUMENT),
    (PolicyError, grpc.StatusCode.FAILED_PRECONDITION),
    (StateError, grpc.StatusCode.FAILED_PRECONDITION),
    (UnreachableError, grpc.StatusCode.UNAVAILABLE),
    (LeaseError, grpc.StatusCode.UNAVAILABLE),
    (EvidenceError, grpc.StatusCode.PERMISSION_DENIED),
    (RefusedError, grpc.StatusCode.PERMISSION_DENIED),
)
"""First match counts. LeaseError is UNAVAILABLE: the same agent is welcome again in a moment."""


def status_of(error: ZtdpuError) -> grpc.StatusCode:
    """The gRPC status for an error."""
    return next((code for kind, code in _STATUS if isinstance(error, kind)), grpc.StatusCode.UNKNOWN)


# --- server ---


async def abort_with(context: Any, error: ZtdpuError, *, is_local: bool) -> NoReturn:
    """End the RPC: code word for everybody, message and remedy for a local admin."""
    metadata: tuple[tuple[str, bytes], ...] = ()
    if is_local:
        metadata = ((DETAIL_KEY, _encode_detail(error)),)
    await context.abort(status_of(error), error.code, metadata)
    raise AssertionError("abort does not return")


@asynccontextmanager
async def mapped_errors(
    context: Any, *, is_local: bool, on_defect: Callable[[BaseException], None]
) -> AsyncIterator[None]:
    """Run a handler; whatever it raises ends as a status without text."""
    try:
        yield
    except ZtdpuError as error:
        await abort_with(context, error, is_local=is_local)
    except (aio.AbortError, asyncio.CancelledError):
        raise
    except TimeoutError:
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "deadline")
    except Exception as error:  # noqa: BLE001 - a defect must not become text at a peer
        on_defect(error)
        await context.abort(grpc.StatusCode.INTERNAL, "internal")


def _encode_detail(error: ZtdpuError) -> bytes:
    where = error.where
    document = {
        "message": error.message[:TEXT_LIMIT],
        "remedy": error.remedy[:TEXT_LIMIT],
        "where": [where.file, where.line, where.column] if where else None,
    }
    return json.dumps(document).encode()


# --- client ---

_BY_WORD: Final = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, ZtdpuError) and kind.__init__ is ZtdpuError.__init__
}
"""Classes that a message alone can make; what needs more never crosses an RPC."""


def error_from(failure: Any, server: str) -> ZtdpuError:
    """The error behind a failed call."""
    code = failure.code()
    word = failure.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE and word not in _BY_WORD:
        if is_forbidden(server):
            return PermissionDeniedError(
                f"this user may not use control's socket {server}",
                remedy="needs root: run it with sudo, or as the user that runs control",
            )
        return UnreachableError(
            f"no answer from control at {server}",
            remedy="is it running (`ztdpu lab up`, `ztdpu control run`)? Name another with --server or ZTDPU_SERVER",
        )
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return UnreachableError(
            f"control at {server} did not answer in time", remedy="does it hang, or is it stopped? Look at its log"
        )
    kind = _BY_WORD.get(word)
    detail = _decode_detail(failure)
    if kind is None:
        return ZtdpuError(f"control answered {code.name.lower()}: {word[:200]}", remedy="look at control's log")
    if detail is None:
        return kind(f"control answered: {word}", remedy="the audit log at control says more")
    return kind(detail["message"], remedy=detail["remedy"], where=_place(detail["where"]))


def _decode_detail(failure: Any) -> dict[str, Any] | None:
    for key, value in failure.trailing_metadata() or ():
        if key == DETAIL_KEY:
            document = json.loads(value)
            return document if isinstance(document, dict) else None
    return None


def _place(where: list[Any] | None) -> Location | None:
    return Location(file=where[0], line=where[1], column=where[2]) if where else None
