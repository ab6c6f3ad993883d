"""Socket files of the root of trust's doors: whether somebody serves one, and taking away what nobody serves.

Called by the root of trust before it listens, and by the supervisor before it starts one. Never takes away a socket
behind which a process answers: that would cut a running device off for good.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

from ztdpu.errors import StateError

_POLL_S = 0.02


def is_served(path: Path) -> bool:
    """Whether a process listens behind a SOCK_SEQPACKET socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return True  # its backlog is full, so somebody has one
        except OSError:
            return False
    return True


def remove_unserved(path: Path, *, wait_s: float = 0.0) -> None:
    """Take the file away; `wait_s` is how long a process that is about to end may take.

    Raises StateError when a process still serves it then.
    """
    deadline_s = time.monotonic() + wait_s
    while is_served(path):
        if time.monotonic() >= deadline_s:
            raise StateError(
                f"another process serves {path}", remedy="stop it first, or use another stateDir for this agent"
            )
        time.sleep(_POLL_S)
    path.unlink(missing_ok=True)
