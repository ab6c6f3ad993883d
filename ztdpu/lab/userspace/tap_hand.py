"""A capture in a lab without privilege: no program of its own, because the tap counts and we only ask.

Used by `lab.crew` in place of a `Hand` that runs `lab.capture`; says the same documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ztdpu.errors import MachineError
from ztdpu.lab.capture import read_arguments
from ztdpu.lab.crew import END_TIMEOUT_S, Hand
from ztdpu.lab.userspace.tap import Tap


class TapHand(Hand):
    """One capture at one place."""

    def __init__(self, path: Path, target: str, arguments: Sequence[str]) -> None:
        """Count from now on. MachineError when nobody serves the tap."""
        self.target = target
        self.argv = ["ztdpu.lab.capture", *arguments]
        interface, wanted = read_arguments(arguments)
        self._tap: Tap | None = Tap(path, target)
        self._tap.watch(interface, wanted)

    def read_line(self) -> dict[str, Any]:
        """Say that it counts."""
        return {"capturing": True}

    def ask(self) -> dict[str, Any]:
        """Return what was counted so far. MachineError when the tap is gone, or it was finished."""
        if self._tap is None:
            raise MachineError(f"the capture in {self.target} is over")
        return asdict(self._tap.counts())

    def finish(self, *, timeout_s: float = END_TIMEOUT_S) -> dict[str, Any]:
        """Return the last numbers and stop."""
        del timeout_s
        said = self.ask()
        self.kill()
        return said

    def end(self, *, timeout_s: float = END_TIMEOUT_S) -> None:
        """Stop."""
        del timeout_s
        self.kill()

    @property
    def has_ended(self) -> bool:
        """Whether it counts no more."""
        return self._tap is None

    def kill(self) -> None:
        """Stop now."""
        tap, self._tap = self._tap, None
        if tap is not None:
            with suppress(MachineError), tap:
                pass
