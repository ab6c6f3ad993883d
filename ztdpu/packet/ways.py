"""Which overlay addresses exist for an endpoint, and the way to each: through which network to which device.

Made by `packet.firewall` from the tables. An endpoint sees its tenant's network, and of each Peering's network the
partners: its own tenant's endpoints are always reached in their own network. `packet.consistency` sees to it that no
address is there twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from ztdpu.packet.tables import DeviceTables, NetworkTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """To one overlay address."""

    address: bytes
    network_id: bytes
    """The network whose SAs its packets use."""
    device: str
    endpoint_id: bytes


class Ways:
    """Makes the look-ups of all endpoints of a device; those of endpoints in the same networks are one object."""

    def __init__(self, tables: DeviceTables) -> None:
        self._networks = {network.network_id: network for network in tables.networks}
        self._own: dict[bytes, dict[bytes, Way]] = {}
        self._merged: dict[tuple[bytes, ...], dict[bytes, Way]] = {}

    def of(self, network_id: bytes, peerings: tuple[bytes, ...] = ()) -> dict[bytes, Way]:
        """Return the way to each address that exists in a network, and to the partners in `peerings`."""
        own = self._all(network_id)
        if not peerings:
            return own
        key = (network_id, *peerings)
        merged = self._merged.get(key)
        if merged is None:
            merged = self._merged[key] = dict(own)
            insiders = {way.endpoint_id for way in own.values()}
            for peering in peerings:
                partners = self._all(peering).items()
                merged.update((address, way) for address, way in partners if way.endpoint_id not in insiders)
        return merged

    def hosts(self, network_id: bytes, address: bytes, device: str) -> bool:
        """Whether `device` hosts `address` in this network."""
        way = self._all(network_id).get(address) if network_id in self._networks else None
        return way is not None and way.device == device

    def _all(self, network_id: bytes) -> dict[bytes, Way]:
        own = self._own.get(network_id)
        if own is None:
            own = self._own[network_id] = _ways(self._networks[network_id])
        return own


def _ways(network: NetworkTable) -> dict[bytes, Way]:
    return {
        route.address: Way(
            address=route.address,
            network_id=network.network_id,
            device=route.device,
            endpoint_id=route.endpoint_id,
        )
        for route in network.routes
    }
