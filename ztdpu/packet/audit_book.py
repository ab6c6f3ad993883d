"""First packets that policies in audit mode would treat otherwise, added up until somebody asks for them.

`packet.firewall` notes each, the worker takes them for the daemon. Bounded in memory (rows per endpoint) and in rate
(rows and calls): what does not fit is only counted. One endpoint that tries every port costs its own rows, not its
neighbours'. Packets of live flows never come here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from ztdpu.model.flow import Direction
from ztdpu.model.verdict import Reason

AUDITED: Final = frozenset({Reason.AUDIT_WOULD_DROP, Reason.AUDIT_WOULD_ALLOW})
INTERVAL_S: Final = 2.0
"""Between two hand-overs."""
ROWS_LIMIT: Final = 64
"""Per hand-over."""
ENDPOINT_ROWS: Final = 16


class Sighting(NamedTuple):
    """What is the same in all first packets of a row."""

    direction: Direction
    peer: bytes
    """The far overlay address."""
    protocol: int
    port: int
    """Destination port; 0 for ICMP."""
    reason: Reason
    rule_id: int | None
    """Row that would decide; None: no row would allow it."""


class AuditRow(NamedTuple):
    """A sighting, whose, and how often."""

    tenant: str
    endpoint: str
    sighting: Sighting
    packets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRows:
    """One hand-over."""

    rows: tuple[AuditRow, ...]
    uncounted: int
    """First packets for which there was no row."""


class AuditBook:
    """Adds up. One thread only."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], dict[Sighting, int]] = {}
        """(tenant, endpoint) -> what was seen; the longest waiting first."""
        self._uncounted = 0
        self._next_s = 0.0

    def note(self, tenant: str, endpoint: str, sighting: Sighting) -> None:
        """Count one first packet."""
        counts = self._counts.get((tenant, endpoint))
        if counts is None:
            counts = self._counts[tenant, endpoint] = {}
        if sighting in counts:
            counts[sighting] += 1
        elif len(counts) < ENDPOINT_ROWS:
            counts[sighting] = 1
        else:
            self._uncounted += 1

    def take(self, now_s: float) -> AuditRows | None:
        """Return rows of the endpoints that wait longest; None when there are none, or it is too early."""
        if now_s < self._next_s or not (self._counts or self._uncounted):
            return None
        self._next_s = now_s + INTERVAL_S
        return self._cut()

    def close(self) -> AuditRows | None:
        """Return what is left, whatever the time, and begin anew: row numbers are about to mean something else."""
        if not (self._counts or self._uncounted):
            return None
        taken = self._cut()
        rest = sum(sum(counts.values()) for counts in self._counts.values())
        self._counts, self._uncounted = {}, 0
        return AuditRows(rows=taken.rows, uncounted=taken.uncounted + rest)

    def _cut(self) -> AuditRows:
        rows: list[AuditRow] = []
        while self._counts:
            who = next(iter(self._counts))
            if len(rows) + len(self._counts[who]) > ROWS_LIMIT:
                break
            rows += [AuditRow(*who, sighting, count) for sighting, count in self._counts.pop(who).items()]
        uncounted, self._uncounted = self._uncounted, 0
        return AuditRows(rows=tuple(rows), uncounted=uncounted)
