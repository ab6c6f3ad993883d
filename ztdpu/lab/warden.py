"""Takes a lab down when the process that it belongs to is gone, however that one ended.

    python -m ztdpu.lab.warden PID STATE

Started by the demo, for a kill that it cannot catch. In a session of its own, so that a terminal's Ctrl-C does not
reach it; the demo ends it when it has cleaned up itself.
"""

from __future__ import annotations

import os
import select
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from ztdpu.errors import ZtdpuError
from ztdpu.lab.takedown import stop_lab

_PATIENCE_S: Final = 60.0
_QUIET_S: Final = 2.0
"""So long nothing of a lab may be found: a `lab up` of the dead one may have been about to begin."""
_PAUSE_S: Final = 0.2


def wait_end(pid: int) -> None:
    """Return when the process is gone, at once when there is none."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        poller.poll()
        os.close(descriptor)


def take_down(state: Path) -> None:
    """Take the lab down until nothing has been there for a while; a command that works on it is waited for."""
    deadline = time.monotonic() + _PATIENCE_S
    quiet_since = time.monotonic()
    while time.monotonic() < min(deadline, quiet_since + _QUIET_S):
        try:
            if stop_lab(state):
                quiet_since = time.monotonic()
        except (ZtdpuError, OSError):
            quiet_since = time.monotonic()
        time.sleep(_PAUSE_S)


def main() -> None:
    """Run from the command line."""
    wait_end(int(sys.argv[1]))
    take_down(Path(sys.argv[2]))


if __name__ == "__main__":
    main()
