"""Why a new flow would pass or not: the same bytes and the same matcher as the worker's.

Compiles the tables of the two devices, decodes them again and asks `packet.rules` in the order of the
packet path: route at the source's device, egress rules of the source, ingress rules of the destination.
Pure. Called by `ztdpu policy explain` and by control.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from ztdpu.errors import Location, UsageError
from ztdpu.model.endpoint import Endpoint
from ztdpu.model.flow import Direction, Protocol
from ztdpu.model.tenant import Network
from ztdpu.model.verdict import Reason, Verdict
from ztdpu.packet.rules import RuleIndex
from ztdpu.packet.tables import DeviceTables, EndpointTable, Rule, decode_tables
from ztdpu.policy.cluster import Cluster
from ztdpu.policy.compile import CompiledTables, compile_tables

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One station of the path and what it said."""

    station: str
    """`route`, `egress` or `ingress`."""
    device: str
    verdict: Verdict
    reason: Reason
    text: str
    """For people."""
    where: Location | None = None
    """The policy line that decided, if one did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The answer, station by station; the first that drops ends it."""

    source: str
    destination: str
    protocol: str
    port: int
    verdict: Verdict
    reason: Reason
    steps: tuple[Step, ...]


def parse_port(text: str) -> tuple[Protocol, int]:
    """Read `22/tcp`, `53/udp` or `icmp`; raises UsageError."""
    number, _, word = text.rpartition("/")
    name = word.upper() or "TCP"
    if name == "ICMP" and not number:
        return Protocol.ICMP, 0
    if name in ("TCP", "UDP") and number.isdigit() and 1 <= int(number) <= 65535:
        return Protocol[name], int(number)
    raise UsageError(f"{text!r} is no port", remedy="write 22/tcp, 53/udp or icmp")


def assumed_networks(cluster: Cluster) -> dict[str, Network]:
    """Networks for questions asked without a roster: their ids decide nothing, they only have to differ.

    Revisions of tables made with them are nobody's: ids are part of what is hashed.
    """
    return {
        tenant: Network(tenant=tenant, network_id=hashlib.sha256(tenant.encode()).digest()[:16], generation=1)
        for tenant in cluster.tenants
    }


def explain(
    cluster: Cluster,
    *,
    source: str,
    destination: str,
    protocol: Protocol,
    port: int,
    networks: Mapping[str, Network] | None = None,
) -> Explanation:
    """Say what happens to a new flow from endpoint `source` to `destination`, an endpoint or an overlay address.

    Raises NotFoundError for an unknown endpoint, UsageError for an address family that the source lacks.
    """
    sender = cluster.endpoint(source)
    known = networks or assumed_networks(cluster)
    target, address, own = _target(cluster, sender, destination)
    if address.version == 6 and protocol is Protocol.ICMP:
        protocol = Protocol.ICMPV6
    walk = _Walk(cluster, known, sender, own, address, protocol, port)
    walk.route(target)
    walk.rules(sender, Direction.EGRESS, address.packed)
    if walk.receiver is not None:
        walk.rules(walk.receiver, Direction.INGRESS, own.packed)
    last = walk.steps[-1]
    return Explanation(
        source=source,
        destination=destination,
        protocol=protocol.name.lower(),
        port=port,
        verdict=last.verdict,
        reason=last.reason,
        steps=tuple(walk.steps),
    )


def _target(cluster: Cluster, sender: Endpoint, destination: str) -> tuple[Endpoint | None, IpAddress, IpAddress]:
    """(endpoint if one was named, address asked for, the sender's address of that family)."""
    target = None
    try:
        wanted = [ipaddress.ip_address(destination)]
    except ValueError:
        target = cluster.endpoint(destination)
        wanted = list(target.addresses)
    for address in wanted:
        for own in sender.addresses:
            if own.version == address.version:
                return target, address, own
    raise UsageError(
        f"{sender.name} has no address of the same family as {destination}", remedy="ask for another address"
    )


class _Walk:
    """Goes from station to station until one drops."""

    def __init__(
        self,
        cluster: Cluster,
        networks: Mapping[str, Network],
        sender: Endpoint,
        own: IpAddress,
        address: IpAddress,
        protocol: Protocol,
        port: int,
    ) -> None:
        self._cluster = cluster
        self._networks = networks
        self._sender = sender
        self._own = own
        self._address = address
        self._protocol = protocol
        self._port = port
        self._compiled: dict[str, tuple[CompiledTables, DeviceTables]] = {}
        self.receiver: Endpoint | None = None
        self.steps: list[Step] = []

    @property
    def _ended(self) -> bool:
        return bool(self.steps) and self.steps[-1].verdict is Verdict.DROP

    def _tables(self, device: str) -> tuple[CompiledTables, DeviceTables]:
        if device not in self._compiled:
            compiled = compile_tables(self._cluster, device, self._networks)
            self._compiled[device] = compiled, decode_tables(compiled.blob)
        return self._compiled[device]

    def route(self, target: Endpoint | None) -> None:
        """Who has that address in the sender's own network? Other networks do not exist from here."""
        _, tables = self._tables(self._sender.device)
        network = next(n for n in tables.networks if n.tenant == self._sender.tenant)
        route = next((r for r in network.routes if r.address == self._address.packed), None)
        holder = None if route is None else self._endpoint_by_id(route.endpoint_id)
        if target is not None and (holder is None or holder.name != target.name):
            meaning = f"there, {self._address} is {holder.name}" if holder else f"there, nobody has {self._address}"
            text = f"{target.name} is not in {self._sender.tenant}'s network; {meaning}"
            self._add("route", Verdict.DROP, Reason.NO_ROUTE, text)
        elif holder is None:
            text = f"nobody in {self._sender.tenant}'s network has {self._address}"
            self._add("route", Verdict.DROP, Reason.NO_ROUTE, text)
        else:
            self.receiver = holder
            text = f"{self._address} is {holder.name} on {holder.device}"
            self._add("route", Verdict.ALLOW, Reason.RULE_ALLOWED, text)

    def rules(self, endpoint: Endpoint, direction: Direction, peer: bytes) -> None:
        """Ask the matcher for one endpoint and direction."""
        if self._ended:
            return
        compiled, tables = self._tables(endpoint.device)
        table = next(t for t in tables.endpoints if t.endpoint_id == endpoint.endpoint_id)
        rule = RuleIndex(table.rules).match(direction, peer, self._protocol, self._port)
        station = direction.value
        if rule is None:
            text = f"no {station} rule of {endpoint.name} allows it{self._nearest(table, direction, peer)}"
            self._add(station, Verdict.DROP, Reason.NO_RULE, text, device=endpoint.device)
            return
        reason = Reason.RULE_DENIED if rule.verdict is Verdict.DROP else Reason.RULE_ALLOWED
        where = compiled.sources[rule.rule_id]
        text = f"row {rule.rule_id} of {endpoint.name}"
        self._add(station, rule.verdict, reason, text, device=endpoint.device, where=where)

    def _nearest(self, table: EndpointTable, direction: Direction, peer: bytes) -> str:
        """Name the row that comes nearest: the right peer with other ports, else the right ports with other peers."""
        compiled, _ = self._tables(self._device_of(table))
        rows = [row for row in table.rules if row.direction is direction and row.verdict is Verdict.ALLOW]
        same_peer = [row for row in rows if RuleIndex([_any_port(row)]).match(direction, peer, row.protocol, 0)]
        if same_peer:
            row = same_peer[0]
            where = compiled.sources[row.rule_id]
            return f"; nearest is {where}, which allows {_ports(same_peer, row)}"
        return f"; nearest is {compiled.sources[rows[0].rule_id]}, for other peers" if rows else ""

    def _device_of(self, table: EndpointTable) -> str:
        return self._cluster.endpoint(table.name).device

    def _endpoint_by_id(self, endpoint_id: bytes) -> Endpoint | None:
        return next((e for e in self._cluster.endpoints.values() if e.endpoint_id == endpoint_id), None)

    def _add(
        self,
        station: str,
        verdict: Verdict,
        reason: Reason,
        text: str,
        *,
        device: str = "",
        where: Location | None = None,
    ) -> None:
        step = Step(
            station=station,
            device=device or self._sender.device,
            verdict=verdict,
            reason=reason,
            text=text,
            where=where,
        )
        self.steps.append(step)


def _any_port(row: Rule) -> Rule:
    return Rule(
        rule_id=row.rule_id,
        direction=row.direction,
        verdict=row.verdict,
        protocol=row.protocol,
        port_first=0,
        port_last=65535,
        peers=row.peers,
        excepted=row.excepted,
    )


def _ports(same_peer: list[Rule], first: Rule) -> str:
    """What the rows of that one policy line allow this peer."""
    words = []
    for row in same_peer:
        name = Protocol(row.protocol).name.lower()
        span = "" if (row.port_first, row.port_last) == (0, 65535) else f"{row.port_first}-{row.port_last}/"
        words.append(f"{span}{name}")
    return ", ".join(dict.fromkeys(words)) if words else Protocol(first.protocol).name.lower()
