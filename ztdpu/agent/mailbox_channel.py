"""The daemon's end of the mailbox: messages out with descriptors, messages in, answers matched by token.

Owned by `agent.supervisor`, one per worker start; a new worker gets a new channel. Never blocks the event
loop: what the socket does not take at once waits in a queue, its descriptors duplicated until sent.
"""

from __future__ import annotations

import array
import asyncio
import itertools
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar, cast

from ztdpu.agent import mailbox
from ztdpu.agent.door import close_all, receive
from ztdpu.errors import StateError

ANSWER_LIMIT_S: Final = 5.0
QUEUE_LIMIT: Final = 4096
"""A worker that lets this many messages pile up is not working: the channel closes and it is replaced."""

Answer = TypeVar("Answer", bound=mailbox.Message)
_Key = tuple[type[mailbox.Message], int]


class MailboxChannel:
    """Asyncio side of one mailbox."""

    def __init__(
        self, endpoint: socket.socket, *, on_message: Callable[[mailbox.Message], None], on_lost: Callable[[], None]
    ) -> None:
        """Take over `endpoint`. `on_message` gets what answers no question; `on_lost` is called once, at the end."""
        endpoint.setblocking(False)
        self._endpoint = endpoint
        self._on_message = on_message
        self._on_lost = on_lost
        self._tokens = itertools.count(1)
        self._waiting: dict[_Key, asyncio.Future[mailbox.Message]] = {}
        self._queue: deque[tuple[bytes, list[int]]] = deque()
        self._open = True
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(endpoint, self._take)

    @property
    def is_open(self) -> bool:
        """False once either side hung up."""
        return self._open

    def next_token(self) -> int:
        """A number for the next question."""
        return next(self._tokens)

    def send(self, message: mailbox.Message, *, descriptors: Sequence[int] = ()) -> None:
        """Send `message`; `descriptors` stay the caller's to close. Raises StateError when the channel is closed."""
        if not self._open:
            raise StateError("the worker is gone", remedy="it is restarted by itself; look at the log if it is not")
        self._queue.append((mailbox.encode(message), [os.dup(descriptor) for descriptor in descriptors]))
        if len(self._queue) > QUEUE_LIMIT:
            self.close()
            return
        self._flush()

    async def ask(
        self, message: mailbox.Message, answer: type[Answer], *, key: int, limit_s: float = ANSWER_LIMIT_S
    ) -> Answer:
        """Send and wait for the message of kind `answer` whose token is `key`.

        Raises StateError when the worker ends or does not answer in `limit_s`.
        """
        return cast("Answer", await self.ask_either(message, (answer,), key=key, limit_s=limit_s))

    async def ask_either(
        self,
        message: mailbox.Message,
        answers: Sequence[type[mailbox.Message]],
        *,
        key: int,
        descriptors: Sequence[int] = (),
        limit_s: float = ANSWER_LIMIT_S,
    ) -> mailbox.Message:
        """`ask` for a question with more than one kind of answer, or with descriptors; `key` may be a generation."""
        future: asyncio.Future[mailbox.Message] = self._loop.create_future()
        for answer in answers:
            self._waiting[answer, key] = future
        try:
            self.send(message, descriptors=descriptors)
            async with asyncio.timeout(limit_s):
                return await future
        except TimeoutError as error:
            raise StateError(f"the worker did not answer {message.WORD}", remedy="restart the agent") from error
        finally:
            for answer in answers:
                self._waiting.pop((answer, key), None)

    def close(self) -> None:
        """Hang up; the worker ends by itself. Whoever waits gets StateError. Safe to call twice."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._endpoint)
        self._loop.remove_writer(self._endpoint)
        self._endpoint.close()
        while self._queue:
            close_all(self._queue.popleft()[1])
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(StateError("the worker is gone", remedy="it is restarted by itself"))
        self._on_lost()

    def _flush(self) -> None:
        while self._open and self._queue:
            datagram, descriptors = self._queue[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
            try:
                self._endpoint.sendmsg([datagram], rights, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self._loop.add_writer(self._endpoint, self._flush)
                return
            except OSError:
                self.close()
                return
            self._queue.popleft()
            close_all(descriptors)
        if self._open:
            self._loop.remove_writer(self._endpoint)

    def _take(self) -> None:
        while self._open:
            try:
                datagram, descriptors = receive(self._endpoint)
            except BlockingIOError:
                return
            except OSError:
                datagram, descriptors = b"", []
            close_all(descriptors)
            if not datagram:
                self.close()
                return
            try:
                message = mailbox.decode(datagram)
            except StateError:
                self.close()
                return
            self._deliver(message)

    def _deliver(self, message: mailbox.Message) -> None:
        key = getattr(message, "token", None)
        key = getattr(message, "generation", None) if key is None else key
        future = self._waiting.get((type(message), key)) if key is not None else None
        if future is None:
            self._on_message(message)
        elif not future.done():
            future.set_result(message)
