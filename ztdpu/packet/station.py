"""What both directions of the packet path share, and what they ask the daemon for.

Made by `packet.pipeline`, which swaps tables and keys in it between packets; read by `outbound` and `inbound`.
"""

from __future__ import annotations

from typing import Final

from ztdpu.packet.counters import Counters
from ztdpu.packet.firewall import Firewall
from ztdpu.packet.forwarding import Forwarding
from ztdpu.packet.gate import Gate
from ztdpu.packet.sa_table import Line, SaTable
from ztdpu.packet.sink import Sink

WANT_INTERVAL_S: Final = 1.0
"""SAs for one line are asked for once in this time."""


class Station:
    """Gate, tables, SAs, counters and the sink of one device."""

    __slots__ = (
        "_wanted", "_wanted_at_s", "counters", "device", "firewall", "forwarding", "gate", "sas", "sink",
        "withheld",
    )  # fmt: skip

    def __init__(self, *, device: str, gate: Gate, sink: Sink) -> None:
        self.device = device
        self.gate = gate
        self.sink = sink
        self.counters = Counters()
        self.sas = SaTable()
        self.firewall: Firewall | None = None
        """None until the first tables."""
        self.forwarding = Forwarding(device=device, peers={}, networks={})
        self.withheld: frozenset[bytes] = frozenset()
        """Networks that this device may not use now."""
        self._wanted: list[Line] = []
        self._wanted_at_s: dict[Line, float] = {}

    def want(self, line: Line) -> None:
        """An SA of `line` is missing or worn: tell the daemon, at most once a second."""
        now_s = self.gate.now_s
        if now_s - self._wanted_at_s.get(line, -WANT_INTERVAL_S) >= WANT_INTERVAL_S:
            self._wanted_at_s[line] = now_s
            self._wanted.append(line)

    def take_wanted(self) -> list[Line]:
        """Return the lines asked for since the last call."""
        wanted, self._wanted = self._wanted, []
        return wanted

    def forget_wanted(self) -> None:
        """Ask anew for everything: tables or the lease changed."""
        self._wanted_at_s = {}
