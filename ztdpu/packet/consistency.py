"""Whether compiled tables mean something: bounds, uniqueness, references. Types are `packet.tables`' affair.

Called by `encode_tables` and `decode_tables`, so nothing inconsistent is ever hashed, sent or enforced. Every
finding is a TablesError that names the row; the first one ends the check, because tables are made by a program.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ztdpu.errors import TablesError

if TYPE_CHECKING:
    from ztdpu.packet.tables import DeviceTables, EndpointTable, NetworkTable, Prefix, Rule

MAX_NETWORKS: Final = 4096
MAX_ENDPOINTS: Final = 1024
MAX_PEERS: Final = 4096
MAX_ROUTES: Final = 65_536
"""Per network."""
MAX_RULES: Final = 32_768
"""Per endpoint."""
MAX_PREFIXES: Final = 8192
"""Per rule, peers and exceptions each."""
MAX_ADDRESSES: Final = 64
"""Per endpoint."""
MAX_FLOW_QUOTA: Final = 1_000_000
MAX_NAME_OCTETS: Final = 253
MAX_RULE_ID: Final = 2**32 - 1
MAX_TIER: Final = 7
MAX_GENERATION: Final = 2**64 - 1
MAX_PSP_VERSION: Final = 1
"""0 and 1 carry confidentiality; 2 and 3 (GMAC) do not."""
ID_OCTETS: Final = 16
LEAST_MTU_OCTETS: Final = 576
"""What RFC 791 asks every host to take; that IPv6 wants 1280 is the policy's affair."""

_ADDRESS_OCTETS: Final = (4, 16)


def check_tables(tables: DeviceTables) -> None:
    """Raise TablesError when `tables` exceed a bound, repeat a key or refer to something that is not there."""
    _check_name(tables.device, "device")
    _check_count(tables.networks, MAX_NETWORKS, "networks")
    _check_count(tables.endpoints, MAX_ENDPOINTS, "endpoints")
    _check_count(tables.peers, MAX_PEERS, "peers")
    for peer in tables.peers:
        _check_name(peer.device, "peer")
        _check_address(peer.underlay_address, f"underlay address of {peer.device}")
    peers = _unique((peer.device for peer in tables.peers), "peer")
    if tables.device in peers:
        raise TablesError(f"device {tables.device} is its own peer")
    networks = _unique((network.network_id for network in tables.networks), "network")
    routes: dict[tuple[bytes, bytes], tuple[str, bytes]] = {}
    for network in tables.networks:
        _check_network(network)
        for route in network.routes:
            if route.device != tables.device and route.device not in peers:
                raise TablesError(f"route {route.address.hex()} leads to {route.device}, which is no peer")
            routes[network.network_id, route.address] = (route.device, route.endpoint_id)
    _unique((endpoint.endpoint_id for endpoint in tables.endpoints), "endpoint")
    for endpoint in tables.endpoints:
        _check_endpoint(endpoint)
        if endpoint.network_id not in networks:
            raise TablesError(f"endpoint {endpoint.name} is in no network of this device")
        if not networks.issuperset(endpoint.peerings):
            raise TablesError(f"endpoint {endpoint.name} is in a peering that is no network of this device")
        for address in endpoint.addresses:
            for network_id in (endpoint.network_id, *endpoint.peerings):
                if routes.get((network_id, address)) != (tables.device, endpoint.endpoint_id):
                    raise TablesError(f"address {address.hex()} of endpoint {endpoint.name} is not routed to it")
    _check_reach(tables)
    _unique((rule.rule_id for endpoint in tables.endpoints for rule in endpoint.all_rules), "rule")


def _check_reach(tables: DeviceTables) -> None:
    """An address means one endpoint to each endpoint, whichever of its networks it is in."""
    networks = {network.network_id: network for network in tables.networks}
    for endpoint in tables.endpoints:
        if not endpoint.peerings:
            continue
        taken = {route.address for route in networks[endpoint.network_id].routes}
        own = {route.endpoint_id for route in networks[endpoint.network_id].routes}
        for network_id in endpoint.peerings:
            partners = {route.address for route in networks[network_id].routes if route.endpoint_id not in own}
            if not taken.isdisjoint(partners):
                twice = min(taken & partners).hex()
                raise TablesError(f"address {twice} is in two networks of endpoint {endpoint.name}")
            taken |= partners


def _check_network(network: NetworkTable) -> None:
    name = f"network of {network.tenant}"
    _check_id(network.network_id, name)
    _check_name(network.tenant, "tenant")
    _check_range(network.generation, 0, MAX_GENERATION, f"generation, {name}")
    _check_range(network.psp_version, 0, MAX_PSP_VERSION, f"PSP version, {name}")
    _check_range(network.flow_quota, 0, MAX_FLOW_QUOTA, f"flow quota, {name}")
    _check_count(network.routes, MAX_ROUTES, f"routes, {name}")
    for route in network.routes:
        _check_address(route.address, f"route, {name}")
        _check_id(route.endpoint_id, f"endpoint of route, {name}")
        _check_name(route.device, f"device of route, {name}")
    _unique((route.address for route in network.routes), f"route, {name}")


def _check_endpoint(endpoint: EndpointTable) -> None:
    _check_name(endpoint.name, "endpoint")
    name = f"endpoint {endpoint.name}"
    _check_id(endpoint.endpoint_id, name)
    _check_range(endpoint.mtu_octets, LEAST_MTU_OCTETS, 0xFFFF, f"MTU, {name}")
    _check_count(endpoint.addresses, MAX_ADDRESSES, f"addresses, {name}")
    _unique(endpoint.addresses, f"address, {name}")
    _check_count(endpoint.peerings, MAX_NETWORKS, f"peerings, {name}")
    _unique((endpoint.network_id, *endpoint.peerings), f"network, {name}")
    for rules in (endpoint.rules, endpoint.audit_rules or ()):
        _check_count(rules, MAX_RULES, f"rules, {name}")
        tier = 0
        for rule in rules:
            _check_rule(rule)
            _check_range(rule.tier, tier, MAX_TIER, f"tier, rule {rule.rule_id}")
            tier = rule.tier


def _check_rule(rule: Rule) -> None:
    _check_range(rule.rule_id, 0, MAX_RULE_ID, "rule id")
    name = f"rule {rule.rule_id}"
    _check_range(rule.protocol, 0, 0xFF, f"protocol, {name}")
    _check_range(rule.port_last, 0, 0xFFFF, f"last port, {name}")
    _check_range(rule.port_first, 0, rule.port_last, f"first port, {name}")
    if not rule.peers:
        raise TablesError(f"{name} has no peers; everywhere is spelled out")
    _check_count(rule.peers, MAX_PREFIXES, f"peers, {name}")
    _check_count(rule.excepted, MAX_PREFIXES, f"exceptions, {name}")
    for prefix in (*rule.peers, *rule.excepted):
        _check_prefix(prefix, name)


def _check_prefix(prefix: Prefix, name: str) -> None:
    _check_address(prefix.address, f"prefix, {name}")
    bits = len(prefix.address) * 8
    _check_range(prefix.length, 0, bits, f"prefix length, {name}")
    if int.from_bytes(prefix.address) & ((1 << (bits - prefix.length)) - 1):
        raise TablesError(f"host bits of a prefix are not zero, {name}")


def _check_range(value: int, lowest: int, highest: int, what: str) -> None:
    if not lowest <= value <= highest:
        raise TablesError(f"{what}: {value} is not within {lowest} and {highest}")


def _check_count(rows: tuple[object, ...], limit: int, what: str) -> None:
    if len(rows) > limit:
        raise TablesError(f"{what}: {len(rows)} are more than {limit}")


def _check_id(value: bytes, what: str) -> None:
    if len(value) != ID_OCTETS:
        raise TablesError(f"{what}: an id has {ID_OCTETS} octets")


def _check_address(value: bytes, what: str) -> None:
    if len(value) not in _ADDRESS_OCTETS:
        raise TablesError(f"{what}: an address has 4 or 16 octets")


def _check_name(value: str, what: str) -> None:
    if not value or len(value) > MAX_NAME_OCTETS or not (value.isascii() and value.isprintable()):
        raise TablesError(f"{what}: a name is 1 to {MAX_NAME_OCTETS} printable ASCII characters")


def _unique(values: Iterable[bytes | str | int], what: str) -> set[bytes | str | int]:
    seen: set[bytes | str | int] = set()
    for value in values:
        if value in seen:
            raise TablesError(f"{what} {value.hex() if isinstance(value, bytes) else value} is listed twice")
        seen.add(value)
    return seen
