"""A virtual function as one end of a SOCK_SEQPACKET pair: a tenant that lives in memory, where no TUN can be made.

Frames are those of a TUN (virtio-net header and IP packet), one per message. The other end belongs to whoever
stands for the PCIe side; when that goes, the virtual function is gone. As with a TUN, a queue that is full loses
the packet and says so.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from typing import Final

from ztdpu.agent.worker.links.link import LinkDownError
from ztdpu.model.verdict import Reason

_FULL: Final = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM})


class PacketSocket:
    """Owns one end of a pair."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """Descriptor to poll; -1 after `close`."""
        return self._socket.fileno()

    def read_into(self, buffer: memoryview) -> int:
        """Read one frame; 0 when there is none now. Raises LinkDownError when the other end is gone."""
        try:
            octets = self._socket.recv_into(buffer)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise LinkDownError(errno.errorcode.get(error.errno or 0, "unknown")) from error
        if not octets:
            raise LinkDownError("the other end is closed")
        return octets

    def write(self, buffers: Sequence[bytes | bytearray | memoryview]) -> Reason | None:
        """Write one frame given in pieces; return why it was not taken, None if it was."""
        try:
            self._socket.sendmsg(buffers)
        except OSError as error:
            if error.errno in _FULL:
                return Reason.ENDPOINT_FULL
            return Reason.MALFORMED if error.errno == errno.EMSGSIZE else Reason.ENDPOINT_DOWN
        return None

    def close(self) -> None:
        """Close this end; the other one reads the end of file."""
        self._socket.close()
