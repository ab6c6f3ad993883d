"""Where the pipeline puts what it made: the one interface between the core and the shell that does I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ztdpu.model.verdict import Reason


class Sink(Protocol):
    """Implemented by the worker's loop and by test fabrics. Buffers are valid during the call only."""

    def transmit(self, destination: bytes, datagrams: memoryview, segment_octets: int) -> bool:
        """Send sealed packets to an underlay address: a run of `segment_octets` each, the last may be shorter.

        At most 128 of them and 65,507 octets together. False when they were not sent.
        """

    def deliver(self, endpoint_id: bytes, buffers: Sequence[bytes | bytearray | memoryview]) -> Reason | None:
        """Write a frame (virtio-net header, IP packet) to an own endpoint; None when taken, else why not."""
