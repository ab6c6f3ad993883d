"""Tenants and endpoints, to and from messages."""

from __future__ import annotations

from ztdpu.model.administration import EndpointStatus, TenantStatus
from ztdpu.v1 import endpoint_pb2, tenant_pb2


def tenant_to_message(tenant: TenantStatus) -> tenant_pb2.Tenant:
    """Message for a tenant."""
    return tenant_pb2.Tenant(
        name=tenant.name,
        network_id=tenant.network_id,
        network_generation=tenant.network_generation,
        key_epoch=tenant.key_epoch,
        endpoints=tenant.endpoints,
        devices=tenant.devices,
        withheld=tenant.withheld,
    )


def tenant_from_message(message: tenant_pb2.Tenant) -> TenantStatus:
    """The tenant that a message tells of."""
    return TenantStatus(
        name=message.name,
        network_id=message.network_id,
        network_generation=message.network_generation,
        key_epoch=message.key_epoch,
        endpoints=tuple(message.endpoints),
        devices=tuple(message.devices),
        withheld=tuple(message.withheld),
    )


def endpoint_to_message(endpoint: EndpointStatus) -> endpoint_pb2.Endpoint:
    """Message for an endpoint."""
    return endpoint_pb2.Endpoint(
        name=endpoint.name,
        tenant=endpoint.tenant,
        device=endpoint.device,
        addresses=endpoint.addresses,
        labels=dict(endpoint.labels),
        device_state=endpoint.device_state,
        endpoint_id=endpoint.endpoint_id,
        ready=endpoint.ready,
    )


def endpoint_from_message(message: endpoint_pb2.Endpoint) -> EndpointStatus:
    """The endpoint that a message tells of."""
    return EndpointStatus(
        name=message.name,
        tenant=message.tenant,
        device=message.device,
        addresses=tuple(message.addresses),
        labels=dict(message.labels),
        device_state=message.device_state,
        endpoint_id=message.endpoint_id,
        ready=message.ready,
    )
