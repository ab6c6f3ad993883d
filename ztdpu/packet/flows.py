"""Live flows of one device: found by key in both directions, capped per network, forgotten when idle.

`packet.firewall` decides, this remembers. An endpoint's conversations stand in its own two dicts, one for what
it sends and one for what it receives, so two tenants with the same addresses never meet, and a conversation
between two endpoints of one device is two flows.

Idle flows leave by a timing wheel (Varghese and Lauck, SOSP 1987) of one-second slots: a flow is filed once,
under the second in which it may first be idle for too long, and only looked at again then. A packet of a live
flow touches nothing but the flow itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ztdpu.model.verdict import Outcome
from ztdpu.packet.headers import ECHO_REPLY_MARK, ECHO_REQUEST_MARK, TCP, UDP, UDP_MARK
from ztdpu.packet.states import TIMEOUTS_S, FlowState, steady_flags
from ztdpu.packet.ways import Way

WHEEL_SLOTS: Final = 256
CUT_MEMORY: Final = 2048
"""Keys of cut flows that an endpoint remembers, the latest ones: only to name the reason of what still comes."""
EXPIRE_LIMIT: Final = 128
"""Flows looked at per call of `expire`."""


@dataclass(slots=True, eq=False)
class EndpointFlows:
    """The conversations of one endpoint, by the key of a packet it sends and of one it receives."""

    network_id: bytes
    sent: dict[bytes, Flow] = field(default_factory=dict)
    received: dict[bytes, Flow] = field(default_factory=dict)
    cut: dict[bytes, None] = field(default_factory=dict)
    """Keys of flows that were cut, oldest first, at most CUT_MEMORY."""

    def __iter__(self) -> Iterator[Flow]:
        """Yield each flow once; a copy, so that the caller may remove them."""
        return iter(list(self.sent.values()))


@dataclass(slots=True, eq=False, kw_only=True)
class Flow:
    """One conversation as one endpoint sees it. Mutable: only `packet.firewall` and the table below write it."""

    home: EndpointFlows
    protocol: int
    sent_key: bytes
    received_key: bytes
    local: bytes
    """The endpoint's address."""
    remote: bytes
    port: int
    """Destination port of the opening packet, what its rule was matched against; 0 for ICMP echo."""
    opened_here: bool
    """The endpoint sent the first packet, so its egress rules judge the flow; else its ingress rules."""
    outcome: Outcome
    """What each further packet gets, made once."""
    route: Way
    """Where the remote address lives."""
    last_s: float
    """When the last packet passed."""
    state: FlowState = FlowState.OPENING
    steady_flags: int = -1
    """Packets with these TCP state flags change nothing; -1: look at each (`states.steady_flags`)."""
    timeout_s: float = 0.0
    slot: int = -1
    """Where the wheel has it; -1 once it is forgotten."""

    def enter(self, state: FlowState) -> None:
        """Take the state with all that follows from it."""
        self.state = state
        self.steady_flags = steady_flags(self.protocol, state)
        self.timeout_s = TIMEOUTS_S[self.protocol][state]


def reverse_key(key: bytes, protocol: int, address_octets: int) -> bytes:
    """Return the key of the answers to a packet with `key` (TCP, UDP, ICMP echo request)."""
    source, destination = key[:address_octets], key[address_octets : 2 * address_octets]
    rest = key[2 * address_octets :]
    if protocol in {TCP, UDP}:
        ports = rest[2:4] + rest[:2]
        return destination + source + ports + (UDP_MARK if protocol == UDP else b"")
    mark = ECHO_REPLY_MARK if rest[2:4] == ECHO_REQUEST_MARK else ECHO_REQUEST_MARK
    return b"".join((destination, source, rest[:2], mark, rest[4:]))


class FlowTable:
    """Keeps count and time of all flows of a device. Time is any clock in seconds that never goes back."""

    def __init__(self) -> None:
        self.count = 0
        self._counts: dict[bytes, int] = {}
        self._slots: list[dict[Flow, None]] = [{} for _ in range(WHEEL_SLOTS)]
        self._cursor = 0
        """The second whose slot is looked at next; every flow is filed within WHEEL_SLOTS of it."""

    def count_of(self, network_id: bytes) -> int:
        """Return how many flows live in this network."""
        return self._counts.get(network_id, 0)

    def add(self, flow: Flow, *, quota: int, now_s: float) -> bool:
        """Remember a new flow in state OPENING; False when its network has `quota` live flows already."""
        network_id = flow.home.network_id
        if self._counts.get(network_id, 0) >= quota:
            self.expire(now_s)
            if self._counts.get(network_id, 0) >= quota:
                return False
        if not self.count:
            self._cursor = int(now_s)  # nothing is filed: skip the seconds that passed
        flow.enter(FlowState.OPENING)
        flow.home.sent[flow.sent_key] = flow
        flow.home.received[flow.received_key] = flow
        if flow.home.cut:
            flow.home.cut.pop(flow.sent_key, None)
            flow.home.cut.pop(flow.received_key, None)
        self.count += 1
        self._counts[network_id] = self._counts.get(network_id, 0) + 1
        self._file(flow)
        return True

    def remove(self, flow: Flow) -> None:
        """Forget a flow; a second time does nothing."""
        if flow.slot < 0:
            return
        self._slots[flow.slot].pop(flow, None)
        flow.slot = -1
        del flow.home.sent[flow.sent_key]
        del flow.home.received[flow.received_key]
        network_id = flow.home.network_id
        self.count -= 1
        self._counts[network_id] -= 1
        if not self._counts[network_id]:
            del self._counts[network_id]

    def cut(self, flow: Flow) -> None:
        """Forget a flow that may not go on, but remember its keys for a while."""
        self.remove(flow)
        memory = flow.home.cut
        for key in (flow.sent_key, flow.received_key):
            if len(memory) >= CUT_MEMORY:
                del memory[next(iter(memory))]
            memory[key] = None

    def enter(self, flow: Flow, state: FlowState) -> None:
        """Put a flow into another state; its idle time counts from its `last_s`."""
        before_s = flow.timeout_s
        flow.enter(state)
        if flow.timeout_s < before_s:  # due earlier than where it is filed; later is found out by the wheel
            del self._slots[flow.slot][flow]
            self._file(flow)

    def expire(self, now_s: float, limit: int = EXPIRE_LIMIT) -> int:
        """Forget flows that idled too long, looking at no more than `limit`; returns how many were forgotten.

        What is left over is found by the next call. Until then an idle flow still lives.
        """
        present = int(now_s)
        self._cursor = max(self._cursor, present - WHEEL_SLOTS + 1)
        forgotten = 0
        while self._cursor <= present:
            slot = self._slots[self._cursor % WHEEL_SLOTS]
            while slot:
                if not limit:
                    return forgotten
                limit -= 1
                flow, _ = slot.popitem()
                if flow.last_s + flow.timeout_s <= now_s:
                    self.remove(flow)
                    forgotten += 1
                else:
                    self._file(flow)
            self._cursor += 1
        return forgotten

    def _file(self, flow: Flow) -> None:
        """File under the second after it is due, or as far ahead as the wheel goes."""
        due = int(flow.last_s + flow.timeout_s) + 1
        flow.slot = max(self._cursor, min(due, self._cursor + WHEEL_SLOTS - 1)) % WHEEL_SLOTS
        self._slots[flow.slot][flow] = None
