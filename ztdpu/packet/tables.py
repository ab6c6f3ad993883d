"""Compiled tables: what a device enforces, as dataclasses and as one canonical CBOR blob.

`policy.compile` makes them, control stores and sends the bytes, the worker decodes and enforces them,
`policy explain` decodes the same bytes. The SHA-256 of the blob is the revision shown everywhere.

The blob is CBOR arrays only, each of exact length, in the order of the fields below; a prefix is one byte
string, the address and then its length. Bounds and references are checked on both sides, so tables that
cannot be enforced can be neither made nor taken. What is enforced is in `packet.rules` and `packet.firewall`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import cbor2

from ztdpu.errors import TablesError
from ztdpu.model.flow import Direction
from ztdpu.model.verdict import Verdict
from ztdpu.packet.consistency import (
    MAX_ADDRESSES,
    MAX_ENDPOINTS,
    MAX_FLOW_QUOTA,
    MAX_GENERATION,
    MAX_NETWORKS,
    MAX_PEERS,
    MAX_PREFIXES,
    MAX_PSP_VERSION,
    MAX_ROUTES,
    MAX_RULE_ID,
    MAX_RULES,
    MAX_TIER,
    check_tables,
)


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
    verdict: Verdict | None
    """None: no more rows of this tier are asked, the next tier decides (Pass)."""
    protocol: int
    """IP protocol number, 0 for any."""
    port_first: int
    """Destination port range, inclusive; 0..65535 for protocols without ports."""
    port_last: int
    peers: tuple[Prefix, ...]
    """Whom the endpoint talks to: destination for egress, source for ingress. Never empty; 0/0 is spelled out."""
    excepted: tuple[Prefix, ...] = ()
    tier: int = 0
    """Tiers are asked in order, each for its first row that matches; rows are sorted by tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointTable:
    """One endpoint of this device."""

    endpoint_id: bytes
    name: str
    network_id: bytes
    """Its tenant's network."""
    addresses: tuple[bytes, ...]
    mtu_octets: int
    rules: tuple[Rule, ...]
    """In order of precedence."""
    peerings: tuple[bytes, ...] = ()
    """Ids of further networks that it is in: those of Peerings."""
    audit_rules: tuple[Rule, ...] | None = None
    """The rows there would be if policies in audit mode were enforced; None when no such policy is about it."""

    @property
    def all_rules(self) -> tuple[Rule, ...]:
        """Enforced rows, then those for auditing."""
        return self.rules + (self.audit_rules or ())


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
    """Whose network it is; of a Peering's network, the name of the Peering."""
    psp_version: int
    flow_quota: int
    """Most live flows of the tenant's endpoints on this device; unused in a Peering's network."""
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


FORMAT: Final = "ztdpu/v2/tables"
MAX_BLOB_OCTETS: Final = 16 * 1024 * 1024
_DIRECTIONS: Final = (Direction.EGRESS, Direction.INGRESS)
_VERDICTS: Final = (Verdict.DROP, Verdict.ALLOW, Verdict.AUDIT, None)

Row = TypeVar("Row")


def encode_tables(tables: DeviceTables) -> bytes:
    """Return the canonical blob: equal tables give equal bytes. Raises TablesError for what could not be enforced."""
    check_tables(tables)
    blob = cbor2.dumps(
        [
            FORMAT,
            tables.device,
            [_network_row(network) for network in tables.networks],
            [_endpoint_row(endpoint) for endpoint in tables.endpoints],
            [[peer.device, peer.underlay_address] for peer in tables.peers],
        ],
        canonical=True,
    )
    if len(blob) > MAX_BLOB_OCTETS:
        raise TablesError(f"tables take {len(blob)} octets, at most {MAX_BLOB_OCTETS} are allowed")
    return blob


def decode_tables(blob: bytes) -> DeviceTables:
    """Return the tables in `blob`. Raises TablesError unless encoding them again gives the very same bytes."""
    if len(blob) > MAX_BLOB_OCTETS:
        raise TablesError(f"tables take {len(blob)} octets, at most {MAX_BLOB_OCTETS} are allowed")
    try:
        document = cbor2.loads(blob)
    except (cbor2.CBORDecodeError, ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        raise TablesError("tables are not CBOR") from error
    word, device, networks, endpoints, peers = _array(document, 5)
    if word != FORMAT:
        raise TablesError("not device tables")
    tables = DeviceTables(
        device=_name(device),
        networks=_rows(networks, MAX_NETWORKS, _network),
        endpoints=_rows(endpoints, MAX_ENDPOINTS, _endpoint),
        peers=_rows(peers, MAX_PEERS, _peer),
    )
    if encode_tables(tables) != blob:
        raise TablesError("tables are not in canonical form")
    return tables


def revision(blob: bytes) -> bytes:
    """Return the SHA-256 of the blob: the revision that is shown, acknowledged and enforced."""
    return hashlib.sha256(blob).digest()


# --- to rows ----------------------------------------------------------------------------------


def _network_row(network: NetworkTable) -> list[Any]:
    routes = [[route.address, route.device, route.endpoint_id] for route in network.routes]
    return [
        network.network_id, network.generation, network.tenant, network.psp_version, network.flow_quota, routes,
    ]  # fmt: skip


def _endpoint_row(endpoint: EndpointTable) -> list[Any]:
    audited = () if endpoint.audit_rules is None else (endpoint.audit_rules,)
    return [
        endpoint.endpoint_id, endpoint.name, endpoint.network_id, list(endpoint.addresses), endpoint.mtu_octets,
        [_rule_row(rule) for rule in endpoint.rules], list(endpoint.peerings),
        [[_rule_row(rule) for rule in rules] for rules in audited],
    ]  # fmt: skip


def _rule_row(rule: Rule) -> list[Any]:
    return [
        rule.rule_id, _DIRECTIONS.index(rule.direction), _VERDICTS.index(rule.verdict), rule.protocol,
        rule.port_first, rule.port_last, _prefix_row(rule.peers), _prefix_row(rule.excepted), rule.tier,
    ]  # fmt: skip


def _prefix_row(prefixes: tuple[Prefix, ...]) -> list[bytes]:
    return [prefix.address + bytes((prefix.length,)) for prefix in prefixes]


# --- from rows: types and counts; what the values mean is checked by check_tables ---------------


def _array(value: Any, arity: int) -> list[Any]:
    if type(value) is not list or len(value) != arity:
        raise TablesError(f"expected an array of {arity}")
    return value


def _rows(value: Any, limit: int, build: Callable[[Any], Row]) -> tuple[Row, ...]:
    if type(value) is not list or len(value) > limit:
        raise TablesError(f"expected an array of at most {limit}")
    return tuple(build(row) for row in value)


def _integer(value: Any, highest: int) -> int:
    if type(value) is not int or not 0 <= value <= highest:  # a bool is an int to isinstance
        raise TablesError(f"expected an integer from 0 to {highest}")
    return value


def _octets(value: Any) -> bytes:
    if type(value) is not bytes:
        raise TablesError("expected a byte string")
    return value


def _name(value: Any) -> str:
    if type(value) is not str:
        raise TablesError("expected a text string")
    return value


def _network(row: Any) -> NetworkTable:
    network_id, generation, tenant, psp_version, flow_quota, routes = _array(row, 6)
    return NetworkTable(
        network_id=_octets(network_id),
        generation=_integer(generation, MAX_GENERATION),
        tenant=_name(tenant),
        psp_version=_integer(psp_version, MAX_PSP_VERSION),
        flow_quota=_integer(flow_quota, MAX_FLOW_QUOTA),
        routes=_rows(routes, MAX_ROUTES, _route),
    )


def _route(row: Any) -> Route:
    address, device, endpoint_id = _array(row, 3)
    return Route(address=_octets(address), device=_name(device), endpoint_id=_octets(endpoint_id))


def _endpoint(row: Any) -> EndpointTable:
    endpoint_id, name, network_id, addresses, mtu_octets, rules, peerings, audited = _array(row, 8)
    audit_rules = _rows(audited, 1, lambda rows: _rows(rows, MAX_RULES, _rule))
    return EndpointTable(
        endpoint_id=_octets(endpoint_id),
        name=_name(name),
        network_id=_octets(network_id),
        addresses=_rows(addresses, MAX_ADDRESSES, _octets),
        mtu_octets=_integer(mtu_octets, 0xFFFF),
        rules=_rows(rules, MAX_RULES, _rule),
        peerings=_rows(peerings, MAX_NETWORKS, _octets),
        audit_rules=audit_rules[0] if audit_rules else None,
    )


def _rule(row: Any) -> Rule:
    rule_id, direction, verdict, protocol, port_first, port_last, peers, excepted, tier = _array(row, 9)
    return Rule(
        rule_id=_integer(rule_id, MAX_RULE_ID),
        direction=_DIRECTIONS[_integer(direction, len(_DIRECTIONS) - 1)],
        verdict=_VERDICTS[_integer(verdict, len(_VERDICTS) - 1)],
        protocol=_integer(protocol, 0xFF),
        port_first=_integer(port_first, 0xFFFF),
        port_last=_integer(port_last, 0xFFFF),
        peers=_rows(peers, MAX_PREFIXES, _prefix),
        excepted=_rows(excepted, MAX_PREFIXES, _prefix),
        tier=_integer(tier, MAX_TIER),
    )


def _prefix(row: Any) -> Prefix:
    packed = _octets(row)
    if len(packed) not in {5, 17}:
        raise TablesError("a prefix is an address and its length in one octet")
    return Prefix(address=packed[:-1], length=packed[-1])


def _peer(row: Any) -> PeerTable:
    device, underlay_address = _array(row, 2)
    return PeerTable(device=_name(device), underlay_address=_octets(underlay_address))
