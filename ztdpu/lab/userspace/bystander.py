"""A stream of datagrams between endpoints on devices that stay, while another device is revoked.

Stands in for `lab.bystander` where endpoints in memory cannot train. What went on is told by a capture at the far end.
"""

from __future__ import annotations

import time
from typing import Any, Final

from ztdpu.errors import MachineError
from ztdpu.lab.crew import Crew

_RATE_PPS: Final = 200
_PORT: Final = 29600
_START_S: Final = 10.0
_LOOK_S: Final = 0.05


class StreamBystander:
    """One stream; starts at once."""

    def __init__(self, crew: Crew, source: str, target: str) -> None:
        self._target = target
        watching = ("--direction", "in", "--udp", str(_PORT), "--stamps")
        self._capture = crew.start_capture(target, "ztdpu0", *watching)
        self._sender = crew.start_python(
            source, "ztdpu.lab.traffic", "send", "--host", target, "--port", str(_PORT), "--rate", str(_RATE_PPS)
        )

    def wait_begun(self) -> None:
        """Return when the first one arrived. MachineError when none does."""
        deadline = time.monotonic() + _START_S
        while not self._capture.ask()["matched"]:
            if time.monotonic() > deadline:
                raise MachineError(f"nothing arrives at {self._target}")
            time.sleep(_LOOK_S)

    def steps_between(self, first_unix_s: float, last_unix_s: float) -> int:
        """Datagrams that arrived between two moments."""
        stamps = self._capture.ask()["stamps_unix_ns"]
        return sum(first_unix_s <= stamp / 1e9 <= last_unix_s for stamp in stamps)

    def finish(self) -> list[dict[str, Any]]:
        """End it; nothing was learned."""
        self._sender.finish()
        self._capture.finish()
        return []
