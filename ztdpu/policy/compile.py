"""Cluster to tables: what one device has to enforce, as the canonical blob whose SHA-256 is the revision.

Called by control (for every device, at every change) and by the `policy` commands. Pure: the same cluster,
networks and device give the same bytes. Rows are made by `policy.rows`, who exists for whom by `policy.topology`.

The file and line behind each row go into `origins`, beside the blob: the worker reports a row's number, people
are shown the line.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ztdpu.errors import Location, NotFoundError, PolicyError
from ztdpu.model.endpoint import Endpoint
from ztdpu.model.sa import PspVersion
from ztdpu.model.tenant import Network
from ztdpu.packet.tables import (
    DeviceTables,
    EndpointTable,
    NetworkTable,
    PeerTable,
    Route,
    Rule,
    encode_tables,
    revision,
)
from ztdpu.policy.cluster import Cluster
from ztdpu.policy.rows import Draft, Origin, RowMaker
from ztdpu.policy.startup import UNDERLAY_MTU_OCTETS
from ztdpu.policy.topology import Topology

OVERHEAD_OCTETS: Final = {4: 20 + 8 + 16 + 16, 6: 40 + 8 + 16 + 16}
"""Outer IP, UDP, PSP header and ICV, by IP version of the underlay."""
_SUITES: Final = {"AES-GCM-128": PspVersion.AES_GCM_128, "AES-GCM-256": PspVersion.AES_GCM_256}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledTables:
    """One device's tables as they are stored, sent, hashed and enforced."""

    blob: bytes
    revision: bytes
    """SHA-256 of `blob`."""
    origins: Mapping[int, Origin]
    """rule id -> what asked for it."""

    @property
    def sources(self) -> Mapping[int, Location]:
        """Rule id -> the line of the policy file that asked for it."""
        return {rule_id: origin.where for rule_id, origin in self.origins.items()}


def compile_tables(
    cluster: Cluster,
    device: str,
    networks: Mapping[str, Network],
    *,
    underlay_mtu_octets: int = UNDERLAY_MTU_OCTETS,
) -> CompiledTables:
    """Return the tables of `device`; `networks` maps tenants and Peerings to networks (from the signed roster).

    Raises NotFoundError for an unknown device, PolicyError when a tenant or Peering on it has no network.
    """
    return Compiler(cluster, networks, underlay_mtu_octets=underlay_mtu_octets).compile(device)


def assumed_networks(cluster: Cluster) -> dict[str, Network]:
    """Networks for questions asked without a roster: their ids decide nothing, they only have to differ.

    Revisions of tables made with them are nobody's: ids are part of what is hashed.
    """
    return {
        name: Network(tenant=name, network_id=hashlib.sha256(name.encode()).digest()[:16], generation=1)
        for name in (*cluster.tenants, *cluster.peerings)
    }


class Compiler:
    """Compiles devices of one cluster; what they share is worked out once."""

    def __init__(
        self, cluster: Cluster, networks: Mapping[str, Network], *, underlay_mtu_octets: int = UNDERLAY_MTU_OCTETS
    ) -> None:
        self._cluster = cluster
        self._networks = networks
        self._mtu_octets = underlay_mtu_octets
        self.topology = Topology(cluster)
        self._rows = RowMaker(cluster, self.topology)
        self._network_tables: dict[str, NetworkTable] = {}
        self._overheads: dict[str, int] = {}

    def compile(self, device: str) -> CompiledTables:
        """Return the tables of one device with all that travels beside. Raises as `compile_tables`."""
        tables, origins = self.tables(device)
        blob = encode_tables(tables)
        return CompiledTables(blob=blob, revision=revision(blob), origins=origins)

    def tables(self, device: str) -> tuple[DeviceTables, dict[int, Origin]]:
        """Return the tables before they are encoded, and what asked for each row. Raises as `compile_tables`."""
        if device not in self._cluster.devices:
            raise NotFoundError(
                f"no device {device!r}", remedy=f"devices are {', '.join(sorted(self._cluster.devices))}"
            )
        tenants, peerings = self.topology.networks_on(device)
        self._require_networks(tenants, peerings)
        numbers, origins = itertools.count(1), dict[int, Origin]()
        tables = DeviceTables(
            device=device,
            networks=tuple(map(self._network_table, (*tenants, *peerings))),
            endpoints=tuple(self._endpoint_table(one, numbers, origins) for one in self.topology.on_device[device]),
            peers=tuple(self._peers(device, (*tenants, *peerings))),
        )
        return tables, origins

    def _require_networks(self, tenants: list[str], peerings: list[str]) -> None:
        for kind, names in (("Tenant", tenants), ("Peering", peerings)):
            missing = [name for name in names if name not in self._networks]
            if missing:
                raise PolicyError(
                    f"{kind.lower()} {missing[0]!r} has no network in the roster",
                    remedy="have an operator sign a roster that lists it",
                    where=self._cluster.locate(kind, missing[0]),
                )

    def _members(self, network: str) -> list[Endpoint]:
        sides = self.topology.members.get(network)
        return self.topology.by_tenant[network] if sides is None else [one for side in sides.values() for one in side]

    def _network_table(self, name: str) -> NetworkTable:
        if name not in self._network_tables:
            network, is_peering = self._networks[name], name in self._cluster.peerings
            spec = self._cluster.peerings[name].spec if is_peering else self._cluster.tenants[name].spec
            routes = [
                Route(address=address.packed, device=endpoint.device, endpoint_id=endpoint.endpoint_id)
                for endpoint in self._members(name)
                for address in endpoint.addresses
            ]
            self._network_tables[name] = NetworkTable(
                network_id=network.network_id,
                generation=network.generation,
                tenant=name,
                psp_version=_SUITES[spec.suite],
                flow_quota=0 if is_peering else self._cluster.tenants[name].spec.flow_quota,
                routes=tuple(sorted(routes, key=lambda route: (len(route.address), route.address))),
            )
        return self._network_tables[name]

    def _endpoint_table(self, endpoint: Endpoint, numbers: Iterator[int], origins: dict[int, Origin]) -> EndpointTable:
        def number(drafts: list[Draft]) -> tuple[Rule, ...]:
            rows = []
            for draft in drafts:
                rule_id = next(numbers)
                origins[rule_id] = draft.origin
                rows.append(draft.number(rule_id))
            return tuple(rows)

        audited = self._rows.audited(endpoint)
        return EndpointTable(
            endpoint_id=endpoint.endpoint_id,
            name=endpoint.name,
            network_id=self._networks[endpoint.tenant].network_id,
            addresses=tuple(sorted((a.packed for a in endpoint.addresses), key=lambda a: (len(a), a))),
            mtu_octets=self.mtu_octets(endpoint.tenant),
            rules=number(self._rows.enforced(endpoint)),
            peerings=tuple(self._networks[one].network_id for one in self.topology.peerings.get(endpoint.name, ())),
            audit_rules=None if audited is None else number(audited),
        )

    def mtu_octets(self, tenant: str) -> int:
        """Return what fits into an inner packet: one MTU for all tenants that Peerings join."""
        if tenant not in self._overheads:
            joined = self.topology.connected(tenant)
            versions = {
                self._cluster.devices[endpoint.device].spec.underlay.address.version
                for one in joined
                for endpoint in self.topology.by_tenant[one]
            }
            overhead = max((OVERHEAD_OCTETS[version] for version in versions), default=0)
            self._overheads |= dict.fromkeys(joined, overhead)
        return self._mtu_octets - self._overheads[tenant]

    def _peers(self, device: str, networks: tuple[str, ...]) -> Iterator[PeerTable]:
        names = {endpoint.device for network in networks for endpoint in self._members(network)} - {device}
        for name in sorted(names):
            address = self._cluster.devices[name].spec.underlay.address
            yield PeerTable(device=name, underlay_address=address.packed)
