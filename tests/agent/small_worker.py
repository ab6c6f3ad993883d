"""A worker that moves no packets but speaks the mailbox: what supervisor and channel are tested with.

Run as a program with the number of its mailbox descriptor. `RotateMasterKey(force=True)` makes it crash,
`DetachEndpoint` makes it echo the descriptors it holds as an EndpointDown.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from ztdpu.agent import mailbox


def answer(message: mailbox.Message, held: list[int]) -> mailbox.Message | None:
    match message:
        case mailbox.GetStatistics():
            return mailbox.Statistics(message.token, {"no_sa": 1}, {}, 0, 0, 0, 0, 0, [], [], len(held))
        case mailbox.ApplyTables():
            blob = os.pread(held[-1], 1 << 20, 0)
            if blob == b"bad":
                return mailbox.TablesRefused(message.generation, "bad")
            return mailbox.TablesApplied(message.generation, message.revision, 0)
        case mailbox.RemovePeer():
            return mailbox.PeerRemoved(message.token, message.peer, 0)
        case mailbox.AllocateSas():
            grants = [[*want, 1 + index, b"k" * 32, 60, 1 << 30] for index, want in enumerate(message.wants)]
            return mailbox.SasAllocated(message.token, grants)
        case mailbox.InstallSas():
            return mailbox.SasInstalled(message.token, [grant[4] for grant in message.grants])
        case mailbox.DetachEndpoint():
            names = [str(Path(f"/proc/self/fd/{descriptor}").readlink()) for descriptor in held]
            return mailbox.EndpointDown(message.endpoint_id, ",".join(names))
        case mailbox.RotateMasterKey(force=True):
            os.abort()
    return None


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[-1]))
    channel.send(mailbox.encode(mailbox.WorkerReady(os.urandom(16))))
    held: list[int] = []
    while True:
        datagram, descriptors, _, _ = socket.recv_fds(channel, 1 << 17, 4)
        if not datagram:
            return
        held += descriptors
        reply = answer(mailbox.decode(datagram), held)
        if reply is not None:
            channel.send(mailbox.encode(reply))


if __name__ == "__main__":
    main()
