"""The fence of one device: who may talk to whom, judged where a conversation enters or leaves an endpoint.

`packet.outbound` asks `egress` for each packet that an endpoint sends; it or `packet.inbound` asks `ingress` for each
that is to reach one; a packet between two endpoints of this device passes both, in that order. A parsed packet
goes through:

 1. flow: the key is looked up among the endpoint's flows; if it is there, only the flow's state is asked,
 2. address: an endpoint sends from its own addresses, gets what is sent to them, and only from sources that exist for
    it: in its tenant's network, and as partners in its Peerings,
 3. kind: a flow begins with a TCP SYN, a UDP datagram or an echo request; an ICMP error needs a live flow,
 4. rules: the first that matches decides, default deny,
 5. route: there is one to the destination,
 6. quota: the network may have another flow.

So every live flow was allowed by the rules in force (`swap` judges them all again), has an own local address and
a route, and an established packet costs one look-up. Nothing here reads a clock, a key or a socket.
"""

from __future__ import annotations

from typing import Final

from ztdpu.model.flow import Direction
from ztdpu.model.verdict import Outcome, Reason, Verdict
from ztdpu.packet.audit_book import AUDITED, AuditBook, Sighting
from ztdpu.packet.fence import Fence
from ztdpu.packet.flows import EXPIRE_LIMIT, Flow, FlowTable, reverse_key
from ztdpu.packet.headers import ICMP, ICMPV6, SYN, TCP, Packet
from ztdpu.packet.quotes import is_error, quoted_key
from ztdpu.packet.rules import RuleIndex
from ztdpu.packet.states import STATE_FLAGS, FlowState, next_datagram_state, next_tcp_state
from ztdpu.packet.tables import DeviceTables, EndpointTable
from ztdpu.packet.ways import Ways


def _drop(reason: Reason) -> Outcome:
    return Outcome(verdict=Verdict.DROP, reason=reason)


NO_TABLES: Final = _drop(Reason.NO_TABLES)
SPOOFED_SOURCE: Final = _drop(Reason.SPOOFED_SOURCE)
FOREIGN_SOURCE: Final = _drop(Reason.FOREIGN_SOURCE)
FOREIGN_DESTINATION: Final = _drop(Reason.FOREIGN_DESTINATION)
MARTIAN: Final = _drop(Reason.MARTIAN)
TCP_STATE: Final = _drop(Reason.TCP_STATE)
ICMP_STATE: Final = _drop(Reason.ICMP_STATE)
NO_ROUTE: Final = _drop(Reason.NO_ROUTE)
FLOW_QUOTA: Final = _drop(Reason.FLOW_QUOTA)
FLOW_CUT: Final = _drop(Reason.FLOW_CUT)


class Firewall:
    """Default deny, stateful. `now_s` is any clock in seconds that never goes back; one thread only."""

    def __init__(self, tables: DeviceTables) -> None:
        self.audits = AuditBook()
        """First packets that policies in audit mode would treat otherwise."""
        self._table = FlowTable()
        self._ways = Ways(tables)
        self._fences = _build_fences(tables, self._ways, {})
        self._owners = _index_owners(tables, self._fences)

    # --- packets, hot path first ---------------------------------------------------------------

    def egress(self, endpoint_id: bytes, packet: Packet, now_s: float) -> Outcome:
        """Judge a packet that `endpoint_id` sends. When it passes, sets `packet.flow` and `packet.route`."""
        fence = self._fences.get(endpoint_id)
        if fence is None:
            return NO_TABLES
        flow = fence.flows.sent.get(packet.key)
        if flow is None:
            return self._first_sent(fence, packet, now_s)
        if packet.flags & STATE_FLAGS == flow.steady_flags:
            flow.last_s = now_s
            packet.flow = flow
            packet.route = flow.route
            return flow.outcome
        if self._advance(flow, packet, now_s, from_opener=flow.opened_here):
            return flow.outcome
        return TCP_STATE if flow.slot >= 0 else self._first_sent(fence, packet, now_s)

    def ingress(self, endpoint_id: bytes, packet: Packet, now_s: float) -> Outcome:
        """Judge a packet that is to reach `endpoint_id`. When it passes, sets `packet.flow` and `packet.route`.

        That the device which sent it hosts its source, in the network it came through, is asked before, with `admit`.
        """
        fence = self._fences.get(endpoint_id)
        if fence is None:
            return NO_TABLES
        flow = fence.flows.received.get(packet.key)
        if flow is None:
            return self._first_received(fence, packet, now_s)
        if packet.flags & STATE_FLAGS == flow.steady_flags:
            flow.last_s = now_s
            packet.flow = flow
            packet.route = flow.route
            return flow.outcome
        if self._advance(flow, packet, now_s, from_opener=not flow.opened_here):
            return flow.outcome
        return TCP_STATE if flow.slot >= 0 else self._first_received(fence, packet, now_s)

    def _advance(self, flow: Flow, packet: Packet, now_s: float, *, from_opener: bool) -> bool:
        """Move the flow's state; False when the packet does not fit, or (then the flow is gone) opens a new one."""
        if flow.protocol == TCP:
            state = next_tcp_state(flow.state, packet.flags, from_opener=from_opener)
            if state is None:
                return False
            if state is FlowState.OVER:
                self._table.remove(flow)
                return False
        else:
            state = next_datagram_state(flow.state, from_opener=from_opener)
        flow.last_s = now_s
        if state is not flow.state:
            self._table.enter(flow, state)
        packet.flow = flow
        packet.route = flow.route
        return True

    def _first_sent(self, fence: Fence, packet: Packet, now_s: float) -> Outcome:
        """A packet from the endpoint that belongs to no flow."""
        source, destination = packet.source, packet.destination
        if source not in fence.addresses:
            return SPOOFED_SOURCE
        refusal = _refuse_kind(packet)
        if refusal is not None:
            # An error answers what came in.
            return (
                _relate(fence, fence.flows.received, packet) if is_error(packet) else _explain(fence, packet, refusal)
            )
        opening = fence.judge(Direction.EGRESS, destination, packet.protocol, packet.destination_port)
        route = fence.ways.get(destination)
        if opening.reason in AUDITED and route is not None:
            self._note(fence, Direction.EGRESS, destination, packet, opening)
        if opening.verdict is Verdict.DROP:
            return opening
        if route is None:
            return NO_ROUTE
        answers = reverse_key(packet.key, packet.protocol, len(source))
        flow = Flow(
            home=fence.flows, protocol=packet.protocol, sent_key=packet.key, received_key=answers, local=source,
            remote=destination, port=packet.destination_port, opened_here=True, outcome=fence.established(opening),
            route=route, last_s=now_s,
        )  # fmt: skip
        return self._remember(fence, packet, flow, opening)

    def _first_received(self, fence: Fence, packet: Packet, now_s: float) -> Outcome:
        """A packet for the endpoint that belongs to no flow."""
        source, destination = packet.source, packet.destination
        if destination not in fence.addresses:
            return FOREIGN_DESTINATION
        route = fence.ways.get(source)
        if route is None:
            return FOREIGN_SOURCE
        refusal = _refuse_kind(packet)
        if refusal is not None:
            # An error answers what went out.
            return _relate(fence, fence.flows.sent, packet) if is_error(packet) else _explain(fence, packet, refusal)
        opening = fence.judge(Direction.INGRESS, source, packet.protocol, packet.destination_port)
        if opening.reason in AUDITED:
            self._note(fence, Direction.INGRESS, source, packet, opening)
        if opening.verdict is Verdict.DROP:
            return opening
        answers = reverse_key(packet.key, packet.protocol, len(source))
        flow = Flow(
            home=fence.flows, protocol=packet.protocol, sent_key=answers, received_key=packet.key, local=destination,
            remote=source, port=packet.destination_port, opened_here=False, outcome=fence.established(opening),
            route=route, last_s=now_s,
        )  # fmt: skip
        return self._remember(fence, packet, flow, opening)

    def _note(self, fence: Fence, direction: Direction, peer: bytes, packet: Packet, opening: Outcome) -> None:
        sighting = Sighting(direction, peer, packet.protocol, packet.destination_port, opening.reason, opening.rule_id)
        self.audits.note(fence.network.tenant, fence.table.name, sighting)

    def _remember(self, fence: Fence, packet: Packet, flow: Flow, opening: Outcome) -> Outcome:
        if not self._table.add(flow, quota=fence.network.flow_quota, now_s=flow.last_s):
            return FLOW_QUOTA
        packet.flow = flow
        packet.route = flow.route
        return opening

    # --- look-ups ------------------------------------------------------------------------------

    @property
    def flow_count(self) -> int:
        """Live flows; a conversation between two endpoints of this device counts twice."""
        return self._table.count

    def endpoint(self, endpoint_id: bytes) -> EndpointTable | None:
        """Return the own endpoint of this id."""
        fence = self._fences.get(endpoint_id)
        return fence.table if fence else None

    def admit(self, network_id: bytes, packet: Packet, device: str) -> EndpointTable | Reason:
        """Return the own endpoint that a packet is for, which `device` sent through `network_id`, or why it is refused.

        The device must host the source, and the source must exist for the endpoint in this very network.
        """
        fence = self._owners.get((network_id, packet.destination))
        if fence is None:
            is_hosted = self._ways.hosts(network_id, packet.source, device)
            return Reason.FOREIGN_DESTINATION if is_hosted else Reason.FOREIGN_SOURCE
        way = fence.ways.get(packet.source)
        if way is None or way.device != device or way.network_id != network_id:
            return Reason.FOREIGN_SOURCE
        return fence.table

    # --- changes -------------------------------------------------------------------------------

    def swap(self, tables: DeviceTables, now_s: float) -> int:
        """Enforce `tables` from here on; returns how many live flows were cut because they no longer allow them.

        A flow goes on when its endpoint, its network (same generation), its local address and the endpoint behind
        its remote address are still there and the new rules allow its opening packet. All or nothing: an exception
        leaves the old tables in force.
        """
        self._table.expire(now_s)
        ways = Ways(tables)
        fences = _build_fences(tables, ways, self._fences)
        cut = 0
        for endpoint_id, old in self._fences.items():
            new = fences.get(endpoint_id)
            if new is not None and not _is_same_place(old, new):
                new = None
            for flow in old.flows:
                if new is None or not _carry(flow, new):
                    self._table.cut(flow)
                    cut += 1
            if new is not None:
                new.flows = old.flows
        self._ways, self._fences, self._owners = ways, fences, _index_owners(tables, fences)
        return cut

    def cut_device(self, device: str) -> int:
        """Cut every flow whose remote address lives on `device`; returns how many."""
        doomed = [flow for fence in self._fences.values() for flow in fence.flows if flow.route.device == device]
        return self._cut(doomed)

    def cut_endpoint(self, endpoint_id: bytes) -> int:
        """Cut every flow of an own endpoint (its virtual function went away); returns how many."""
        fence = self._fences.get(endpoint_id)
        return self._cut(list(fence.flows)) if fence else 0

    def expire(self, now_s: float, limit: int = EXPIRE_LIMIT) -> int:
        """Forget idle flows, looking at no more than `limit`; called about once a second. Returns how many."""
        return self._table.expire(now_s, limit)

    def _cut(self, flows: list[Flow]) -> int:
        for flow in flows:
            self._table.cut(flow)
        return len(flows)


def _refuse_kind(packet: Packet) -> Outcome | None:
    """Return why a packet cannot begin a flow; None when it can."""
    if packet.protocol == TCP:
        if packet.flags & STATE_FLAGS != SYN:
            return TCP_STATE
    elif packet.protocol in {ICMP, ICMPV6} and not packet.is_echo_request:
        return ICMP_STATE
    # From an address to itself ("land"): no host sends that through an interface.
    return MARTIAN if packet.source == packet.destination else None


def _explain(fence: Fence, packet: Packet, refusal: Outcome) -> Outcome:
    """What goes on after its flow was cut is told apart from what never was a flow."""
    return FLOW_CUT if packet.key in fence.flows.cut else refusal


def _relate(fence: Fence, flows: dict[bytes, Flow], packet: Packet) -> Outcome:
    """Judge an ICMP error by the live flow among `flows` that it quotes. The flow's idle time goes on."""
    key = quoted_key(packet)
    flow = flows.get(key) if key is not None else None
    if flow is None:
        return ICMP_STATE
    packet.flow = flow
    packet.route = flow.route
    return fence.related(flow.outcome)


def _carry(flow: Flow, fence: Fence) -> bool:
    """Judge a live flow by new tables; when it may go on, it takes their rule and route."""
    route = fence.ways.get(flow.remote)
    before = flow.route
    if route is None or (route.endpoint_id, route.network_id) != (before.endpoint_id, before.network_id):
        return False
    if flow.local not in fence.addresses:
        return False
    direction = Direction.EGRESS if flow.opened_here else Direction.INGRESS
    opening = fence.judge(direction, flow.remote, flow.protocol, flow.port)
    if opening.verdict is Verdict.DROP:
        return False
    flow.route = route
    flow.outcome = fence.established(opening)
    return True


def _is_same_place(old: Fence, new: Fence) -> bool:
    """Whether the endpoint is still in the same network; a re-created network has a higher generation."""
    return (old.network.network_id, old.network.generation) == (new.network.network_id, new.network.generation)


def _index_owners(tables: DeviceTables, fences: dict[bytes, Fence]) -> dict[tuple[bytes, bytes], Fence]:
    return {
        (network_id, address): fences[endpoint.endpoint_id]
        for endpoint in tables.endpoints
        for network_id in (endpoint.network_id, *endpoint.peerings)
        for address in endpoint.addresses
    }


def _build_fences(tables: DeviceTables, ways: Ways, before: dict[bytes, Fence]) -> dict[bytes, Fence]:
    """One fence per endpoint; an index over unchanged rules is used again."""
    networks = {network.network_id: network for network in tables.networks}
    fences = {}
    for table in tables.endpoints:
        old = before.get(table.endpoint_id)
        rules = old.rules if old and old.table.rules == table.rules else RuleIndex(table.rules)
        if old and old.table.audit_rules == table.audit_rules:
            audit = old.audit
        else:
            audit = None if table.audit_rules is None else RuleIndex(table.audit_rules)
        reachable = ways.of(table.network_id, table.peerings)
        fences[table.endpoint_id] = Fence(table, networks[table.network_id], reachable, rules, audit)
    return fences
