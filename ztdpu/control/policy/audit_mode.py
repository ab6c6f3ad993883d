"""What policies in audit mode would have dropped or allowed: told in control's log with the line of the policy.

Devices say numbers of rows; `AgentServicer` hands them over. What a device says is believed about its own endpoints
only, and at a bounded rate: nothing it sends becomes text in the log, a label, or more than a few lines a second.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from ztdpu.control.fleet import Fleet
from ztdpu.control.meters import Meters
from ztdpu.errors import UsageError
from ztdpu.model.endpoint import Endpoint
from ztdpu.model.flow import Direction, Protocol
from ztdpu.model.verdict import Reason
from ztdpu.policy.cluster import Cluster
from ztdpu.policy.compile import CompiledTables
from ztdpu.policy.select import is_selected
from ztdpu.telemetry import get_logger
from ztdpu.v1 import agent_pb2

ROWS_LIMIT: Final = 64
"""As in `packet.audit_book`."""
LEAST_INTERVAL_S: Final = 1.0
_WOULD: Final = {Reason.AUDIT_WOULD_DROP: "drop", Reason.AUDIT_WOULD_ALLOW: "allow"}


class AuditModeLog:
    """One per control process."""

    def __init__(self, fleet: Fleet, meters: Meters) -> None:
        self._fleet = fleet
        self._meters = meters
        self._last_s: dict[str, float] = {}

    def take(self, device: str, said: agent_pb2.AuditModeRows, *, now_s: float) -> None:
        """Log and count what a device says; what comes too soon is dropped. Raises UsageError for what is no row."""
        if len(said.rows) > ROWS_LIMIT:
            raise UsageError("too many rows of audit mode in one message")
        if now_s - self._last_s.get(device, -LEAST_INTERVAL_S) < LEAST_INTERVAL_S:
            return
        self._last_s[device] = now_s
        desired = self._fleet.desired
        tables = desired.tables.get(device)
        current = tables if tables is not None and tables.revision == said.revision else None
        for row in said.rows:
            endpoint = desired.cluster.endpoints.get(row.endpoint)
            if endpoint is not None and endpoint.device == device:
                self._tell(desired.cluster, endpoint, row, current, said.revision)
        if said.uncounted:
            get_logger().info("audit-mode-more", device=device, packets=said.uncounted)
            self._meters.policy_audited.labels(device=device, policy="", would="").inc(said.uncounted)

    def _tell(
        self,
        cluster: Cluster,
        endpoint: Endpoint,
        row: agent_pb2.AuditModeRow,
        tables: CompiledTables | None,
        revision: bytes,
    ) -> None:
        try:
            would = _WOULD[Reason(row.reason)]
            direction, protocol = Direction(row.direction), Protocol(row.protocol)
            peer = ipaddress.ip_address(row.peer)
        except (ValueError, KeyError):
            raise UsageError("a row of audit mode that is none") from None
        policy, rule, where = "", "", ""
        origin = tables.origins.get(row.rule_id) if tables is not None and row.HasField("rule_id") else None
        if origin is not None:
            policy, rule, where = f"{origin.kind} {origin.policy}", origin.rule, str(origin.where)
        elif tables is not None:
            policy, where = _deciding(cluster, endpoint, direction)
            rule = "no rule would allow it"
        get_logger().info(
            "audit-mode",
            would=would,
            tenant=endpoint.tenant,
            endpoint=endpoint.name,
            direction=str(direction),
            peer=str(peer),
            peer_endpoint=_name_of(cluster, endpoint, peer),
            protocol=protocol.name.lower(),
            port=row.port,
            packets=row.packets,
            policy=policy,
            rule=rule,
            where=where,
            device=endpoint.device,
            revision=revision.hex()[:12],
        )
        self._meters.policy_audited.labels(device=endpoint.device, policy=policy, would=would).inc(row.packets)


def _deciding(cluster: Cluster, endpoint: Endpoint, direction: Direction) -> tuple[str, str]:
    """The first policy in audit mode that would take the last word over an endpoint, with its place."""
    for name, policy in sorted(cluster.network_policies.items()):
        spec = policy.spec
        is_about = spec.mode == "audit" and spec.tenant == endpoint.tenant and direction in spec.decides
        if is_about and is_selected(spec.endpoint_selector, endpoint.labels):
            return f"NetworkPolicy {name}", str(cluster.locate("NetworkPolicy", name, ("spec",)))
    return "", ""


def _name_of(cluster: Cluster, endpoint: Endpoint, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Who has that address, as the endpoint sees it; empty when nobody has."""
    sides = [cluster.endpoints_of(endpoint.tenant), *cluster.partners_of(endpoint).values()]
    return next((one.name for side in sides for one in side if address in one.addresses), "")
