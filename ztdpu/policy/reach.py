"""What can reach what, as sets of ports: interval reasoning over compiled tables.

`World` is made of the tables of all devices and of nothing else, so what it says is about what is enforced. A flow
from one address to another takes the way of the packet path: a way from the sender, the sender's egress rows, the
endpoint that the receiving device has at that address in that network, a way back, the receiver's ingress rows. The
tests hold it against `packet.firewall` with real packets.

Used by `policy.tests`, `policy.diff` and `policy.prove`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from itertools import groupby
from typing import Final, NamedTuple

from ztdpu.errors import TablesError
from ztdpu.model.flow import Direction, Protocol
from ztdpu.model.verdict import Verdict
from ztdpu.packet.consistency import check_tables
from ztdpu.packet.tables import DeviceTables, EndpointTable, Rule
from ztdpu.packet.ways import Way, Ways
from ztdpu.policy.cluster import Cluster
from ztdpu.policy.compile import Compiler, assumed_networks
from ztdpu.policy.intervals import ALL_PORTS, Range, Ranges, intersect, merge, subtract

PROTOCOLS: Final = {
    4: (Protocol.TCP, Protocol.UDP, Protocol.ICMP),
    16: (Protocol.TCP, Protocol.UDP, Protocol.ICMPV6),
}
"""What passes `packet.headers`, by octets of an address."""
NO_PORT: Final[Ranges] = ((0, 0),)
"""The "ports" of ICMP."""


class Flow(NamedTuple):
    """What one endpoint may open to another, between two addresses."""

    source: str
    destination: str
    source_address: bytes
    destination_address: bytes
    protocol: Protocol
    ports: Ranges
    """Destination ports; `NO_PORT` for ICMP."""
    network_id: bytes

    def describe_addresses(self) -> str:
        """Both addresses as text."""
        return f"{ip_address(self.source_address)} -> {ip_address(self.destination_address)}"


@dataclass(slots=True, kw_only=True)
class Place:
    """An endpoint as its own device's tables have it."""

    table: EndpointTable
    device: str
    tenant: str
    ways: dict[bytes, Way]
    sweep: Sweep = field(repr=False)

    @property
    def name(self) -> str:
        """The endpoint's."""
        return self.table.name


class World:
    """All devices."""

    def __init__(self, devices: Iterable[DeviceTables]) -> None:
        """Raise TablesError when two devices claim one endpoint: one of the two would not be looked at."""
        self.places: dict[str, Place] = {}
        """By name of endpoint."""
        self.network_names: dict[bytes, set[str]] = {}
        """Network id -> tenant or Peering, by all devices; more than one is a fault of whoever made the tables."""
        self._owners: dict[tuple[str, bytes, bytes], Place] = {}
        for tables in devices:
            ways = Ways(tables)
            names = {network.network_id: network.tenant for network in tables.networks}
            for network_id, name in names.items():
                self.network_names.setdefault(network_id, set()).add(name)
            for table in tables.endpoints:
                if table.name in self.places:
                    there = self.places[table.name].device
                    raise TablesError(f"endpoint {table.name} is on {there} and on {tables.device}")
                place = Place(
                    table=table,
                    device=tables.device,
                    tenant=names[table.network_id],
                    ways=ways.of(table.network_id, table.peerings),
                    sweep=Sweep(table.rules),
                )
                self.places[table.name] = place
                for network_id in (table.network_id, *table.peerings):
                    for address in table.addresses:
                        self._owners[tables.device, network_id, address] = place

    def flows_from(self, source: Place) -> Iterator[Flow]:
        """Yield everything that an endpoint may open to others; nothing for what it may not."""
        for own in source.table.addresses:
            for way in source.ways.values():
                if len(way.address) == len(own):
                    yield from self._flows(source, own, way)

    def flows_between(self, source: Place, destination: Place) -> Iterator[Flow]:
        """Yield what `source` may open to `destination`."""
        for own in source.table.addresses:
            for address in destination.table.addresses:
                way = source.ways.get(address) if len(address) == len(own) else None
                if way is not None and self.owner(way) is destination:
                    yield from self._flows(source, own, way)

    def owner(self, way: Way) -> Place | None:
        """Return whom a packet reaches that takes this way."""
        return self._owners.get((way.device, way.network_id, way.address))

    def _flows(self, source: Place, own: bytes, way: Way) -> Iterator[Flow]:
        target = self.owner(way)
        if target is None or target is source:
            return
        back = target.ways.get(own)
        if back is None or (back.device, back.network_id) != (source.device, way.network_id):
            return
        for protocol in PROTOCOLS[len(own)]:
            ports = source.sweep.allowed(Direction.EGRESS, way.address, protocol)
            if ports:
                ports = intersect(ports, target.sweep.allowed(Direction.INGRESS, own, protocol))
            if ports:
                yield Flow(source.name, target.name, own, way.address, protocol, ports, way.network_id)


def build_world(cluster: Cluster) -> World:
    """Compile every device of a cluster. Raises PolicyError, TablesError."""
    compiler = Compiler(cluster, assumed_networks(cluster))
    devices = []
    for device in cluster.devices:
        tables, _ = compiler.tables(device)
        check_tables(tables)
        devices.append(tables)
    return World(devices)


class Sweep:
    """The rows of one endpoint, asked for all ports at once."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._hosts: dict[tuple[Direction, bytes], list[int]] = {}
        self._blocks: dict[Direction, list[tuple[int, int, int, int]]] = {}
        """Direction -> (order, octets, right shift, shifted address)."""
        for order, rule in enumerate(rules):
            for prefix in rule.peers:
                octets = len(prefix.address)
                if prefix.length == 8 * octets:
                    self._hosts.setdefault((rule.direction, prefix.address), []).append(order)
                else:
                    shift = 8 * octets - prefix.length
                    block = (order, octets, shift, int.from_bytes(prefix.address) >> shift)
                    self._blocks.setdefault(rule.direction, []).append(block)
        self._asked: dict[tuple[Direction, bytes], tuple[int, ...]] = {}
        self._ranges: dict[tuple[tuple[int, ...], int], Ranges] = {}
        """Peers about whom the same rows speak get the same answer."""

    def allowed(self, direction: Direction, peer: bytes, protocol: int) -> Ranges:
        """Return the ports on which the rows let flows pass, to (egress) or from (ingress) a peer."""
        orders = self._asked.get((direction, peer))
        if orders is None:
            orders = self._asked[direction, peer] = self._orders(direction, peer)
        found = self._ranges.get((orders, protocol))
        if found is None:
            rows = [self._rules[order] for order in orders if self._rules[order].protocol in (Protocol.ANY, protocol)]
            found = self._ranges[orders, protocol] = _evaluate(rows, protocol)
        return found

    def _orders(self, direction: Direction, peer: bytes) -> tuple[int, ...]:
        """Places of the rows that speak of a peer."""
        number, octets = int.from_bytes(peer), len(peer)
        orders = set(self._hosts.get((direction, peer), ()))
        for order, length, shift, value in self._blocks.get(direction, ()):
            if length == octets and number >> shift == value:
                orders.add(order)
        return tuple(
            order
            for order in sorted(orders)
            if not (self._rules[order].excepted and _spares(self._rules[order], number, octets))
        )


def _spares(row: Rule, number: int, octets: int) -> bool:
    for hole in row.excepted:
        shift = 8 * octets - hole.length
        if len(hole.address) == octets and number >> shift == int.from_bytes(hole.address) >> shift:
            return True
    return False


def _evaluate(rows: Sequence[Rule], protocol: int) -> Ranges:
    if all(row.verdict in (Verdict.ALLOW, Verdict.AUDIT) for row in rows):
        allowed = merge((row.port_first, row.port_last) for row in rows)
    else:
        allowed = _tier_by_tier(rows)
    return allowed if protocol in (Protocol.TCP, Protocol.UDP) else intersect(allowed, NO_PORT)


def _tier_by_tier(rows: Sequence[Rule]) -> Ranges:
    """First match within a tier; what no row of it decides, or a Pass hands on, goes to the next."""
    allowed: list[Range] = []
    undecided = ALL_PORTS
    for _, tier in groupby(rows, key=lambda row: row.tier):
        remaining = undecided
        handed_on: list[Range] = []
        for row in tier:
            mine = ((row.port_first, row.port_last),)
            taken = intersect(remaining, mine)
            if row.verdict is None:
                handed_on += taken
            elif row.verdict is not Verdict.DROP:
                allowed += taken
            remaining = subtract(remaining, mine)
        undecided = merge([*remaining, *handed_on])
    return merge(allowed)
