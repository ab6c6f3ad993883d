"""What the packet path needs of one `DeviceTables` besides the firewall: peers, networks, this device's name.

Built anew by `packet.pipeline` at every swap of tables and never changed after. Who may talk to whom and which
device hosts which address is the firewall's to say.
"""

from __future__ import annotations

from dataclasses import dataclass

from ztdpu.packet.tables import DeviceTables


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarding:
    """Look-ups by dict."""

    device: str
    peers: dict[str, bytes]
    """Underlay address, packed, by device name; without this device."""
    networks: dict[bytes, int]
    """PSP version by network id."""


def build_forwarding(tables: DeviceTables) -> Forwarding:
    """Return the indexes over `tables`."""
    return Forwarding(
        device=tables.device,
        peers={peer.device: peer.underlay_address for peer in tables.peers if peer.device != tables.device},
        networks={network.network_id: network.psp_version for network in tables.networks},
    )
