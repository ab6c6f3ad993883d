"""Flows: the direction seen from an endpoint, protocols, and a flow's key."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import NamedTuple


class Direction(StrEnum):
    """Seen from the tenant's endpoint, as in Kubernetes NetworkPolicy."""

    EGRESS = "egress"
    INGRESS = "ingress"


class Protocol(IntEnum):
    """IP protocol numbers that policy can name; `ANY` is how tables spell "all of these"."""

    ANY = 0
    ICMP = 1
    TCP = 6
    UDP = 17
    ICMPV6 = 58


class FlowKey(NamedTuple):
    """One direction of one conversation inside one network."""

    network_id: bytes
    protocol: int
    source: bytes
    """Packed address, 4 or 16 octets."""
    destination: bytes
    source_port: int
    """TCP and UDP port; for ICMP echo the identifier."""
    destination_port: int

    def reversed(self) -> FlowKey:
        """The same conversation seen from the other end."""
        return FlowKey(
            self.network_id, self.protocol, self.destination, self.source, self.destination_port, self.source_port
        )
