"""Compiled tables: what a device enforces, as dataclasses and as one canonical CBOR blob.

`policy.compile` makes them, control stores and sends the bytes, the worker decodes and enforces them,
`policy explain` decodes the same bytes. The SHA-256 of the blob is the revision shown everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from ztdpu.model.flow import Direction
from ztdpu.model.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """A block of overlay addresses."""

    address: bytes
    """Packed, 4 or 16 octets, host bits zero."""
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row: the first that matches decides. No match is default deny."""

    rule_id: int
    """Unique in the tables; the file and line behind it travel beside, not inside."""
    direction: Direction
    verdict: Verdict
    protocol: int
    """IP protocol number, 0 for any."""
    port_first: int
    """Destination port range, inclusive; 0..65535 for protocols without ports."""
    port_last: int
    peers: tuple[Prefix, ...]
    """Whom the endpoint talks to: destination for egress, source for ingress. Never empty; 0/0 is spelled out."""
    excepted: tuple[Prefix, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointTable:
    """One endpoint of this device."""

    endpoint_id: bytes
    name: str
    network_id: bytes
    addresses: tuple[bytes, ...]
    mtu_octets: int
    rules: tuple[Rule, ...]
    """In order of precedence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """An overlay address of a network and the device that hosts it; own endpoints are listed too."""

    address: bytes
    device: str
    endpoint_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTable:
    """One network that this device takes part in."""

    network_id: bytes
    generation: int
    tenant: str
    psp_version: int
    flow_quota: int
    """Most live flows of this network on this device."""
    routes: tuple[Route, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTable:
    """Another device and where it is on the underlay."""

    device: str
    underlay_address: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTables:
    """Everything one device enforces."""

    device: str
    networks: tuple[NetworkTable, ...]
    endpoints: tuple[EndpointTable, ...]
    peers: tuple[PeerTable, ...]
