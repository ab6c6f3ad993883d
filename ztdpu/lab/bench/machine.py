"""What the figures were measured on: named at the top of every report. Reads /proc, changes nothing."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ztdpu


def describe_machine() -> dict[str, Any]:
    """Return machine, cores, kernel, interpreter and load as one document."""
    from cryptography import __version__ as cryptography_version
    from cryptography.hazmat.backends.openssl import backend

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "ztdpu": ztdpu.__version__,
        "commit": _commit(),
        "processor": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": int(_field("/proc/meminfo", "MemTotal").split(" ")[0] or 0) // 1024,
        "kernel": f"{platform.system()} {platform.release()}",
        "interpreter": f"{platform.python_implementation()} {platform.python_version()}, {_interpreter()}",
        "cryptography": f"{cryptography_version}, {backend.openssl_version_text()}",
        "load": read_load(),
    }


def read_load() -> list[float]:
    """Return the load averages of 1, 5 and 15 minutes."""
    return [round(load, 2) for load in os.getloadavg()]


def _interpreter() -> Path:
    """The program behind the virtual environment: distributions' own builds are faster than plain ones."""
    return Path(sys.executable).resolve()


def _field(path: str, name: str) -> str:
    with suppress(OSError):
        for line in Path(path).read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""


def _commit() -> str:
    """The commit of the checkout that runs, empty outside of one."""
    command = ["git", "-C", str(Path(__file__).resolve().parent), "rev-parse", "--short", "HEAD"]
    with suppress(OSError):
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return ""
