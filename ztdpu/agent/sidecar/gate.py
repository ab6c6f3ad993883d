"""What stands before every call on an api.sock: rates, the number of calls, and the header of the Workload API.

A tenant's root may do to its socket whatever it likes; what that costs the daemon is bounded here and by the options
of the server. Whoever keeps calling far beyond its rate has its own socket closed for a while: then it costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc
from grpc import aio

HEADER: Final = ("workload.spiffe.io", "true")
WORKLOAD_API: Final = "/SpiffeWorkloadAPI/"
RATE_PER_S: Final = 50.0
BURST: Final = 100.0
FLOOD_PER_S: Final = 500
"""Calls within a second, let in or not, from which on the socket is closed for a while."""
OPEN_CALLS_LIMIT: Final = 48
"""At the same time, open streams included."""
_CLIENTS_OWN: Final = grpc.StatusCode.RESOURCE_EXHAUSTED


@dataclass(slots=True)
class Bucket:
    """`burst` at once, then `rate_per_s`."""

    burst: float
    rate_per_s: float
    tokens: float = 0.0
    since_s: float = -1.0

    def take(self, now_s: float) -> bool:
        """Spend a token if there is one; full at first."""
        if self.since_s < 0:
            self.tokens = self.burst
        else:
            self.tokens = min(self.burst, self.tokens + max(0.0, now_s - self.since_s) * self.rate_per_s)
        self.since_s = now_s
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class Gate(aio.ServerInterceptor):
    """One per socket."""

    def __init__(self, on_flood: Callable[[], None], *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._on_flood = on_flood
        self._now_s = now_s
        self._bucket = Bucket(BURST, RATE_PER_S)
        self._second, self._in_second = 0, 0
        self._open = 0
        self.refused = 0
        """Calls that were not let in."""

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Refuse, or let the call go on to its handler; without one gRPC answers UNIMPLEMENTED."""
        now_s = self._now_s()
        if int(now_s) != self._second:
            self._second, self._in_second = int(now_s), 0
        self._in_second += 1
        if self._in_second == FLOOD_PER_S:
            self._on_flood()
        if not self._bucket.take(now_s):
            return self._refuse(_CLIENTS_OWN, "too many calls")
        if str(handler_call_details.method).startswith(WORKLOAD_API):
            given = [value for key, value in handler_call_details.invocation_metadata if key == HEADER[0]]
            if given != [HEADER[1]]:
                return self._refuse(grpc.StatusCode.INVALID_ARGUMENT, "security header missing from request")
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        if self._open >= OPEN_CALLS_LIMIT:
            return self._refuse(_CLIENTS_OWN, "too many open calls")
        return self._counted(handler)

    def _refuse(self, code: grpc.StatusCode, words: str) -> Any:
        self.refused += 1

        async def refuse(_request: Any, context: Any) -> None:
            await context.abort(code, words)

        return grpc.unary_unary_rpc_method_handler(refuse)

    def _counted(self, handler: Any) -> Any:
        """The same handler, counted while it runs. Only what the servers here have: unary requests, and reflection."""
        if handler.request_streaming:
            return handler
        if handler.response_streaming:
            stream = handler.unary_stream

            async def run_stream(request: Any, context: Any) -> Any:
                self._open += 1
                try:
                    async for answer in stream(request, context):
                        yield answer
                finally:
                    self._open -= 1

            return grpc.unary_stream_rpc_method_handler(
                run_stream, handler.request_deserializer, handler.response_serializer
            )
        unary = handler.unary_unary

        async def run_unary(request: Any, context: Any) -> Any:
            self._open += 1
            try:
                return await unary(request, context)
            finally:
                self._open -= 1

        return grpc.unary_unary_rpc_method_handler(run_unary, handler.request_deserializer, handler.response_serializer)
