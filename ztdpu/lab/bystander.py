"""A training on devices that stay, while another device is revoked.

Used by the demo. What it has done is told by its own progress lines, which carry the number of the step; a step takes
both ranks and both devices, so a step that is done says that packets flowed both ways.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from ztdpu.errors import MachineError
from ztdpu.lab.crew import Crew, Hand

STEPS: Final = 2_500
"""More than are done while a device is revoked; what is left then is finished, so that the result can be judged."""
_PORT: Final = 29600
_PROGRESS_S: Final = 0.05
_START_S: Final = 20.0
_FINISH_S: Final = 45.0


class Bystander:
    """One training over two endpoints; starts at once."""

    def __init__(self, crew: Crew, example: Path, hosts: Sequence[str], take: Callable[[int, float], None]) -> None:
        """`take` gets step and loss, in a thread of its own."""
        self.hosts = tuple(hosts)
        self._take = take
        self._moments: list[tuple[float, int]] = []
        self._begun = threading.Event()
        self._ranks: list[Hand] = [
            crew.start(
                host, sys.executable, str(example), "--rank", str(rank), "--world-size", str(len(hosts)),
                "--hosts", ",".join(hosts), "--port", str(_PORT), "--timeout", "30", "--steps", str(STEPS),
                "--progress", str(_PROGRESS_S),
            )
            for rank, host in enumerate(hosts)
        ]  # fmt: skip
        self._ranks[0].follow(self._note)

    def _note(self, said: dict[str, Any]) -> None:
        step = said.get("step", STEPS)
        self._moments.append((time.time(), step))
        self._begun.set()
        self._take(step, said.get("loss", 0.0))

    def wait_begun(self) -> None:
        """Return when it trains. MachineError when it does not begin."""
        if not self._begun.wait(_START_S):
            raise MachineError(f"the training on {' and '.join(self.hosts)} does not begin")

    def steps_between(self, first_unix_s: float, last_unix_s: float) -> int:
        """Steps that were surely done between two moments: told after the first, the last told before the second."""
        told = [step for moment, step in list(self._moments) if first_unix_s <= moment <= last_unix_s]
        return told[-1] - told[0] if told else 0

    def finish(self) -> list[dict[str, Any]]:
        """Wait for its end; returns a report per rank. MachineError when it failed."""
        return [rank.finish(timeout_s=_FINISH_S) for rank in self._ranks]
