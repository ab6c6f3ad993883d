"""Tenants and their networks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The private network of one tenant (or of one Peering)."""

    tenant: str
    network_id: bytes
    """16 random octets, never reused; named in the operator-signed roster."""
    generation: int
    """Rises when the network is re-created; SAs of an older generation are refused."""
