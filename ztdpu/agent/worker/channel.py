"""The worker's end of the mailbox: messages and descriptors over one SOCK_SEQPACKET socket.

Owned by `loop`. Never blocks: what the daemon does not take at once waits in a bounded queue; a daemon that
stays away that long is as good as dead, and the worker ends rather than guess.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from typing import Final

from ztdpu.agent.mailbox import MESSAGE_LIMIT_OCTETS, Message, decode, encode
from ztdpu.errors import StateError

_QUEUE_LIMIT: Final = 4096
_DESCRIPTORS: Final = 4


class ChannelClosedError(Exception):
    """The daemon closed its end, or does not read any more."""


class Channel:
    """Owns the mailbox descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self._waiting: deque[bytes] = deque()

    def fileno(self) -> int:
        """Descriptor to poll."""
        return self._socket.fileno()

    @property
    def has_waiting(self) -> bool:
        """Whether `flush` has something to send."""
        return bool(self._waiting)

    def receive(self) -> tuple[Message, list[int]] | None:
        """Return the next message and its descriptors, which the caller owns; None when there is none.

        Raises ChannelClosedError at the end, StateError for something that is no message.
        """
        try:
            datagram, descriptors, flags, _ = socket.recv_fds(self._socket, MESSAGE_LIMIT_OCTETS, _DESCRIPTORS)
        except BlockingIOError:
            return None
        except OSError as error:
            raise ChannelClosedError(str(error)) from error
        if not datagram:
            raise ChannelClosedError("end of file")
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            close_all(descriptors)
            raise StateError("mailbox message was cut", remedy="restart the agent")
        try:
            return decode(datagram), descriptors
        except StateError:
            close_all(descriptors)
            raise

    def send(self, message: Message) -> None:
        """Send `message` now or as soon as the daemon reads. Raises ChannelClosedError."""
        if len(self._waiting) >= _QUEUE_LIMIT:
            raise ChannelClosedError("the daemon does not read")
        self._waiting.append(encode(message))
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as the daemon takes it. Raises ChannelClosedError."""
        while self._waiting:
            try:
                self._socket.send(self._waiting[0])
            except BlockingIOError:
                return
            except OSError as error:
                raise ChannelClosedError(str(error)) from error
            self._waiting.popleft()

    def close(self) -> None:
        """Close the mailbox."""
        self._socket.close()


def close_all(descriptors: list[int]) -> None:
    """Close descriptors that nobody wanted."""
    for descriptor in descriptors:
        os.close(descriptor)
