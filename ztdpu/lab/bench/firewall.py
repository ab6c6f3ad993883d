"""Section firewall: what one packet costs at the fence, in process, without kernel and without sealing.

An established flow must cost one look-up however many rules there are; the first packet of a flow and a packet
that nothing allows go through the index of rules.
"""

from __future__ import annotations

import struct
from ipaddress import ip_address
from typing import Any, Final

from ztdpu.errors import StateError
from ztdpu.lab.bench.figures import time_calls
from ztdpu.model.flow import Direction
from ztdpu.model.verdict import Verdict
from ztdpu.packet.checksum import checksum
from ztdpu.packet.firewall import Firewall
from ztdpu.packet.headers import Packet, parse
from ztdpu.packet.rules import RuleIndex
from ztdpu.packet.tables import DeviceTables, EndpointTable, NetworkTable, PeerTable, Prefix, Route, Rule

RULES: Final = (10, 10_000)
_ENDPOINT, _REMOTE, _NETWORK = b"endpoint".ljust(16), b"remote".ljust(16), b"network".ljust(16)
_OWN, _PEER = ip_address("10.1.0.10").packed, ip_address("10.1.0.11").packed
_TCP: Final = 6
_SYN, _ACK = 0x02, 0x10
_ALLOWED_PORT, _DENIED_PORT, _SOURCE_PORT = 60_000, 61_000, 40_000


def measure(*, seconds: float) -> dict[str, Any]:
    """Time packets at a firewall with few and with many rules; `seconds` is for the whole section."""
    share = seconds / (len(RULES) * 3 + 1)
    return {"rows": [_row(count, share) for count in RULES], "parse_us": _parse(share)}


def make_rules(count: int) -> tuple[Rule, ...]:
    """Return `count` rules of which only the last allows traffic to the far end: the worst place it can have."""
    fillers = [
        Rule(
            rule_id=number + 1, direction=Direction.EGRESS, verdict=Verdict.ALLOW, protocol=_TCP,
            port_first=1_024 + number % 10_000, port_last=1_024 + number % 10_000,
            peers=(Prefix(address=(0x0A40_0000 + number).to_bytes(4, "big"), length=32),),
        )
        for number in range(count - 1)
    ]  # fmt: skip
    last = Rule(
        rule_id=count, direction=Direction.EGRESS, verdict=Verdict.ALLOW, protocol=_TCP, port_first=_ALLOWED_PORT,
        port_last=_ALLOWED_PORT, peers=(Prefix(address=_PEER, length=32),),
    )  # fmt: skip
    return (*fillers, last)


def make_tables(rules: tuple[Rule, ...]) -> DeviceTables:
    """Return tables of a device with one endpoint that talks to one on another device."""
    routes = (
        Route(address=_OWN, device="dpu-0", endpoint_id=_ENDPOINT),
        Route(address=_PEER, device="dpu-1", endpoint_id=_REMOTE),
    )
    network = NetworkTable(
        network_id=_NETWORK, generation=1, tenant="blue", psp_version=1, flow_quota=65_536, routes=routes
    )
    endpoint = EndpointTable(
        endpoint_id=_ENDPOINT, name="blue-0", network_id=_NETWORK, addresses=(_OWN,), mtu_octets=8_940, rules=rules
    )
    peer = PeerTable(device="dpu-1", underlay_address=ip_address("10.90.0.11").packed)
    return DeviceTables(device="dpu-0", networks=(network,), endpoints=(endpoint,), peers=(peer,))


def make_packet(port: int, flags: int, *, answers: bool = False, payload_octets: int = 64) -> bytes:
    """Return an IPv4 TCP packet from the own endpoint to `port` of the far one, or the way back."""
    total = 40 + payload_octets
    ends = (_PEER, _OWN) if answers else (_OWN, _PEER)
    ports = (port, _SOURCE_PORT) if answers else (_SOURCE_PORT, port)
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, total, 0, 0x4000, 64, _TCP, 0, *ends)
    sum_ = checksum(sum(struct.unpack("!10H", header)))
    header = header[:10] + sum_.to_bytes(2, "big") + header[12:]
    return header + struct.pack("!HHIIBBHHH", *ports, 1, 1, 5 << 4, flags, 512, 0, 0) + bytes(payload_octets)


def parsed(octets: bytes) -> Packet:
    """Return the packet as the pipeline sees it. StateError when it is not one that passes."""
    packet = Packet()
    reason = parse(packet, octets, 0, len(octets))
    if reason is not None:
        raise StateError(f"the bench's own packet is refused: {reason}")
    return packet


def _parse(seconds: float) -> dict[str, Any]:
    octets, packet = make_packet(_ALLOWED_PORT, _ACK), Packet()
    return time_calls(lambda: parse(packet, octets, 0, len(octets)), seconds=seconds)


def _row(count: int, seconds: float) -> dict[str, Any]:
    rules = make_rules(count)
    wall = Firewall(make_tables(rules))
    _require(wall, parsed(make_packet(_ALLOWED_PORT, _SYN)), Verdict.ALLOW)
    wall.ingress(_ENDPOINT, parsed(make_packet(_ALLOWED_PORT, _SYN | _ACK, answers=True)), 1.0)
    established = parsed(make_packet(_ALLOWED_PORT, _ACK))
    denied = parsed(make_packet(_DENIED_PORT, _SYN))
    _require(wall, established, Verdict.ALLOW)
    _require(wall, denied, Verdict.DROP)
    index = RuleIndex(rules)
    return {
        "rules": count,
        "established_us": time_calls(lambda: wall.egress(_ENDPOINT, established, 1.0), seconds=seconds),
        "denied_us": time_calls(lambda: wall.egress(_ENDPOINT, denied, 1.0), seconds=seconds),
        "match_us": time_calls(lambda: index.match(Direction.EGRESS, _PEER, _TCP, _ALLOWED_PORT), seconds=seconds),
    }


def _require(wall: Firewall, packet: Packet, verdict: Verdict) -> None:
    """What is timed must be what it is called."""
    outcome = wall.egress(_ENDPOINT, packet, 1.0)
    if outcome.verdict is not verdict:
        raise StateError(f"the bench's own firewall says {outcome.reason}")
