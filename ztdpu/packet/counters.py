"""How many packets ended in which `Reason`, and how many octets they had.

Every packet that enters the pipeline ends here exactly once: a packet read from an endpoint counts once
even when it is sealed as many segments; a packet that arrives from the underlay counts once each. Octets
are those of the inner packet where it is known, else of what arrived. Never reset, never aggregated away.
"""

from __future__ import annotations

from ztdpu.model.verdict import Reason


class Counters:
    """Sums since the worker started."""

    __slots__ = ("_octets", "_packets", "opened_octets", "opened_packets", "sealed_octets", "sealed_packets")

    def __init__(self) -> None:
        # By word, not by member: the hash of an enum member is a Python function, and this is asked per packet.
        self._packets = {reason.value: 0 for reason in Reason}
        self._octets = {reason.value: 0 for reason in Reason}
        self.sealed_packets = 0
        self.sealed_octets = 0
        """Of the inner packets."""
        self.opened_packets = 0
        self.opened_octets = 0

    def count(self, reason: Reason, octets: int, packets: int = 1) -> None:
        """`packets` packets with `octets` octets together ended with `reason`."""
        word = reason._value_
        self._packets[word] += packets
        self._octets[word] += octets

    def by_reason(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return (packets, octets) of the reasons that occurred, by word."""
        return (
            {word: packets for word, packets in self._packets.items() if packets},
            {word: self._octets[word] for word, packets in self._packets.items() if packets},
        )
