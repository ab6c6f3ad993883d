"""Hints that this device owes its peers: "ask me again", until they do. Pure; times are seconds of one clock.

A hint may be lost like any envelope, and while it is, the peer seals to SPIs that nobody opens. So it is owed
until the peer's next request was answered: sent again at least HINT_PAUSE_S later, then ever more slowly. Kept by
`agent.exchange_book`, sent by `agent.exchange_shell`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HINT_PAUSE_S: Final = 1.05
"""A peer takes one hint a second by its own clock."""
LAST_PAUSE_S: Final = 10.0


@dataclass(slots=True, kw_only=True)
class _Owed:
    cause: str
    due_s: float
    pause_s: float = HINT_PAUSE_S


class Hints:
    """What is owed to whom."""

    def __init__(self) -> None:
        self._owed: dict[str, _Owed] = {}
        self._sent_s: dict[str, float] = {}

    def owe(self, device: str, cause: str, due_s: float) -> None:
        """Hint `device` from `due_s` on. `restart` (SAs are gone) says more than `rotate` and is not replaced by it."""
        known = self._owed.get(device)
        if known is not None:
            cause = "restart" if "restart" in (known.cause, cause) else cause
            due_s = min(due_s, known.due_s)
        self._owed[device] = _Owed(cause=cause, due_s=self._earliest(device, due_s))

    def answered(self, device: str) -> None:
        """The peer asked, and got SAs that live: nothing is owed any more."""
        self._owed.pop(device, None)

    def forget(self, device: str) -> None:
        """It is no peer any more."""
        self._owed.pop(device, None)
        self._sent_s.pop(device, None)

    def hasten(self, now_s: float) -> None:
        """There is a way to the peers again: whatever was sent before may be lost."""
        for device, owed in self._owed.items():
            owed.due_s = min(owed.due_s, self._earliest(device, now_s))

    def take_due(self, now_s: float) -> list[tuple[str, str]]:
        """Return (device, cause) to send now; each is due again later."""
        due = [(device, owed) for device, owed in self._owed.items() if owed.due_s <= now_s]
        for device, owed in due:
            self._sent_s[device] = now_s
            owed.due_s = now_s + owed.pause_s
            owed.pause_s = min(owed.pause_s * 2, LAST_PAUSE_S)
        return [(device, owed.cause) for device, owed in due]

    def next_s(self, otherwise_s: float) -> float:
        """When the next one is due; `otherwise_s` when none is owed."""
        return min((owed.due_s for owed in self._owed.values()), default=otherwise_s)

    def _earliest(self, device: str, at_s: float) -> float:
        return max(at_s, self._sent_s.get(device, float("-inf")) + HINT_PAUSE_S)
