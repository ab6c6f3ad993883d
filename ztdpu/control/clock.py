"""Control's clocks, read in one place; tests put their own here."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from ztdpu.control.devices.leases import Instant


class Clock(Protocol):
    """Tells the time."""

    def now(self) -> Instant:
        """All clocks at once."""


class SystemClock:
    """The machine's clocks; the boot id makes deadlines of an earlier boot void."""

    def __init__(self) -> None:
        self._boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()

    def now(self) -> Instant:
        """Wall clock and CLOCK_BOOTTIME (it counts suspend)."""
        return Instant(
            unix_ms=time.time_ns() // 1_000_000,
            boottime_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME),
            boot_id=self._boot_id,
        )


def as_datetime(now: Instant) -> datetime:
    """The wall clock of `now`, aware, in UTC."""
    return datetime.fromtimestamp(now.unix_ms / 1000, tz=UTC)
