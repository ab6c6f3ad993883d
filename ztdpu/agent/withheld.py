"""Which networks this device may not use with whom: what control told, and when. Pure.

A device in a lower tier keeps its lease, and loses the networks whose tenants do not bear the tier. Control tells its
peers at once and in every list after that; an older list that arrives later gives nothing back. Owned by
`agent.conversation`, which has worker and exchange follow.
"""

from __future__ import annotations

from collections.abc import Iterable


class Withheld:
    """One per daemon."""

    def __init__(self) -> None:
        self.own: frozenset[bytes] = frozenset()
        """Networks that this device itself may not use."""
        self._own_generation = 0
        self._told: dict[str, tuple[int, frozenset[bytes]]] = {}
        """Device -> (generation, networks) of the last withholdings that no list of peers has confirmed yet."""

    def set_own(self, networks: Iterable[bytes], generation: int) -> bool:
        """Take what came with this device's keys; True when that changes anything. Older than the last: ignored."""
        fresh = frozenset(networks)
        if generation < self._own_generation:
            return False
        before, self.own, self._own_generation = self.own, fresh, generation
        return before != fresh

    def withhold_own(self, networks: Iterable[bytes], generation: int) -> None:
        """Some more are not for this device: whatever was granted before `generation` does not give them back."""
        self.own |= frozenset(networks)
        self._own_generation = max(generation, self._own_generation)

    def withhold(self, device: str, networks: Iterable[bytes], generation: int) -> None:
        """A peer may not use these any more."""
        before, known = self._told.get(device, (0, frozenset[bytes]()))
        self._told[device] = (max(generation, before), known | frozenset(networks))

    def between(self, device: str, listed: Iterable[bytes], generation: int) -> frozenset[bytes]:
        """Networks not to be used with a peer, of which a list of this generation says `listed`."""
        told_at, told = self._told.get(device, (0, frozenset[bytes]()))
        if generation >= told_at:
            self._told.pop(device, None)
            told = frozenset()
        return self.own | told | frozenset(listed)
