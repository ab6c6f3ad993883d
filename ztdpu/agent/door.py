"""Questions and answers over a SOCK_SEQPACKET UNIX socket, with descriptors: the asyncio side of a door.

The agent knocks on three: the root of trust's SPDM and binding doors and the virtual function factory. A `Visit`
is one connection (at the SPDM door: one session); `ask` is a visit with a single question.
"""

from __future__ import annotations

import array
import asyncio
import errno
import os
import socket
from pathlib import Path
from typing import Final, Self

from ztdpu.errors import UnreachableError

DATAGRAM_LIMIT_OCTETS: Final = 128 * 1024
DESCRIPTORS_LIMIT: Final = 4


class DoorClosedError(UnreachableError):
    """Nobody answers behind a socket on this machine."""


class Visit:
    """One connection. Use as `async with Visit(path) as visit: await visit.ask(question)`."""

    def __init__(self, path: Path, *, timeout_s: float = 5.0) -> None:
        """`timeout_s` bounds connecting and each question."""
        self._path = path
        self._timeout_s = timeout_s
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self._connection.setblocking(False)

    async def __aenter__(self) -> Self:
        """Connect. Raises DoorClosedError when nobody listens."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.get_running_loop().sock_connect(self._connection, str(self._path))
        except (OSError, TimeoutError) as error:
            self._connection.close()
            raise self._unreachable(error) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        """Hang up."""
        self._connection.close()

    async def ask(self, question: bytes) -> tuple[bytes, list[int]]:
        """Send `question`, return the answer and the descriptors that came with it (the caller closes them).

        Raises DoorClosedError when the other side hangs up or does not answer in time.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                self._connection.sendmsg([question])
                await _readable(self._connection)
                answer, descriptors = receive(self._connection)
        except (OSError, TimeoutError) as error:
            raise self._unreachable(error) from error
        if not answer:
            close_all(descriptors)
            raise self._unreachable(ConnectionResetError(errno.ECONNRESET, "hung up"))
        return answer, descriptors

    def _unreachable(self, error: OSError | TimeoutError) -> DoorClosedError:
        cause = "no answer in time" if isinstance(error, TimeoutError) or not error.strerror else error.strerror
        return DoorClosedError(f"{self._path}: {cause}", remedy="look whether the process behind this socket runs")


async def ask(path: Path, question: bytes, *, timeout_s: float = 5.0) -> tuple[bytes, list[int]]:
    """Visit `path` for one question; see `Visit.ask`."""
    async with Visit(path, timeout_s=timeout_s) as visit:
        return await visit.ask(question)


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()
    loop.add_reader(connection, arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(connection)


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Take one datagram and its descriptors, close-on-exec. Raises OSError; a cut datagram is EMSGSIZE."""
    room = socket.CMSG_SPACE(DESCRIPTORS_LIMIT * array.array("i").itemsize)
    datagram, ancillary, flags, _ = connection.recvmsg(DATAGRAM_LIMIT_OCTETS, room, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        close_all(list(descriptors))
        raise OSError(errno.EMSGSIZE, "datagram too long")
    return datagram, list(descriptors)


def close_all(descriptors: list[int]) -> None:
    """Close what came and is not wanted."""
    for descriptor in descriptors:
        os.close(descriptor)
