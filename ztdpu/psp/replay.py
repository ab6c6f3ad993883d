"""The anti-replay window of one receive SA. PSP itself has none and leaves it to the layer above.

Owns the highest IV seen and a bitmap of the ones below it (the idea of RFC 6479, with one Python integer as
the bitmap). The worker calls `look` before it opens a packet and `update` after the tag was verified, so a
forged packet can never move the window. `look_run` and `update_run` do the same for consecutive IVs at the
cost of one. Not shared between processes: one process owns a window.
"""

from __future__ import annotations

from typing import Final

from ztdpu.errors import ReplayError

DEFAULT_SIZE_PACKETS: Final = 8192


class ReplayWindow:
    """Accepts every IV once, as long as it is less than `size` behind the highest one. Empty at first.

    Most packets arrive in order. Those only lengthen `_run`, the number of seen IVs right above the bitmap;
    they are shifted into the bitmap when something out of order arrives.
    """

    __slots__ = ("_bitmap", "_full", "_run", "_top", "size")

    def __init__(self, size: int = DEFAULT_SIZE_PACKETS) -> None:
        """`size` is in packets, at least 1."""
        if size < 1:
            raise ValueError("a replay window holds at least one packet")
        self.size = size
        self._full = (1 << size) - 1
        self._bitmap = 0
        """Bit i: IV `_top - i` was seen."""
        self._top = -1
        self._run = 0
        """IVs `_top + 1 .. _top + _run` were seen as well."""

    @property
    def highest(self) -> int:
        """Highest IV seen, -1 before the first."""
        return self._top + self._run

    def look(self, iv: int) -> None:
        """Raise ReplayError if `iv` was seen or lies behind the window. Changes nothing that can be observed."""
        self.look_run(iv, 1)

    def update(self, iv: int) -> None:
        """Mark `iv`, which an authentic packet carried. Raises ReplayError like `look`, and then marks nothing."""
        self.update_run(iv, 1)

    def look_run(self, first: int, count: int) -> None:
        """Raise ReplayError unless every IV of `first .. first + count - 1` is new. `count` is at least 1."""
        highest = self._top + self._run
        if first > highest:
            return
        if first <= highest - self.size:
            raise ReplayError(f"IV {first} lies behind the window of {self.size}", too_old=True)
        if self._run:
            self._settle()
        # The part of the run that lies at or below the highest IV, as bits of the map.
        last = min(first + count - 1, highest)
        wanted = ((1 << (last - first + 1)) - 1) << (highest - last)
        if self._bitmap & wanted:
            raise ReplayError(f"IV {first} or one of the next {count - 1} was seen", too_old=False)

    def update_run(self, first: int, count: int) -> None:
        """Mark `first .. first + count - 1`. Raises ReplayError like `look_run`, and then marks nothing."""
        if count < 1:
            raise ValueError("a run has at least one packet")
        if first == self._top + self._run + 1:
            self._run += count
            return
        self.look_run(first, count)
        self._settle()
        ahead = first + count - 1 - self._top
        if ahead > 0:
            self._advance(ahead)
            self._bitmap |= self._full if count >= self.size else (1 << count) - 1
        else:
            self._bitmap |= ((1 << count) - 1) << -ahead

    def _settle(self) -> None:
        run, self._run = self._run, 0
        if run:
            self._advance(run)
            self._bitmap |= self._full if run >= self.size else (1 << run) - 1

    def _advance(self, by: int) -> None:
        self._top += by
        self._bitmap = 0 if by >= self.size else self._bitmap << by & self._full
