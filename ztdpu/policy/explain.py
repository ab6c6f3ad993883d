"""Why a new flow would pass or not: the same bytes and the same matcher as the worker's.

Compiles the tables of the two devices, decodes them again and asks `packet.fence` in the order of the packet path:
is there a way from the source, egress rules of the source, ingress rules of the destination.
Pure. Called by `ztdpu policy explain`, by `policy.tests` and by the lab.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ztdpu.errors import Location, UsageError
from ztdpu.model.endpoint import Endpoint
from ztdpu.model.flow import Direction, Protocol
from ztdpu.model.tenant import Network
from ztdpu.model.verdict import Outcome, Reason, Verdict
from ztdpu.packet.fence import Fence
from ztdpu.packet.rules import RuleIndex
from ztdpu.packet.tables import DeviceTables, EndpointTable, decode_tables, encode_tables
from ztdpu.packet.ways import Way, Ways
from ztdpu.policy.cluster import Cluster
from ztdpu.policy.compile import Compiler, assumed_networks
from ztdpu.policy.nearest import find_nearest
from ztdpu.policy.rows import Origin
from ztdpu.policy.startup import UNDERLAY_MTU_OCTETS

__all__ = ["Explainer", "Explanation", "Step", "assumed_networks", "explain", "named_ports", "parse_port"]

PORT_LIMIT: Final = 65535

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
    rule: str = ""
    """The policy and the rule of it that decided."""
    nearest: Location | None = None
    """Of a drop: the line that comes nearest to allowing it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The answer, station by station; the first that drops ends it."""

    source: str
    destination: str
    protocol: str
    port: int
    verdict: Verdict
    """AUDIT: passes, and would not if policies in audit mode were enforced."""
    reason: Reason
    steps: tuple[Step, ...]


def parse_port(text: str, named: Mapping[tuple[str, str], int] | None = None) -> tuple[Protocol, int]:
    """Read `22/tcp`, `53/udp`, `icmp`, or a name of `named` as `nfs` or `nfs/tcp`; raises UsageError."""
    number, slash, word = text.rpartition("/")
    name = word.upper() or "TCP"
    if name == "ICMP" and not slash:
        return Protocol.ICMP, 0
    if name in ("TCP", "UDP") and number.isascii() and number.isdigit():
        if 1 <= int(number) <= PORT_LIMIT:
            return Protocol[name], int(number)
        raise UsageError(f"{text!r} is no port", remedy=f"ports are 1 to {PORT_LIMIT}, as in 22/tcp")
    for (port_name, protocol), port in sorted((named or {}).items()):
        if text.lower() in (port_name, f"{port_name}/{protocol.lower()}"):
            return Protocol[protocol], port
    names = ", ".join(f"{port_name}/{protocol.lower()}" for port_name, protocol in sorted(named or {}))
    raise UsageError(
        f"{text!r} is no port",
        remedy=f"write 22/tcp, 53/udp, icmp{f', or a name of the destination: {names}' if names else ''}",
    )


def named_ports(cluster: Cluster, destination: str) -> Mapping[tuple[str, str], int]:
    """Ports that have names at an endpoint; of an address those that mean one number on every endpoint with it."""
    if destination in cluster.endpoints:
        return cluster.endpoints[destination].ports
    holders = [one for one in cluster.endpoints.values() if destination in map(str, one.addresses)]
    if not holders:
        return {}
    return dict(set.intersection(*(set(one.ports.items()) for one in holders)))


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
    return Explainer(cluster, networks).explain(source=source, destination=destination, protocol=protocol, port=port)


class Explainer:
    """Answers many questions about one cluster; a device is compiled at most once."""

    def __init__(
        self,
        cluster: Cluster,
        networks: Mapping[str, Network] | None = None,
        *,
        underlay_mtu_octets: int = UNDERLAY_MTU_OCTETS,
    ) -> None:
        """`networks` are those of the roster, where there is one."""
        self._cluster = cluster
        known = networks or assumed_networks(cluster)
        self.compiler = Compiler(cluster, known, underlay_mtu_octets=underlay_mtu_octets)
        self._devices: dict[str, tuple[DeviceTables, Ways, dict[int, Origin]]] = {}
        self._fences: dict[str, Fence] = {}
        self._by_id = {endpoint.endpoint_id: endpoint for endpoint in cluster.endpoints.values()}

    def explain(self, *, source: str, destination: str, protocol: Protocol, port: int) -> Explanation:
        """As the function of that name."""
        sender = self._cluster.endpoint(source)
        target, address, own = _target(self._cluster, sender, destination)
        if address.version == 6 and protocol is Protocol.ICMP:
            protocol = Protocol.ICMPV6
        steps = [self._route(sender, target, address, own)]
        if steps[0].verdict is not Verdict.DROP:
            steps.append(self._judge(sender, Direction.EGRESS, address, protocol, port))
        elif target is None and steps[0].reason is Reason.NO_ROUTE:
            # The fence asks its rules before it looks for a way: what they drop is counted as theirs.
            egress = self._judge(sender, Direction.EGRESS, address, protocol, port)
            steps = [*steps, egress] if egress.verdict is Verdict.DROP else [egress, *steps]
        if steps[-1].verdict is not Verdict.DROP:
            holder = self._by_id[self._fence(sender).ways[address.packed].endpoint_id]
            steps.append(self._judge(holder, Direction.INGRESS, own, protocol, port))
        last = steps[-1]
        if last.verdict is not Verdict.DROP:
            last = next((step for step in steps if step.verdict is Verdict.AUDIT), last)
        return Explanation(
            source=source,
            destination=destination,
            protocol=protocol.name.lower(),
            port=port,
            verdict=last.verdict,
            reason=last.reason,
            steps=tuple(steps),
        )

    def _route(self, sender: Endpoint, target: Endpoint | None, address: IpAddress, own: IpAddress) -> Step:
        """Who has that address, as the sender sees it? What is not in its networks does not exist from there."""
        way = self._fence(sender).ways.get(address.packed)
        holder = None if way is None else self._by_id[way.endpoint_id]
        allowed, reason = False, Reason.NO_ROUTE
        if target is not None and (holder is None or holder.name != target.name):
            meaning = f"there, {address} is {holder.name}" if holder else f"there, nobody has {address}"
            text = f"{target.name} is not in {sender.tenant}'s network{self._missing_link(sender, target)}; {meaning}"
        elif address == own:
            reason, text = Reason.MARTIAN, f"{address} is {sender.name} itself"
        elif holder is None or way is None:
            text = f"nobody in {sender.tenant}'s network has {address}"
        else:
            allowed, text = True, f"{address} is {holder.name} on {holder.device}{self._through(sender, way)}"
        return Step(
            station="route",
            device=sender.device,
            verdict=Verdict.ALLOW if allowed else Verdict.DROP,
            reason=Reason.RULE_ALLOWED if allowed else reason,
            text=text,
        )

    def _through(self, sender: Endpoint, way: Way) -> str:
        tables, _, _ = self._device(sender.device)
        network = next(one for one in tables.networks if one.network_id == way.network_id)
        return "" if network.tenant == sender.tenant else f", through Peering {network.tenant}"

    def _missing_link(self, sender: Endpoint, target: Endpoint) -> str:
        """Between the two tenants there may be a Peering that leaves one of the two endpoints out."""
        for name, sides in self.compiler.topology.members.items():
            if {sender.tenant, target.tenant} == set(sides):
                out = [one.name for one in (sender, target) if one not in sides[one.tenant]]
                return f" and Peering {name} does not select {' and '.join(out)}"
        return ""

    def _judge(self, endpoint: Endpoint, direction: Direction, peer: IpAddress, protocol: Protocol, port: int) -> Step:
        """Ask the endpoint's fence in one direction."""
        fence = self._fence(endpoint)
        _, _, origins = self._device(endpoint.device)
        outcome = fence.judge(direction, peer.packed, protocol, port)
        origin = None if outcome.rule_id is None else origins[outcome.rule_id]
        found = None
        if outcome.verdict is Verdict.DROP:
            found = find_nearest(fence.table, origins, direction, peer.packed, protocol, port)
        return Step(
            station=direction.value,
            device=endpoint.device,
            verdict=outcome.verdict,
            reason=outcome.reason,
            text=_say(fence.table, direction, outcome, origin) + (f"; {found[1]}" if found else ""),
            where=None if origin is None else origin.where,
            rule="" if origin is None else str(origin),
            nearest=found[0] if found else None,
        )

    def _fence(self, endpoint: Endpoint) -> Fence:
        if endpoint.name not in self._fences:
            tables, ways, _ = self._device(endpoint.device)
            table = next(one for one in tables.endpoints if one.endpoint_id == endpoint.endpoint_id)
            self._fences[endpoint.name] = Fence(
                table,
                next(one for one in tables.networks if one.network_id == table.network_id),
                ways.of(table.network_id, table.peerings),
                RuleIndex(table.rules),
                None if table.audit_rules is None else RuleIndex(table.audit_rules),
            )
        return self._fences[endpoint.name]

    def _device(self, device: str) -> tuple[DeviceTables, Ways, dict[int, Origin]]:
        if device not in self._devices:
            made, origins = self.compiler.tables(device)
            tables = decode_tables(encode_tables(made))
            self._devices[device] = tables, Ways(tables), origins
        return self._devices[device]


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


def _say(table: EndpointTable, direction: Direction, outcome: Outcome, origin: Origin | None) -> str:
    who = f"{direction.value} of {table.name}"
    match outcome.reason:
        case Reason.NO_RULE:
            return f"no {direction.value} rule of {table.name} allows it"
        case Reason.AUDIT_WOULD_DROP:
            return f"allowed; in audit mode it would be dropped at {who} ({origin or 'no rule would allow it'})"
        case Reason.AUDIT_WOULD_ALLOW:
            return f"dropped; in audit mode it would be allowed at {who} ({origin})"
        case Reason.RULE_DENIED:
            return f"denied by {origin}, row {outcome.rule_id} of {table.name}"
    return f"{origin}, row {outcome.rule_id} of {table.name}"
