"""Sockets that are there only once somebody listens: who waits for the file may connect as soon as it sees it.

Called by the factories and the taps. Between bind and listen a UNIX socket's file exists and refuses, so it gets its
name last, with owner and mode as they shall be.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path


def listen_at(path: Path, kind: socket.SocketKind, *, backlog: int, owner: int | None = None) -> socket.socket:
    """Listen at `path` (mode 0600, of uid and gid `owner` where one is given), in place of what is there.

    Raises OSError.
    """
    unnamed = path.with_name(f".{path.name}")
    unnamed.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC)
    try:
        listening.bind(str(unnamed))
        if owner is not None:
            os.chown(unnamed, owner, owner)
        unnamed.chmod(0o600)
        listening.listen(backlog)
        unnamed.rename(path)
    except BaseException:
        listening.close()
        raise
    return listening
