"""What makes this process a poor place to look for keys: no core dumps, no ptrace, a hidden /proc.

Called once by `__main__` before the first key exists.
"""

from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path
from typing import Final

_PR_SET_DUMPABLE: Final = 4


def harden() -> None:
    """Forbid core dumps and, as far as the kernel goes along, reading of this process's memory by its own user."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def resident_octets() -> int:
    """Return the memory that this process occupies now."""
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
