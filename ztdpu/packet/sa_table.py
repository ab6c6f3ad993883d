"""The SAs of one worker: which SPI opens, which key seals, and when each one ends.

Receiving SAs walk the table of states below (protocols.md 4); sending SAs only age. Driven by
`packet.pipeline`, which passes `now_s` (CLOCK_BOOTTIME). Never derives or draws a key itself and never
decides about leases: whoever drives it says `clear`.

| receiving SA | event | next |
|---|---|---|
| -        | `offer` (the peer asked)                      | OFFERED, opens packets, deleted after 30 s |
| OFFERED  | `activate`: first authentic packet or confirmation | ACTIVE; the older SA of the same line: DRAINING |
| DRAINING | 5 s after the switch (`expire`)                | deleted |
| any      | `remove_peer`, `keep_only`, `retire_slot`, `clear` | deleted at once |

A *line* is (peer, network, use, lane): at most one SA of a line is ACTIVE. SAs of a line are numbered in
the order they were offered, so a late packet under an older SA never revives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from ztdpu.model.sa import (
    DRAIN_S,
    HARD_LIMIT_OCTETS,
    HARD_LIMIT_PACKETS,
    OFFER_TTL_S,
    SOFT_LIMIT_OCTETS,
    SOFT_LIMIT_PACKETS,
    SOFT_LIMIT_S,
    SaEnd,
    SaUse,
)
from ztdpu.psp import SaKey
from ztdpu.psp.replay import ReplayWindow

KEYS_SEEN_LIMIT: Final = 65_536
"""Keys remembered of one peer: seven years of hourly keys of one network. Beyond it the peer gets a refusal, and no
other peer does, until the worker starts anew."""


class SaState(StrEnum):
    """State of a receiving SA."""

    OFFERED = "OFFERED"
    ACTIVE = "ACTIVE"
    DRAINING = "DRAINING"


class Line(NamedTuple):
    """What at most one ACTIVE SA serves."""

    peer: str
    network_id: bytes
    use: SaUse
    lane: int


@dataclass(slots=True, kw_only=True)
class ReceiveSa:
    """An SA whose SPI we gave out. Mutable: counters and state."""

    line: Line
    key: SaKey
    order: int
    """Rises with every offer of this worker."""
    offered_s: float
    window: ReplayWindow
    state: SaState = SaState.OFFERED
    switched_s: float = 0.0
    """When it began to drain."""
    packets: int = 0
    octets: int = 0


@dataclass(slots=True, kw_only=True)
class SendSa:
    """An SA that a peer gave us. Mutable: IV and counters."""

    line: Line
    key: SaKey
    installed_s: float
    soft_limit_s: float
    """Absolute: from here on a successor is wanted."""
    soft_limit_octets: int
    fingerprint: bytes
    """SHA-256 of the key."""
    next_iv: int = 1
    octets: int = 0

    @property
    def packets(self) -> int:
        """Sealed so far."""
        return self.next_iv - 1

    def is_worn(self, now_s: float) -> bool:
        """Whether a successor should be asked for."""
        return self.octets >= self.soft_limit_octets or self.next_iv > SOFT_LIMIT_PACKETS or now_s >= self.soft_limit_s

    def is_exhausted(self, packets: int, octets: int) -> bool:
        """Whether sealing `packets` more with `octets` octets would pass a hard limit."""
        return self.octets + octets > HARD_LIMIT_OCTETS or self.next_iv + packets > HARD_LIMIT_PACKETS


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """A receiving SA that ended."""

    line: Line
    spi: int
    cause: SaEnd


@dataclass(slots=True)
class SaTable:
    """All SAs of one worker."""

    receive: dict[int, ReceiveSa] = field(default_factory=dict)
    """By SPI: the one look-up before anything is derived or opened."""
    send: dict[Line, SendSa] = field(default_factory=dict)
    datagram_senders: dict[tuple[str, bytes], SendSa] = field(default_factory=dict)
    """The same, as the packet path asks: datagram SAs of lane 0 by (peer, network)."""
    _active: dict[Line, ReceiveSa] = field(default_factory=dict)
    _offers: int = 0
    _keys_seen: dict[str, set[bytes]] = field(default_factory=dict)
    """By peer, fingerprints of all sending keys since the worker started: one installed again would restart its IVs."""

    def offer(self, line: Line, key: SaKey, now_s: float) -> ReceiveSa:
        """Add an SA that the peer may use from now on."""
        self._offers += 1
        sa = ReceiveSa(line=line, key=key, order=self._offers, offered_s=now_s, window=ReplayWindow())
        self.receive[key.spi] = sa
        return sa

    def activate(self, sa: ReceiveSa, now_s: float) -> None:
        """The peer uses it (or said it will). Idempotent; an SA older than the ACTIVE one drains instead."""
        if sa.state is not SaState.OFFERED:
            return
        current = self._active.get(sa.line)
        if current is not None and current.order > sa.order:
            self._drain(sa, now_s)
            return
        if current is not None:
            self._drain(current, now_s)
        sa.state = SaState.ACTIVE
        self._active[sa.line] = sa

    def _drain(self, sa: ReceiveSa, now_s: float) -> None:
        sa.state = SaState.DRAINING
        sa.switched_s = now_s

    def install(
        self, line: Line, key: SaKey, *, fingerprint: bytes, ttl_s: float, soft_limit_octets: int, now_s: float
    ) -> SendSa | None:
        """Seal with `key` from now on. None (refused) for a key that this peer gave before, or one too many."""
        seen = self._keys_seen.setdefault(line.peer, set())
        if fingerprint in seen or len(seen) >= KEYS_SEEN_LIMIT:
            return None
        seen.add(fingerprint)
        sa = SendSa(
            line=line,
            key=key,
            installed_s=now_s,
            soft_limit_s=now_s + min(max(ttl_s, 1), SOFT_LIMIT_S),
            soft_limit_octets=min(max(soft_limit_octets, 1), SOFT_LIMIT_OCTETS),
            fingerprint=fingerprint,
        )
        self.send[line] = sa
        self._index_senders()
        return sa

    def expire(self, now_s: float) -> list[Deletion]:
        """Delete unanswered offers and drained SAs."""
        return [
            *self._delete(
                lambda sa: sa.state is SaState.OFFERED and now_s - sa.offered_s >= OFFER_TTL_S, SaEnd.OFFER_UNANSWERED
            ),
            *self._delete(lambda sa: sa.state is SaState.DRAINING and now_s - sa.switched_s >= DRAIN_S, SaEnd.DRAINED),
        ]

    def remove_peer(self, peer: str, networks: Iterable[bytes] = ()) -> list[Deletion]:
        """Delete both directions with `peer` at once; where networks are named, of these alone."""
        chosen = frozenset(networks)
        return self._remove(lambda line: line.peer == peer and (not chosen or line.network_id in chosen))

    def remove_networks(self, networks: frozenset[bytes]) -> list[Deletion]:
        """Delete both directions of these networks, with every peer, at once."""
        return self._remove(lambda line: line.network_id in networks)

    def _remove(self, ends: Callable[[Line], bool]) -> list[Deletion]:
        self.send = {line: sa for line, sa in self.send.items() if not ends(line)}
        self._index_senders()
        return self._delete(lambda sa: ends(sa.line), SaEnd.PEER_REMOVED)

    def keep_only(self, peers: Iterable[str], networks: Iterable[bytes]) -> list[Deletion]:
        """Delete what belongs to a peer or network that new tables no longer name."""
        peer_set, network_set = frozenset(peers), frozenset(networks)

        def is_gone(line: Line) -> bool:
            return line.peer not in peer_set or line.network_id not in network_set

        self.send = {line: sa for line, sa in self.send.items() if not is_gone(line)}
        self._index_senders()
        return self._delete(lambda sa: is_gone(sa.line), SaEnd.NETWORK_GONE)

    def laggards(self, slot: int) -> list[Line]:
        """Lines whose ACTIVE SA still stands on master key `slot` (0 or 1)."""
        return [line for line, sa in self._active.items() if sa.key.spi >> 31 == slot]

    def has_slot(self, slot: int) -> bool:
        """Whether any receiving SA stands on master key `slot`."""
        return any(spi >> 31 == slot for spi in self.receive)

    def retire_slot(self, slot: int) -> list[Deletion]:
        """The master key of `slot` dies: delete everything under it."""
        return self._delete(lambda sa: sa.key.spi >> 31 == slot, SaEnd.MASTER_KEY_RETIRED)

    def clear(self, cause: SaEnd) -> list[Deletion]:
        """Delete everything, both directions."""
        self.send = {}
        self._index_senders()
        return self._delete(lambda _: True, cause)

    def _index_senders(self) -> None:
        self.datagram_senders = {
            (line.peer, line.network_id): sa
            for line, sa in self.send.items()
            if line.use is SaUse.DATAGRAM and line.lane == 0
        }

    def _delete(self, ends: Callable[[ReceiveSa], bool], cause: SaEnd) -> list[Deletion]:
        gone = [sa for sa in self.receive.values() if ends(sa)]
        for sa in gone:
            del self.receive[sa.key.spi]
            if self._active.get(sa.line) is sa:
                del self._active[sa.line]
        return [Deletion(line=sa.line, spi=sa.key.spi, cause=cause) for sa in gone]
