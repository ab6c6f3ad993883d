"""A virtual function as a TUN device whose other end sits in the tenant's namespace.

The descriptor was made and moved by whoever stands for the PCIe side (IFF_TUN, IFF_NO_PI, IFF_VNET_HDR, one
queue, offloads set). The tenant is root where the device lives: it may take it down, rename or delete it, so
every errno is an expected event here and nothing about the interface is trusted.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Final

from ztdpu.agent.worker.links.link import LinkDownError
from ztdpu.model.verdict import Reason

_FULL: Final = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM})


class Tun:
    """Owns one TUN descriptor."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor

    def fileno(self) -> int:
        """Descriptor to poll; -1 after `close`."""
        return self._descriptor

    def read_into(self, buffer: memoryview) -> int:
        """Read one frame; 0 when there is none now. Raises LinkDownError when the device was deleted."""
        try:
            return os.readv(self._descriptor, [buffer])
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno in {errno.EBADFD, errno.EBADF, errno.ENODEV}:
                raise LinkDownError(errno.errorcode[error.errno or 0]) from error
            # EIO and EFAULT: the tenant took it down; it may come back.
            return 0

    def write(self, buffers: Sequence[bytes | bytearray | memoryview]) -> Reason | None:
        """Write one frame given in pieces; return why it was not taken, None if it was."""
        try:
            os.writev(self._descriptor, buffers)
        except OSError as error:
            if error.errno in _FULL:
                return Reason.ENDPOINT_FULL
            return Reason.MALFORMED if error.errno == errno.EINVAL else Reason.ENDPOINT_DOWN
        return None

    def close(self) -> None:
        """Close the descriptor; a TUN without one is gone from the tenant's namespace."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
