"""The fence of one device: who may talk to whom, judged where a conversation enters or leaves an endpoint."""

from __future__ import annotations

from ztdpu.model.verdict import Outcome
from ztdpu.packet.headers import Packet
from ztdpu.packet.tables import DeviceTables, EndpointTable, Route


class Firewall:
    """Default deny, stateful; see the method docs. `now_s` is any clock that never goes back."""

    def __init__(self, tables: DeviceTables) -> None: ...

    def egress(self, endpoint_id: bytes, packet: Packet, now_s: float) -> Outcome:
        """Judge a packet that `endpoint_id` sends. On ALLOW/AUDIT sets packet.flow and packet.route (destination's)."""

    def ingress(self, endpoint_id: bytes, packet: Packet, now_s: float) -> Outcome:
        """Judge a packet for `endpoint_id`. On ALLOW/AUDIT sets packet.flow and packet.route (source's)."""

    def route(self, network_id: bytes, destination: bytes) -> Route | None:
        """Where an overlay address lives (own endpoints too)."""

    def endpoint_for(self, network_id: bytes, destination: bytes) -> EndpointTable | None:
        """The own endpoint that has this address in this network."""

    def endpoint(self, endpoint_id: bytes) -> EndpointTable | None:
        """The own endpoint of that id."""

    def source_belongs(self, network_id: bytes, source: bytes, device: str) -> bool:
        """Whether `device` hosts `source` in this network: else the packet is FOREIGN_SOURCE."""

    def swap(self, tables: DeviceTables, now_s: float) -> int:
        """Enforce `tables` from now on; returns how many live flows they no longer allow (cut)."""

    def cut_device(self, device: str) -> int:
        """Cut every flow whose remote address routes to `device`; returns how many."""

    def expire(self, now_s: float) -> int:
        """Forget idle flows, bounded work per call; call about once a batch. Returns how many."""

    @property
    def flow_count(self) -> int:
        """Live flows, as endpoints see them (a same-device conversation counts twice)."""
