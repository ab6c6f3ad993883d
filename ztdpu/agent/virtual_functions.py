"""Virtual functions of this device's endpoints: asked of the factory, handed to the worker, made again when lost.

One task per endpoint of the tables in force. Decision: a virtual function is made *after* the worker applied the
tables that name its endpoint, so a worker never holds a TUN that it has no rules for; until it is there the
endpoint's packets are dropped as `endpoint_down`. A tenant may delete its interface at any time: it is made again
after a pause that doubles from 0.1 s to 5 s, so a tenant that does so in a loop costs little.

Called by `agent.daemon`. Keeps no descriptor: the worker has the only copy, and the interface ends with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import cbor2

from ztdpu.agent import door, mailbox
from ztdpu.agent.journal import log, warn
from ztdpu.agent.mailbox_channel import MailboxChannel
from ztdpu.errors import RefusedError, StateError, UnreachableError

FIRST_PAUSE_S: Final = 0.1
LAST_PAUSE_S: Final = 5.0
FORGIVE_AFTER_S: Final = 30.0


class VirtualFunctions:
    """One per daemon."""

    def __init__(
        self, factory_socket: Path, *, channel: Callable[[], MailboxChannel | None], on_change: Callable[[], None]
    ) -> None:
        self._factory_socket = factory_socket
        self._channel = channel
        self._on_change = on_change
        self._names: dict[bytes, str] = {}
        self._tasks: dict[bytes, asyncio.Task[None]] = {}
        self._lost: dict[bytes, asyncio.Event] = {}
        self._attached: set[bytes] = set()

    def set_endpoints(self, names: Mapping[bytes, str]) -> None:
        """Take the endpoints of the tables in force: make what is new, detach what is gone."""
        for endpoint_id in [one for one in self._names if one not in names]:
            self._forget(endpoint_id)
            channel = self._channel()
            if channel is not None and channel.is_open:
                channel.send(mailbox.DetachEndpoint(endpoint_id))
        for endpoint_id, name in names.items():
            self._names[endpoint_id] = name
            if endpoint_id not in self._tasks:
                self._lost[endpoint_id] = asyncio.Event()
                self._tasks[endpoint_id] = asyncio.create_task(self._keep(endpoint_id), name=f"vf-{name}")

    def worker_gone(self) -> None:
        """The worker ended, and every interface with it; `set_endpoints` for the next one makes them again."""
        for endpoint_id in list(self._names):
            self._forget(endpoint_id)

    def endpoint_down(self, endpoint_id: bytes, cause: str) -> None:
        """The worker lost one: make it again."""
        if endpoint_id in self._names:
            log("endpoint-down", endpoint=self._names[endpoint_id], cause=cause)
            self._attached.discard(endpoint_id)
            self._lost[endpoint_id].set()
            self._on_change()

    def missing(self) -> list[str]:
        """Names of endpoints without a virtual function."""
        return sorted(name for endpoint_id, name in self._names.items() if endpoint_id not in self._attached)

    def _forget(self, endpoint_id: bytes) -> None:
        self._tasks.pop(endpoint_id).cancel()
        del self._names[endpoint_id], self._lost[endpoint_id]
        self._attached.discard(endpoint_id)

    async def _keep(self, endpoint_id: bytes) -> None:
        loop = asyncio.get_running_loop()
        pause_s = FIRST_PAUSE_S
        while True:
            made_s = loop.time()
            self._lost[endpoint_id].clear()
            try:
                await self._make(endpoint_id)
                self._attached.add(endpoint_id)
                self._on_change()
                await self._lost[endpoint_id].wait()
            except (UnreachableError, RefusedError, StateError, OSError) as error:
                warn("virtual-function-not-made", endpoint=self._names[endpoint_id], cause=str(error))
            if loop.time() - made_s > FORGIVE_AFTER_S:
                pause_s = FIRST_PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LAST_PAUSE_S)

    async def _make(self, endpoint_id: bytes) -> None:
        question = cbor2.dumps(["make", self._names[endpoint_id], endpoint_id])
        answer, descriptors = await door.ask(self._factory_socket, question)
        try:
            word, named, message = _read(answer)
            if word != "made" or named != endpoint_id or len(descriptors) != 1:
                raise RefusedError(f"factory: {message or word}", remedy="look whether the endpoint is in its plan")
            channel = self._channel()
            if channel is None:
                raise StateError("the worker is gone", remedy="it is restarted by itself")
            channel.send(mailbox.AttachEndpoint(endpoint_id), descriptors=descriptors)
        finally:
            door.close_all(descriptors)


def _read(answer: bytes) -> tuple[str, bytes, str]:
    try:
        word, named, message = cbor2.loads(answer)
    except (cbor2.CBORDecodeError, TypeError, ValueError) as error:
        raise RefusedError("the factory's answer is not understood") from error
    return str(word), bytes(named) if isinstance(named, bytes) else b"", str(message)
