"""Two policies: which flows are gained, which are lost. Pure; called by `ztdpu policy diff`.

Compared is what is enforced (`policy.reach`), not what is written: a rule that changes nothing does not show.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TypeAlias

from ztdpu.model.flow import Protocol
from ztdpu.policy.intervals import Ranges, size, subtract
from ztdpu.policy.reach import World

Key: TypeAlias = tuple[str, str, bytes, bytes, Protocol]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One range of ports between two endpoints that opens or closes."""

    gained: bool
    source: str
    destination: str
    protocol: str
    """`tcp`, `udp` or `icmp`; ICMPv6 is `icmp` as well."""
    first: int
    """Destination port; 0 and 0 for ICMP."""
    last: int
    addresses: tuple[tuple[str, str], ...]
    """(of the source, of the destination): between which addresses."""

    @property
    def ports(self) -> str:
        """As it is written in tests."""
        if self.protocol == "icmp":
            return "icmp"
        if (self.first, self.last) == (0, 65535):
            return f"any/{self.protocol}"
        return f"{self.first}{f'-{self.last}' if self.last != self.first else ''}/{self.protocol}"

    @property
    def weight(self) -> int:
        """How much opens or closes."""
        return (self.last - self.first + 1) * len(self.addresses)


def diff_worlds(before: World, after: World) -> tuple[Change, ...]:
    """Return every flow gained or lost, largest first; of one size gains come first, then by name."""
    old, new = _flows(before), _flows(after)
    found: dict[tuple[bool, str, str, str, int, int], list[tuple[str, str]]] = {}
    for key in old.keys() | new.keys():
        was, now = old.get(key, ()), new.get(key, ())
        if was == now:
            continue
        source, destination, own, other, protocol = key
        word = "icmp" if protocol is Protocol.ICMPV6 else protocol.name.lower()
        for gained, ranges in ((True, subtract(now, was)), (False, subtract(was, now))):
            for first, last in ranges:
                pairs = found.setdefault((gained, source, destination, word, first, last), [])
                pairs.append((str(ip_address(own)), str(ip_address(other))))
    changes = (
        Change(
            gained=gained,
            source=source,
            destination=destination,
            protocol=word,
            first=first,
            last=last,
            addresses=tuple(sorted(pairs)),
        )
        for (gained, source, destination, word, first, last), pairs in found.items()
    )
    return tuple(sorted(changes, key=_order))


def _order(change: Change) -> tuple[object, ...]:
    rest = (change.source, change.destination, change.protocol, change.first)
    return (-change.weight, not change.gained, *rest)


def _flows(world: World) -> dict[Key, Ranges]:
    return dict(_keyed(world))


def _keyed(world: World) -> Iterator[tuple[Key, Ranges]]:
    for place in world.places.values():
        for flow in world.flows_from(place):
            assert size(flow.ports)
            key = (flow.source, flow.destination, flow.source_address, flow.destination_address, flow.protocol)
            yield key, flow.ports
