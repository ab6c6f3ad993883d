"""The device's end of SPDM over TCP: an emulated root of trust that any SPDM tool can talk to.

Called by `ztdpu lab root-of-trust`. One connection is one SPDM session. A peer that sends what is no frame, is silent
for IDLE_LIMIT_S or does not take its answers loses its connection; a further one than CONNECTIONS_LIMIT is closed at
once. Door one alone: nobody binds keys through it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ztdpu.errors import SpdmError
from ztdpu.trust.root import RootOfTrust, Session
from ztdpu.trust.spdm.framing import CLIENT_HELLO, SERVER_HELLO, Command, Frame, FrameReader, wrap

CONNECTIONS_LIMIT: Final = 16
IDLE_LIMIT_S: Final = 30.0
_READ_OCTETS: Final = 4096


class Listener:
    """Serves one root of trust."""

    def __init__(self, root: RootOfTrust, *, idle_limit_s: float = IDLE_LIMIT_S) -> None:
        self._root = root
        self._idle_limit_s = idle_limit_s
        self._open = 0
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; gives the address (port 0: the one that the kernel chose). Raises OSError."""
        self._server = await asyncio.start_server(self._serve, host, port)
        address = self._server.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def serve(self) -> None:
        """Serve until cancelled."""
        if self._server is not None:
            async with self._server:
                await self._server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= CONNECTIONS_LIMIT:
                await self._converse(reader, writer)
        except (SpdmError, OSError, TimeoutError):
            pass  # a stranger's nonsense or silence: the connection is closed, which is all the answer there is
        finally:
            self._open -= 1
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session, frames = self._root.open_session(), FrameReader()
        while True:
            async with asyncio.timeout(self._idle_limit_s):
                octets = await reader.read(_READ_OCTETS)
            if not octets:
                return
            for frame in frames.feed(octets):
                answer = _answer(session, frame)
                if answer is None:
                    continue
                async with asyncio.timeout(self._idle_limit_s):
                    writer.write(answer.encode())
                    await writer.drain()
                if frame.command is Command.STOP:
                    return


def _answer(session: Session, frame: Frame) -> Frame | None:
    """What to send; None of a device that does not answer."""
    if frame.command is Command.NORMAL:
        message = session.answer(frame.message)
        return wrap(message) if message else None
    if frame.command is Command.HELLO:
        if frame.payload != CLIENT_HELLO:
            raise SpdmError("hello of another protocol")
        return Frame(Command.HELLO, SERVER_HELLO)
    return Frame(frame.command)
