"""What a program of the lab has in place of a packet socket: a connection to where packets pass.

`lab.enter` says in the environment where the tap of the program's place is; an endpoint's belongs to the factory,
a device's and the fabric's to the wire. Messages: length (4 octets), kind (1 octet), body.

    to the tap    open {place}   watch {interface, wanted}   counts   frame   sync   hold {...}   release   put
    from the tap  answer {...}   frame (one that was held)

Used by `capture`, `traffic` and the attacks. Standard library only.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from ztdpu.errors import MachineError
from ztdpu.lab.capture import TAP_VARIABLE, Counts, Wanted

PLACE_VARIABLE: Final = "ZTDPU_LAB_PLACE"
LENGTH_OCTETS: Final = 4
MESSAGE_LIMIT_OCTETS: Final = 16 * 1024 * 1024
VNET_HEADER_OCTETS: Final = 10
_PATIENCE_S: Final = 10.0


class Kind(IntEnum):
    """What a message is."""

    OPEN = 1
    WATCH = 2
    COUNTS = 3
    FRAME = 4
    SYNC = 5
    HOLD = 6
    RELEASE = 7
    PUT = 8
    ANSWER = 9


def encode_message(kind: Kind, body: bytes = b"") -> bytes:
    """Return the octets of one message."""
    return (len(body) + 1).to_bytes(LENGTH_OCTETS, "big") + bytes((kind,)) + body


def encode_wanted(wanted: Wanted) -> dict[str, Any]:
    """Return what to look for as a JSON document."""
    marks = [[name, octets.hex()] for name, octets in wanted.marks]
    return asdict(wanted) | {"canary": wanted.canary.hex(), "marks": marks}


def decode_wanted(document: dict[str, Any]) -> Wanted:
    """Read it back. Raises TypeError, ValueError."""
    marks = tuple((str(name), bytes.fromhex(octets)) for name, octets in document["marks"])
    return Wanted(**{**document, "canary": bytes.fromhex(document["canary"]), "marks": marks})


class Tap:
    """One connection."""

    def __init__(self, path: Path, place: str) -> None:
        """MachineError when nobody serves the tap."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise MachineError(f"the tap of {place} is closed: {error.strerror}", remedy="ztdpu lab status") from error
        self._buffer = bytearray()
        self.send(Kind.OPEN, {"place": place})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, kind: Kind, body: bytes | dict[str, Any] = b"") -> None:
        """Send one message. MachineError when the tap is gone."""
        octets = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            self._socket.sendall(encode_message(kind, octets))
        except OSError as error:
            raise MachineError("the tap is gone", remedy="ztdpu lab status") from error

    def send_packet(self, packet: bytes, offload: bytes = b"") -> None:
        """Put an IP packet on the virtual function, behind a virtio-net header (empty: one that asks for nothing)."""
        self.send(Kind.FRAME, (offload or bytes(VNET_HEADER_OCTETS)) + packet)

    def synchronize(self) -> int:
        """Return how many frames of ours were taken, once all of them were looked at."""
        return int(self.ask(Kind.SYNC)["taken"])

    def watch(self, interface: str, wanted: Wanted) -> None:
        """Count from now on."""
        self.ask(Kind.WATCH, {"interface": interface, "wanted": encode_wanted(wanted)})

    def counts(self) -> Counts:
        """Return what was counted so far."""
        return Counts(**self.ask(Kind.COUNTS))

    def ask(self, kind: Kind, body: bytes | dict[str, Any] = b"") -> dict[str, Any]:
        """Send one message and return the answer. MachineError says what was refused."""
        self.send(kind, body)
        return self.read_answer()

    def read_answer(self, *, timeout_s: float = _PATIENCE_S) -> dict[str, Any]:
        """Return the next answer. MachineError when there is none in time or it is a refusal."""
        kind, body = self.receive(timeout_s=timeout_s)
        answer: dict[str, Any] = json.loads(body) if kind == Kind.ANSWER else {"refused": "no answer but a frame"}
        if "refused" in answer:
            raise MachineError(str(answer["refused"]))
        return answer

    def receive(self, *, timeout_s: float = _PATIENCE_S) -> tuple[int, bytes]:
        """Return kind and body of the next message. MachineError at the end, and when none comes in time."""
        self._socket.settimeout(timeout_s)
        try:
            length = int.from_bytes(self._take(LENGTH_OCTETS), "big")
            message = self._take(min(length, MESSAGE_LIMIT_OCTETS))
        except TimeoutError as error:
            raise MachineError("the tap does not answer in time") from error
        except OSError as error:
            raise MachineError("the tap is gone", remedy="ztdpu lab status") from error
        finally:
            self._socket.settimeout(None)
        return message[0], message[1:]

    def _take(self, octets: int) -> bytes:
        while len(self._buffer) < octets:
            part = self._socket.recv(256 * 1024)
            if not part:
                raise ConnectionResetError
            self._buffer += part
        taken = bytes(self._buffer[:octets])
        del self._buffer[:octets]
        return taken


def is_tapped() -> bool:
    """Tell whether this program runs in a lab without a network of its own."""
    return TAP_VARIABLE in os.environ


def own_place() -> str:
    """Name of the endpoint or device that this program runs in, or `fabric`."""
    return os.environ[PLACE_VARIABLE]


def open_own_tap() -> Tap:
    """Return the tap of the place that this program runs in. MachineError."""
    return Tap(Path(os.environ[TAP_VARIABLE]), own_place())
