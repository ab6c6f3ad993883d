"""One question, one answer over a SOCK_SEQPACKET UNIX socket, with descriptors: the asyncio side of a door.

The agent knocks on three: the root of trust's SPDM and binding doors and the virtual function factory.
Owns nothing between two questions: each opens a connection of its own, so a process that restarted behind
the path is simply reached again.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
from pathlib import Path
from typing import Final

from ztdpu.errors import UnreachableError

DATAGRAM_LIMIT_OCTETS: Final = 128 * 1024
DESCRIPTORS_LIMIT: Final = 4


async def ask(path: Path, question: bytes, *, timeout_s: float = 5.0) -> tuple[bytes, list[int]]:
    """Send `question`, return the answer and the descriptors that came with it (the caller closes them).

    Raises UnreachableError when nobody listens, the other side hangs up, or `timeout_s` passes.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await _ask(path, question)
    except (OSError, TimeoutError) as error:
        cause = error.strerror if isinstance(error, OSError) and error.strerror else "no answer in time"
        raise UnreachableError(f"{path}: {cause}", remedy="look whether the process behind this socket runs") from error


async def _ask(path: Path, question: bytes) -> tuple[bytes, list[int]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as connection:
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, str(path))
        connection.sendmsg([question])
        await _readable(connection)
        answer, descriptors = receive(connection)
        if not answer:
            close_all(descriptors)
            raise ConnectionResetError(104, "hung up")
        return answer, descriptors


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    arrived = loop.create_future()
    loop.add_reader(connection, lambda: arrived.done() or arrived.set_result(None))
    try:
        await arrived
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
        raise OSError(90, "datagram too long")
    return datagram, list(descriptors)


def close_all(descriptors: list[int]) -> None:
    """Close what came and is not wanted."""
    for descriptor in descriptors:
        os.close(descriptor)
