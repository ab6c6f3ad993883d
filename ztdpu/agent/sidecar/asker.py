"""Questions to control on the agent's stream, and which answer belongs to which.

Bounded: so many at the same time for the whole device, and each for so long. Called by the sidecar only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ztdpu.errors import (
    ConflictError,
    LeaseError,
    NotFoundError,
    PermissionDeniedError,
    RefusedError,
    StateError,
    UnreachableError,
    UsageError,
    ZtdpuError,
)
from ztdpu.v1 import agent_pb2

ANSWER_LIMIT_S: Final = 5.0
WAITING_LIMIT: Final = 128
_REFUSALS: Final[dict[str, type[ZtdpuError]]] = {
    kind.code: kind
    for kind in (
        ConflictError, LeaseError, NotFoundError, PermissionDeniedError, StateError, UnreachableError, UsageError,
    )
}  # fmt: skip


class Asker:
    """One per daemon."""

    def __init__(self, send: Callable[[agent_pb2.AgentMessage], bool]) -> None:
        self._send = send
        self._number = 0
        self._waiting: dict[int, asyncio.Future[agent_pb2.WorkloadAnswer]] = {}

    async def ask(self, request: agent_pb2.WorkloadRequest) -> agent_pb2.WorkloadAnswer:
        """Return what control granted.

        Raises:
            UnreachableError: control is not connected, does not answer, or too many questions are open.
            ZtdpuError: it refused; the kind says why.

        """
        if len(self._waiting) >= WAITING_LIMIT:
            raise UnreachableError("too many open questions to control")
        self._number += 1
        request.number = number = self._number
        future: asyncio.Future[agent_pb2.WorkloadAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            if not self._send(agent_pb2.AgentMessage(workload=request)):
                raise UnreachableError("no connection to control")
            async with asyncio.timeout(ANSWER_LIMIT_S):
                answer = await future
        except TimeoutError as error:
            raise UnreachableError("control does not answer") from error
        finally:
            self._waiting.pop(number, None)
        if answer.refusal:
            raise _REFUSALS.get(answer.refusal, RefusedError)(f"control refused: {answer.refusal}")
        return answer

    def take(self, answer: agent_pb2.WorkloadAnswer) -> None:
        """Give an answer to whoever waits for it; late ones are dropped."""
        future = self._waiting.get(answer.number)
        if future is not None and not future.done():
            future.set_result(answer)

    def hang_up(self) -> None:
        """The stream is another one: what was asked on the old one gets no answer."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(UnreachableError("the connection to control was lost"))
