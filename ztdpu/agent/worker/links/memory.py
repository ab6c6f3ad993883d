"""Links that live in memory: the same interfaces without a kernel device behind them.

For tests. An eventfd stands for readiness, so the same epoll loop drives them.
Frames keep the virtio-net header that a TUN would carry.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import Final

from ztdpu.agent.worker.links.link import LinkDownError
from ztdpu.model.verdict import Reason

_CAPACITY_FRAMES: Final = 512


class MemoryEndpoint:
    """A virtual function whose tenant is the caller: `put` frames in, take them from `taken`."""

    def __init__(self) -> None:
        self.taken: deque[bytes] = deque()
        """Frames the worker wrote, oldest first; at most 512 wait, then it is full."""
        self._given: deque[bytes] = deque()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_deleted = False

    def put(self, frame: bytes) -> None:
        """Hand a frame (virtio-net header and IP packet) to the worker."""
        self._given.append(frame)
        os.eventfd_write(self._event, 1)

    def delete(self) -> None:
        """What a tenant may do to its interface at any time."""
        self._is_deleted = True
        os.eventfd_write(self._event, 1)

    def fileno(self) -> int:
        """Descriptor to poll."""
        return self._event

    def read_into(self, buffer: memoryview) -> int:
        """Read one frame; 0 when there is none. Raises LinkDownError once deleted."""
        if self._is_deleted:
            raise LinkDownError("deleted")
        if not self._given:
            try:
                os.eventfd_read(self._event)
            except BlockingIOError:
                return 0
            if not self._given:
                return 0
        frame = self._given.popleft()[: len(buffer)]
        buffer[: len(frame)] = frame
        return len(frame)

    def write(self, buffers: Sequence[bytes | bytearray | memoryview]) -> Reason | None:
        """Write one frame given in pieces; return why it was not taken, None if it was."""
        if self._is_deleted:
            return Reason.ENDPOINT_DOWN
        if len(self.taken) >= _CAPACITY_FRAMES:
            return Reason.ENDPOINT_FULL
        self.taken.append(b"".join(buffers))
        return None

    def close(self) -> None:
        """Give the eventfd back."""
        if self._event >= 0:
            os.close(self._event)
            self._event = -1
