"""ControlService: how control and the cluster stand."""

# ruff: noqa: N802 - gRPC fixes the names of methods
from __future__ import annotations

from typing import Any

import ztdpu
from ztdpu.control.api.policy import PolicyServicer
from ztdpu.control.configuration import Specification
from ztdpu.control.fleet import Fleet
from ztdpu.control.view import view_device
from ztdpu.model.administration import ControlStatus
from ztdpu.rpc.convert.control import status_to_message
from ztdpu.v1 import control_pb2, control_pb2_grpc


class ControlServicer(control_pb2_grpc.ControlServiceServicer):
    """One call, one screen."""

    def __init__(self, fleet: Fleet, spec: Specification, policy: PolicyServicer) -> None:
        self._fleet = fleet
        self._spec = spec
        self._policy = policy
        self._started_unix_ms = fleet.now().unix_ms

    async def GetStatus(self, _request: Any, _context: Any) -> control_pb2.ControlStatus:
        """Counts and settings."""
        fleet = self._fleet
        devices = [view_device(fleet, name) for name in fleet.names()]
        with fleet.transaction() as transaction:
            audit_size = transaction.count_audit()
        return status_to_message(
            ControlStatus(
                version=ztdpu.__version__,
                trust_domain=self._spec.trust_domain,
                generation=fleet.generation,
                started_unix_ms=self._started_unix_ms,
                devices=len(devices),
                devices_leased=sum(device.lease_s > 0 for device in devices),
                devices_ready=sum(device.ready for device in devices),
                devices_connected=sum(device.connected for device in devices),
                tenants=len(fleet.desired.cluster.tenants),
                endpoints=len(fleet.desired.cluster.endpoints),
                policy_faults=len(self._policy.faults),
                roster_serial=fleet.desired.roster.serial,
                audit_size=audit_size,
                attestation_interval_ms=int(self._spec.attestation.interval_s * 1000),
                lease_ms=int(self._spec.attestation.lease_s * 1000),
            )
        )
