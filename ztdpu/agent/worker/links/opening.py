"""From the descriptor that came with `attach-endpoint` to the link of its kind.

Called by `worker.commands`. Takes no descriptor over: the link has a duplicate of its own.
"""

from __future__ import annotations

import os
import socket
import stat

from ztdpu.agent.worker.links.link import EndpointLink
from ztdpu.agent.worker.links.packet_socket import PacketSocket
from ztdpu.agent.worker.links.tun import Tun
from ztdpu.errors import StateError


def open_link(descriptor: int) -> EndpointLink:
    """Return the link for a TUN or for one end of a SOCK_SEQPACKET pair. StateError for a socket of another kind."""
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return Tun(os.dup(descriptor))
    with socket.socket(fileno=os.dup(descriptor)) as given:
        if (given.family, given.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
            raise StateError(
                "a virtual function is a TUN or one end of a SOCK_SEQPACKET pair", remedy="mend the factory"
            )
        return PacketSocket(given.detach())
