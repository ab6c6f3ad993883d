"""Errors across gRPC: every class has a status, a peer learns a code word only, a client gets the same class back."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from ztdpu import errors
from ztdpu.errors import Location, NotFoundError, UnreachableError, ZtdpuError
from ztdpu.rpc.interceptors import DETAIL_KEY, abort_with, error_from, status_of

CLASSES = sorted(
    (
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, ZtdpuError) and kind.__init__ is ZtdpuError.__init__
    ),
    key=lambda kind: kind.__name__,
)


class Aborted(Exception):
    """What gRPC raises, with what it would send."""


class Context:
    """Stands for the server's context: keeps what would go out."""

    async def abort(self, code: grpc.StatusCode, details: str, metadata: Any = ()) -> None:
        self.sent = (code, details, metadata)
        raise Aborted


class Failure(grpc.RpcError):
    """A failed call, as the client library presents it."""

    def __init__(self, code: grpc.StatusCode, details: str, metadata: Any = ()) -> None:
        self._sent = (code, details, metadata)

    def code(self) -> grpc.StatusCode:
        return self._sent[0]

    def details(self) -> str:
        return self._sent[1]

    def trailing_metadata(self) -> Any:
        return self._sent[2]


async def send(error: ZtdpuError, *, is_local: bool) -> Failure:
    context = Context()
    with pytest.raises(Aborted):
        await abort_with(context, error, is_local=is_local)
    return Failure(*context.sent)


@pytest.mark.parametrize("kind", [one for one in CLASSES if one is not ZtdpuError])
async def test_every_class_comes_back_as_itself(kind: type[ZtdpuError]) -> None:
    assert status_of(kind("x")) is not grpc.StatusCode.OK
    back = error_from(await send(kind("secret text"), is_local=False), "here")
    assert type(back) is kind
    assert "secret" not in back.message


async def test_local_admin_gets_message_remedy_and_place() -> None:
    error = NotFoundError("no such thing", remedy="look elsewhere", where=Location(file="a.yaml", line=3, column=4))
    back = error_from(await send(error, is_local=True), "here")
    assert (back.message, back.remedy, back.where) == (error.message, error.remedy, error.where)


async def test_peer_gets_no_metadata() -> None:
    failure = await send(NotFoundError("secret"), is_local=False)
    assert not [key for key, _ in failure.trailing_metadata() if key == DETAIL_KEY]


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED])
def test_silence_is_unreachable_with_a_remedy(code: grpc.StatusCode) -> None:
    back = error_from(Failure(code, "failed to connect"), "/run/x.sock")
    assert isinstance(back, UnreachableError)
    assert "/run/x.sock" in back.message
    assert back.remedy


def test_unknown_word_is_still_an_error_of_ours() -> None:
    assert type(error_from(Failure(grpc.StatusCode.INTERNAL, "internal"), "x")) is ZtdpuError
