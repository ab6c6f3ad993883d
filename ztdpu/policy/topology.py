"""Who exists for whom: each endpoint's own network and its partners by Peering, indexed once for a whole cluster.

Used by `compile`, `reach` and `tests`. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ztdpu.model.endpoint import Endpoint
from ztdpu.policy.cluster import Cluster

TENANT_NAME_LABEL: Final = "ztdpu.dev/name"
"""A label that every tenant has, whatever its document says."""


class Topology:
    """Look-ups over one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        by_tenant: dict[str, list[Endpoint]] = {tenant: [] for tenant in cluster.tenants}
        self.on_device: dict[str, list[Endpoint]] = {device: [] for device in cluster.devices}
        """Endpoints by device, in order of name."""
        for _, endpoint in sorted(cluster.endpoints.items()):
            by_tenant[endpoint.tenant].append(endpoint)
            self.on_device[endpoint.device].append(endpoint)
        self.by_tenant: Mapping[str, list[Endpoint]] = by_tenant
        """Endpoints by tenant, in order of name."""
        self.members = {name: cluster.members_of(name) for name in cluster.peerings}
        """Peering -> tenant -> its members."""
        self.peerings: dict[str, tuple[str, ...]] = {}
        """Endpoint -> names of the Peerings it takes part in; endpoints without any are absent."""
        for name, sides in self.members.items():
            for members in sides.values():
                for endpoint in members:
                    self.peerings[endpoint.name] = (*self.peerings.get(endpoint.name, ()), name)
        self.tenant_labels = {
            name: {**tenant.metadata.labels, TENANT_NAME_LABEL: name} for name, tenant in cluster.tenants.items()
        }

    def partners(self, endpoint: Endpoint, peering: str) -> tuple[Endpoint, ...]:
        """Members of the other side, if the endpoint takes part."""
        if peering not in self.peerings.get(endpoint.name, ()):
            return ()
        return next(side for tenant, side in self.members[peering].items() if tenant != endpoint.tenant)

    def foreigners(self, endpoint: Endpoint) -> tuple[Endpoint, ...]:
        """All endpoints of other tenants that exist for this one."""
        return tuple(one for name in self.peerings.get(endpoint.name, ()) for one in self.partners(endpoint, name))

    def visible(self, endpoint: Endpoint) -> tuple[Endpoint, ...]:
        """Everybody who exists for it, itself included."""
        return (*self.by_tenant[endpoint.tenant], *self.foreigners(endpoint))

    def networks_on(self, device: str) -> tuple[list[str], list[str]]:
        """(tenants, Peerings) with an endpoint on this device, by name."""
        endpoints = self.on_device[device]
        peerings = {name for one in endpoints for name in self.peerings.get(one.name, ())}
        return sorted({one.tenant for one in endpoints}), sorted(peerings)

    def connected(self, tenant: str) -> frozenset[str]:
        """The tenant and all that Peerings join to it, over however many steps."""
        found, waiting = {tenant}, [tenant]
        while waiting:
            one = waiting.pop()
            for sides in self.members.values():
                if one in sides:
                    waiting += [other for other in sides if other not in found]
                    found |= set(sides)
        return frozenset(found)
