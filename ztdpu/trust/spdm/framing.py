"""SPDM over a plain socket as the emulators of DMTF's spdm-emu frame it: a header of three numbers, then MCTP octets.

    command (4) | transport (4) = 1, MCTP | size (4)        big-endian; then `size` octets
    command 1: 0x05 and an SPDM message      0xDEAD: `Client Hello!` and `Server Hello!`, each with a zero octet
    command 0xFFFD: go on, 0xFFFE: stop, both without octets

Sans-IO: whole frames out of whatever octets came, sizes bounded before anything is kept. Used at both ends: by
`rpc.spdm_tcp` (requester) and `lab.spdm_listener` (responder). Authenticates nothing; SPDM's signatures do.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from ztdpu.errors import SpdmError
from ztdpu.trust.spdm.messages import TRANSFER_OCTETS

DEFAULT_PORT: Final = 2323
CLIENT_HELLO: Final = b"Client Hello!\0"
SERVER_HELLO: Final = b"Server Hello!\0"
PAYLOAD_LIMIT_OCTETS: Final = TRANSFER_OCTETS + 1
_HEADER: Final = struct.Struct(">III")
_MCTP: Final = 1
_MCTP_SPDM: Final = b"\x05"


class Command(IntEnum):
    """What a frame is for."""

    NORMAL = 0x0001
    HELLO = 0xDEAD
    CONTINUE = 0xFFFD
    STOP = 0xFFFE


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame."""

    command: Command
    payload: bytes = b""

    def encode(self) -> bytes:
        """Give the octets."""
        return _HEADER.pack(self.command, _MCTP, len(self.payload)) + self.payload

    @property
    def message(self) -> bytes:
        """The SPDM message inside; SpdmError when this is none."""
        if self.command is not Command.NORMAL or self.payload[:1] != _MCTP_SPDM:
            raise SpdmError("frame carries no SPDM message")
        return self.payload[1:]


def wrap(message: bytes) -> Frame:
    """Put an SPDM message into a frame."""
    return Frame(Command.NORMAL, _MCTP_SPDM + message)


class FrameReader:
    """Octets in, frames out. One per connection and direction."""

    def __init__(self) -> None:
        self._octets = b""

    @property
    def is_empty(self) -> bool:
        """True between two frames."""
        return not self._octets

    def feed(self, octets: bytes) -> list[Frame]:
        """Take octets and give the frames that are whole.

        Raises:
            SpdmError: an unknown command, another transport, or a frame that is too long. The connection is over.

        """
        self._octets += octets
        frames: list[Frame] = []
        while len(self._octets) >= _HEADER.size:
            number, transport, size = _HEADER.unpack_from(self._octets)
            command = _read_command(number)
            if transport != _MCTP:
                raise SpdmError(f"frame of transport {transport}; only MCTP ({_MCTP}) is spoken: --trans MCTP")
            if size > PAYLOAD_LIMIT_OCTETS:
                raise SpdmError(f"frame of {size} octets, at most {PAYLOAD_LIMIT_OCTETS} are taken")
            end = _HEADER.size + size
            if len(self._octets) < end:
                break
            frames.append(Frame(command, self._octets[_HEADER.size : end]))
            self._octets = self._octets[end:]
        return frames


def _read_command(number: int) -> Command:
    try:
        return Command(number)
    except ValueError:
        raise SpdmError(f"frame has the unknown command 0x{number:x}") from None
