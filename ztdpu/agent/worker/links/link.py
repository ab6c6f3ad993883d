"""The two sides of the worker, as narrow interfaces: an endpoint's virtual function and the underlay.

Implemented by `tun`, `packet_socket` (labs without privilege), `udp` and (for tests) `memory`. None of them
blocks, none of them looks into a packet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ztdpu.model.verdict import Reason


class LinkDownError(Exception):
    """The virtual function is gone for good; the text says why."""


class Received(NamedTuple):
    """What one read from the underlay brought."""

    octets: int
    segment_octets: int
    """All datagrams of the run have this size, the last may be shorter; 0 for a single datagram."""
    source: bytes
    """Outer source address, packed; empty if it has no packed form."""


class EndpointLink(Protocol):
    """A tenant's virtual function: frames of virtio-net header and IP packet."""

    def fileno(self) -> int:
        """Descriptor to poll."""

    def read_into(self, buffer: memoryview) -> int:
        """Read one frame; 0 when there is none. Raises LinkDownError when there never will be another."""

    def write(self, buffers: Sequence[bytes | bytearray | memoryview]) -> Reason | None:
        """Write one frame given in pieces; return why it was not taken, None if it was."""

    def close(self) -> None:
        """Give the descriptor back."""


class UnderlayLink(Protocol):
    """The way to other devices: UDP datagrams."""

    def fileno(self) -> int:
        """Descriptor to poll."""

    def receive_into(self, buffer: memoryview) -> Received | None:
        """Read a datagram or a run of equal ones; None when there is none."""

    def send(self, destination: bytes, datagrams: memoryview, segment_octets: int) -> bool:
        """Send a run of datagrams of `segment_octets` (the last may be shorter); say whether the kernel took it."""

    def forget_peers(self) -> None:
        """Tables changed: give back what is kept per destination."""

    def close(self) -> None:
        """Give the descriptors back."""
