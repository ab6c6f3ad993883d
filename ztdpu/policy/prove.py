"""That tenants are apart, from the compiled tables alone: for every pair of them no packet passes, or here is one.

Every endpoint's every way is followed to whom its packets reach; what arrives at another tenant must have come through
a network that is a Peering's. Ids of networks must mean the same on all devices, else keys would be shared.
Pure; called by `ztdpu policy prove`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from ztdpu.model.flow import Protocol
from ztdpu.policy.reach import Flow, World


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """One packet that passes from one tenant to another."""

    source: str
    destination: str
    source_tenant: str
    destination_tenant: str
    addresses: str
    protocol: str
    port: int
    peering: str
    """Through which Peering; empty: there is none, and it must not pass."""

    def __str__(self) -> str:
        what = self.protocol if self.protocol.startswith("icmp") else f"{self.port}/{self.protocol}"
        return f"{self.source} -> {self.destination}  {what}  ({self.addresses})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was looked at and found."""

    tenants: tuple[str, ...]
    pairs: int
    """Unordered pairs of tenants."""
    ways: int
    """Ways from an endpoint to an address that were followed."""
    witnesses: tuple[Witness, ...]
    """One per ordered pair of tenants between which packets pass."""
    shared_ids: tuple[tuple[str, ...], ...]
    """Names (of tenants and Peerings) that one network id stands for."""

    @property
    def breaches(self) -> tuple[Witness, ...]:
        """Packets that pass without a Peering."""
        return tuple(one for one in self.witnesses if not one.peering)

    @property
    def holds(self) -> bool:
        """Whether no packet passes between tenants but through Peerings."""
        return not self.breaches and not self.shared_ids


def prove(world: World) -> Proof:
    """Follow every way."""
    tenants = sorted({place.tenant for place in world.places.values()})
    own_networks = {place.table.network_id for place in world.places.values()}
    found: dict[tuple[str, str, bool], Witness] = {}
    ways = 0
    for place in world.places.values():
        ways += len(place.ways)
        for flow in world.flows_from(place):
            other = world.places[flow.destination]
            if other.tenant == place.tenant:
                continue
            is_peering = flow.network_id not in own_networks
            peering = "/".join(sorted(world.network_names[flow.network_id])) if is_peering else ""
            found.setdefault(
                (place.tenant, other.tenant, is_peering), _witness(flow, place.tenant, other.tenant, peering)
            )
    return Proof(
        tenants=tuple(tenants),
        pairs=len(list(combinations(tenants, 2))),
        ways=ways,
        witnesses=tuple(witness for _, witness in sorted(found.items())),
        shared_ids=tuple(tuple(sorted(names)) for names in world.network_names.values() if len(names) > 1),
    )


def _witness(flow: Flow, source_tenant: str, destination_tenant: str, peering: str) -> Witness:
    first, last = flow.ports[0]
    return Witness(
        source=flow.source,
        destination=flow.destination,
        source_tenant=source_tenant,
        destination_tenant=destination_tenant,
        addresses=flow.describe_addresses(),
        protocol=Protocol(flow.protocol).name.lower(),
        port=min(max(first, 1), last),
        peering=peering,
    )
