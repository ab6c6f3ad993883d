"""Signals that end the demo or `lab up`: they become one exception, and none of them breaks the clean-up.

Called by `ztdpu demo` and `ztdpu lab up`: installed before anything is built. The first signal before `shield`
raises KeyboardInterrupt where the main thread happens to be; all others are only remembered.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Final, Self

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Use as a context manager in the main thread. `number` is the first signal that came, 0 before."""

    def __init__(self) -> None:
        self.number = 0
        self._shielded = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:  # nohup asked for it
                continue
            self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def shield(self) -> None:
        """From here on nothing is interrupted any more: the clean-up begins."""
        self._shielded = True

    @property
    def exit_status(self) -> int:
        """What a shell expects of a command that a signal ended."""
        return 128 + self.number

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        first = not self.number
        self.number = self.number or number
        if first and not self._shielded:
            raise KeyboardInterrupt
