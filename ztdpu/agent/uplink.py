"""The stream between an attested agent and control: connect, keep, replace, send.

`open` with a newer identity connects anew first and closes the older connection once control spoke on the
new one (make before break). A broken connection is made again with back-off from 0.1 s to 2 s, spread by
jitter. Messages are handed on one after the other, in the order control sent them, and never waited for: an
older connection may end at any moment. What is sent while nothing is connected is dropped: everything here is
repeated by whoever needs it.

Called by `agent.daemon`. Knows nothing of leases, keys or tables.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

import grpc
from grpc import aio

from ztdpu.agent.attester import Identity
from ztdpu.agent.control_channel import main_channel
from ztdpu.agent.journal import log, warn
from ztdpu.v1 import agent_pb2, agent_pb2_grpc

FIRST_BACKOFF_S: Final = 0.1
LAST_BACKOFF_S: Final = 2.0
OUTBOX_LIMIT: Final = 4096
HELLO_LIMIT_S: Final = 10.0
"""Control says something within this time after hello, or the connection is given up."""
DENYING_CODES: Final = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)


class Uplink:
    """One per daemon; at most two connections at a time, one of them on its way in."""

    def __init__(
        self,
        target: str,
        *,
        trust_domain: str,
        bundle_pem: bytes,
        hello: Callable[[Identity], agent_pb2.AgentHello],
        on_message: Callable[[agent_pb2.ControlMessage], None],
        on_open: Callable[[], None],
        on_denied: Callable[[], None],
    ) -> None:
        self._target = target
        self._trust_domain = trust_domain
        self.bundle_pem = bundle_pem
        """Whom to believe that it is control, from the next connection on."""
        self._hello = hello
        self._on_message = on_message
        self._on_open = on_open
        self._on_denied = on_denied
        self._keeper: asyncio.Task[None] | None = None
        self._older: asyncio.Task[None] | None = None
        self._outbox: asyncio.Queue[agent_pb2.AgentMessage] | None = None
        """Of the connection in use; None while there is none."""

    @property
    def is_open(self) -> bool:
        """Whether control spoke on a connection that still stands."""
        return self._outbox is not None

    def open(self, identity: Identity) -> None:
        """Connect with `identity`; the connection before it stays until the new one works."""
        if self._older is None:
            self._older = self._keeper
        elif self._keeper is not None:
            self._keeper.cancel()
        self._keeper = asyncio.create_task(self._keep(identity), name="uplink")

    def close(self) -> None:
        """Hang up and stay so."""
        for task in (self._older, self._keeper):
            if task is not None:
                task.cancel()
        self._older = self._keeper = self._outbox = None

    def send(self, message: agent_pb2.AgentMessage) -> bool:
        """Queue `message`; False when nothing is connected or the queue is full."""
        if self._outbox is None:
            return False
        try:
            self._outbox.put_nowait(message)
        except asyncio.QueueFull:
            return False
        return True

    async def _keep(self, identity: Identity) -> None:
        backoff_s = FIRST_BACKOFF_S
        while True:
            outbox: asyncio.Queue[agent_pb2.AgentMessage] = asyncio.Queue(OUTBOX_LIMIT)
            worked = False
            try:
                await self._connect(identity, outbox)
            except aio.AioRpcError as error:
                worked = self._lost(outbox, error.code(), error.details() or "")
            except (asyncio.InvalidStateError, TimeoutError) as error:
                worked = self._lost(outbox, grpc.StatusCode.UNAVAILABLE, str(error) or "control is silent")
            except Exception as error:  # noqa: BLE001 - a defect ends this connection, never the uplink
                warn("uplink-defect", cause=repr(error))
                worked = self._lost(outbox, grpc.StatusCode.INTERNAL, "see the line before")
            else:
                worked = self._lost(outbox, grpc.StatusCode.OK, "control closed the stream")
            if asyncio.current_task() is not self._keeper:
                return  # a newer connection is on its way in, or there is to be none
            backoff_s = FIRST_BACKOFF_S if worked else min(backoff_s * 2, LAST_BACKOFF_S)
            await asyncio.sleep(backoff_s * (0.5 + 0.5 * random.random()))  # noqa: S311 - spreads load, no secret

    async def _connect(self, identity: Identity, outbox: asyncio.Queue[agent_pb2.AgentMessage]) -> None:
        """Run one connection to its end."""
        channel = main_channel(
            self._target,
            trust_domain=self._trust_domain,
            bundle_pem=self.bundle_pem,
            keys=identity.keys,
            svid_pem=identity.svid_pem,
        )
        async with channel:
            call = agent_pb2_grpc.AgentServiceStub(channel).Connect()
            writer: asyncio.Task[None] | None = None
            try:
                await call.write(agent_pb2.AgentMessage(hello=self._hello(identity)))
                async with asyncio.timeout(HELLO_LIMIT_S):
                    message = await call.read()
                if isinstance(message, agent_pb2.ControlMessage):
                    self._take_over(outbox)
                    writer = asyncio.create_task(_write_all(call, outbox))
                while isinstance(message, agent_pb2.ControlMessage):
                    self._on_message(message)
                    message = await call.read()
            finally:
                if writer is not None:
                    writer.cancel()
                call.cancel()

    def _take_over(self, outbox: asyncio.Queue[agent_pb2.AgentMessage]) -> None:
        """Use this connection; when it is the newest, let the older one go."""
        if asyncio.current_task() is self._keeper and self._older is not None:
            self._older.cancel()
            self._older = None
        self._outbox = outbox
        log("uplink-open", control=self._target)
        self._on_open()

    def _lost(self, outbox: asyncio.Queue[agent_pb2.AgentMessage], code: grpc.StatusCode, detail: str) -> bool:
        """Note the end of a connection. Returns whether it was the one in use."""
        in_use = self._outbox is outbox
        newest = asyncio.current_task() is self._keeper
        if in_use:
            self._outbox = None
        warn("uplink-lost", code=code.name, detail=detail[:200])
        if code in DENYING_CODES and newest:  # an older one is closed because there is a newer one
            self._on_denied()
        return in_use


async def _write_all(
    call: aio.StreamStreamCall[agent_pb2.AgentMessage, agent_pb2.ControlMessage],
    outbox: asyncio.Queue[agent_pb2.AgentMessage],
) -> None:
    """Write what comes until the call ends; its end is reported by the reader."""
    try:
        while True:
            await call.write(await outbox.get())
    except (aio.AioRpcError, asyncio.InvalidStateError):
        return
