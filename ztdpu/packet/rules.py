"""The one matcher: which row of an endpoint's rules decides about a packet. The first that matches does.

`packet.firewall` asks it for every new flow and again after a swap, `policy explain` asks it for people. It
knows rows and addresses, not flows, and returns None where default deny applies.

Rows are found by tuple space search (Srinivasan, Suri, Varghese, SIGCOMM 1999): a row is filed once per pair
of address prefix and port prefix, in a dict for that pair of lengths. A question masks address and port for
each pair of lengths in use and looks once in each dict, so it costs by the number of different lengths, not of
rows. A port range becomes at most 30 port prefixes; 0 to 65535 is one of length zero.

Each tier has an index of its own. A row without verdict ("Pass") ends its tier, and the next one is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from ztdpu.model.flow import Direction
from ztdpu.packet.tables import Prefix, Rule

_PORT_BITS: Final = 16
_ANY: Final = 0


@dataclass(slots=True)
class _Entry:
    """A row under one key."""

    order: int
    """Its place among the endpoint's rows; lower decides first."""
    rule: Rule
    excepted: tuple[tuple[int, int], ...]
    """(right shift, shifted address) of the holes of this family."""

    def spares(self, address: int) -> bool:
        """Whether `address` lies in a hole, so that the row says nothing about it."""
        return any(address >> shift == value for shift, value in self.excepted)


@dataclass(slots=True)
class _Tuple:
    """All rows of one address prefix length and one port prefix length."""

    address_shift: int
    port_shift: int
    first_order: int
    """Lowest order in it: a question that already has a lower one stops here."""
    entries: dict[int, list[_Entry]] = field(default_factory=dict)


class RuleIndex:
    """The rows of one endpoint, indexed. Immutable once made."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        """`rules` are sorted by tier (`packet.consistency` sees to it)."""
        self._tiers = tuple(_TierIndex(tuple(rows)) for _, rows in groupby(rules, key=lambda rule: rule.tier))

    def match(self, direction: Direction, peer: bytes, protocol: int, port: int) -> Rule | None:
        """Return the row that decides about this peer (the far address), protocol and destination port, or None.

        `port` is 0 for protocols without ports. Rows for protocol 0 stand for every protocol.
        """
        for tier in self._tiers:
            rule = tier.match(direction, peer, protocol, port)
            if rule is not None and rule.verdict is not None:
                return rule
        return None


class _TierIndex:
    """The rows of one tier: the first that matches."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._spaces: dict[tuple[Direction, int, int], list[_Tuple]] = {}
        building: dict[tuple[Direction, int, int], dict[tuple[int, int], _Tuple]] = {}
        for order, rule in enumerate(rules):
            ports = tuple(_port_prefixes(rule.port_first, rule.port_last))
            holes = {octets: tuple(_shifted(rule.excepted, octets)) for octets in (4, 16)}
            for prefix in rule.peers:
                octets = len(prefix.address)
                space = building.setdefault((rule.direction, rule.protocol, octets), {})
                _file(space, _Entry(order, rule, holes[octets]), prefix, ports)
        for name, space in building.items():
            self._spaces[name] = sorted(space.values(), key=lambda found: found.first_order)

    def match(self, direction: Direction, peer: bytes, protocol: int, port: int) -> Rule | None:
        """Return the first row, or None."""
        octets = len(peer)
        address = int.from_bytes(peer)
        best: _Entry | None = None
        for number in (protocol, _ANY) if protocol != _ANY else (_ANY,):
            for space in self._spaces.get((direction, number, octets), ()):
                if best is not None and space.first_order > best.order:
                    break
                key = (address >> space.address_shift) << _PORT_BITS | port >> space.port_shift
                for entry in space.entries.get(key, ()):
                    if best is not None and entry.order > best.order:
                        break
                    if not entry.spares(address):
                        best = entry
                        break
        return best.rule if best else None


def _file(
    space: dict[tuple[int, int], _Tuple], entry: _Entry, prefix: Prefix, ports: Sequence[tuple[int, int]]
) -> None:
    """Put `entry` under one address prefix and each of its port prefixes."""
    address_shift = len(prefix.address) * 8 - prefix.length
    address = int.from_bytes(prefix.address) >> address_shift
    for port_shift, port in ports:
        found = space.setdefault((address_shift, port_shift), _Tuple(address_shift, port_shift, entry.order))
        filed = found.entries.setdefault(address << _PORT_BITS | port, [])
        # A row without holes decides for everything under this key: what comes after it can never be first.
        if not filed or filed[-1].excepted:
            filed.append(entry)


def _shifted(prefixes: Sequence[Prefix], octets: int) -> Iterator[tuple[int, int]]:
    for prefix in prefixes:
        if len(prefix.address) == octets:
            shift = octets * 8 - prefix.length
            yield shift, int.from_bytes(prefix.address) >> shift


def _port_prefixes(first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield (right shift, shifted port) of the fewest aligned blocks that make up `first` to `last`."""
    while first <= last:
        shift = min((first & -first).bit_length() - 1 if first else _PORT_BITS, (last - first + 1).bit_length() - 1)
        yield shift, first >> shift
        first += 1 << shift
