"""Addresses of a lab that has no network of its own: a piece of 127/8, all of which Linux routes to `lo`.

    127.A.B.1    the first device: its agent, its worker, its programs
    127.A.B.129  the first device as the others see it: its underlay address in policy, a face of the wire
    127.A.B.254  control

Computes, and tries whether a piece is free. Called by `userspace.cluster`.
"""

from __future__ import annotations

import socket
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ztdpu.errors import MachineError
from ztdpu.lab.layout import ENROLMENT_PORT, MAIN_PORT, METRICS_PORT

PSP_PORT: Final = 11_000
"""In place of 1000, which only root may bind."""
MOST_DEVICES: Final = 100
_FIRST_DEVICE, _FIRST_FACE, _CONTROL = 1, 129, 254
_FIRST_PIECE, _PIECES = 64 * 256, 62 * 256
_TRIES: Final = 20


@dataclass(frozen=True, slots=True)
class Ground:
    """One lab's piece of 127/8."""

    number: int
    """The two octets in the middle."""

    def _address(self, last: int) -> str:
        return f"127.{self.number >> 8}.{self.number & 0xFF}.{last}"

    def device(self, index: int) -> str:
        """Where the processes of the `index`-th device stand."""
        return self._address(_FIRST_DEVICE + index)

    def face(self, index: int) -> str:
        """Where the others send what is for the `index`-th device, and whence they get what is from it."""
        return self._address(_FIRST_FACE + index)

    @property
    def control(self) -> str:
        """Where control listens."""
        return self._address(_CONTROL)


def choose_ground(state: str, devices: int) -> Ground:
    """Return a piece where nobody holds an address that we need. MachineError when there is none."""
    if devices > MOST_DEVICES:
        raise MachineError(f"{devices} devices are too many for the userspace fabric", remedy=f"at most {MOST_DEVICES}")
    trouble = ""
    for ground in _candidates(state):
        try:
            _try_addresses(ground, devices)
        except OSError as error:
            trouble = str(error)
        else:
            return ground
    raise MachineError(
        f"no free addresses in 127.0.0.0/8: {trouble}", remedy="look whether lo is up, and which labs run here"
    )


def _candidates(state: str) -> Iterator[Ground]:
    first = zlib.crc32(state.encode())
    for number in range(_TRIES):
        yield Ground(_FIRST_PIECE + (first + number * 257) % _PIECES)


def _try_addresses(ground: Ground, devices: int) -> None:
    for port in (ENROLMENT_PORT, MAIN_PORT, METRICS_PORT):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((ground.control, port))
            trial.listen()
    for index in range(devices):
        for address in (ground.device(index), ground.face(index)):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
                trial.bind((address, PSP_PORT))
