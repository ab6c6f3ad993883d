"""Endpoints: one tenant's virtual function on one device."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One tenant's virtual function on one device."""

    name: str
    tenant: str
    device: str
    addresses: tuple[IPv4Address | IPv6Address, ...]
    """Overlay addresses; two tenants may use the same ones."""
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(name, `TCP` or `UDP`) -> number: names that policies may use, the endpoint's own before its tenant's."""

    @property
    def endpoint_id(self) -> bytes:
        """16 octets that name this endpoint in tables and records."""
        return hashlib.sha256(f"ztdpu/v1/endpoint\0{self.tenant}\0{self.name}".encode()).digest()[:16]
