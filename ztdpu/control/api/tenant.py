"""TenantService and EndpointService: read only, desired state comes from policy files."""

# ruff: noqa: N802 - gRPC fixes the names of methods
from __future__ import annotations

from typing import Any

from ztdpu.control.doors.authorisation import ACCESS
from ztdpu.control.fleet import Fleet
from ztdpu.control.view import view_endpoint, view_tenant
from ztdpu.errors import NotFoundError
from ztdpu.rpc.convert.tenant import endpoint_to_message, tenant_to_message
from ztdpu.v1 import endpoint_pb2, endpoint_pb2_grpc, tenant_pb2, tenant_pb2_grpc


class TenantServicer(tenant_pb2_grpc.TenantServiceServicer):
    """Tenants in reach."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def ListTenants(self, _request: Any, _context: Any) -> tenant_pb2.ListTenantsResponse:
        """By name."""
        access, names = ACCESS.get(), sorted(self._fleet.desired.cluster.tenants)
        return tenant_pb2.ListTenantsResponse(
            tenants=[tenant_to_message(view_tenant(self._fleet, name)) for name in names if access.sees_tenant(name)]
        )

    async def GetTenant(self, request: tenant_pb2.GetTenantRequest, _context: Any) -> tenant_pb2.Tenant:
        """One of them."""
        known = request.name in self._fleet.desired.cluster.tenants
        if not known or not ACCESS.get().sees_tenant(request.name):
            raise NotFoundError(f"no tenant {request.name!r}", remedy="`ztdpu tenant list`")
        return tenant_to_message(view_tenant(self._fleet, request.name))


class EndpointServicer(endpoint_pb2_grpc.EndpointServiceServicer):
    """Endpoints in reach."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def ListEndpoints(
        self, request: endpoint_pb2.ListEndpointsRequest, _context: Any
    ) -> endpoint_pb2.ListEndpointsResponse:
        """By name, of one tenant or of all."""
        access = ACCESS.get()
        if request.tenant:
            access.require_tenant(request.tenant, f"tenant {request.tenant!r}")
        return endpoint_pb2.ListEndpointsResponse(
            endpoints=[
                endpoint_to_message(view_endpoint(self._fleet, endpoint))
                for _, endpoint in sorted(self._fleet.desired.cluster.endpoints.items())
                if access.sees_tenant(endpoint.tenant) and request.tenant in ("", endpoint.tenant)
            ]
        )

    async def GetEndpoint(self, request: endpoint_pb2.GetEndpointRequest, _context: Any) -> endpoint_pb2.Endpoint:
        """One of them."""
        endpoint = self._fleet.desired.cluster.endpoints.get(request.name)
        if endpoint is None or not ACCESS.get().sees_tenant(endpoint.tenant):
            raise NotFoundError(f"no endpoint {request.name!r}", remedy="`ztdpu endpoint list`")
        return endpoint_to_message(view_endpoint(self._fleet, endpoint))
