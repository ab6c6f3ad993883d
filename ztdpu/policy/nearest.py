"""Which row of an endpoint comes nearest to allowing what is dropped, and why it does not. Pure; for `policy.explain`.

First what would allow it if nothing before it denied it, then the right peer with other ports, then the right port
with other peers, then whatever allows something in that direction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from ztdpu.errors import Location
from ztdpu.model.flow import Direction, Protocol
from ztdpu.model.verdict import Verdict
from ztdpu.packet.rules import RuleIndex
from ztdpu.packet.tables import EndpointTable, Rule
from ztdpu.policy.rows import Origin


def find_nearest(
    table: EndpointTable,
    origins: Mapping[int, Origin],
    direction: Direction,
    peer: bytes,
    protocol: Protocol,
    port: int,
) -> tuple[Location, str] | None:
    """Return its line and a text for people; None when no row allows anything in this direction."""
    rows = [row for row in table.rules if row.direction is direction and row.verdict is Verdict.ALLOW]
    if not rows:
        return None
    for row in rows:
        if RuleIndex([row]).match(direction, peer, protocol, port):
            origin = origins[row.rule_id]
            decider = RuleIndex(table.rules).match(direction, peer, protocol, port)
            first = f"{origins[decider.rule_id]} comes first" if decider else "a Pass before it skips its tier"
            return origin.where, f"{origin} ({origin.where}) would allow it, but {first}"
    same_peer = [row for row in rows if RuleIndex([_any_port(row)]).match(direction, peer, row.protocol, 0)]
    if same_peer:
        best = min(same_peer, key=lambda row: _distance(row, protocol, port))
        origin = origins[best.rule_id]
        same_line = [row for row in same_peer if origins[row.rule_id].where == origin.where]
        return origin.where, f"nearest is {origin.where}, which allows {_ports(same_line)}"
    best = min(rows, key=lambda row: _distance(row, protocol, port))
    origin = origins[best.rule_id]
    return origin.where, f"nearest is {origin.where}, for other peers"


def _any_port(row: Rule) -> Rule:
    return dataclasses.replace(row, port_first=0, port_last=65535)


def _distance(row: Rule, protocol: Protocol, port: int) -> tuple[bool, int]:
    """Another protocol is further away than any port."""
    outside = max(row.port_first - port, port - row.port_last, 0)
    return row.protocol not in (Protocol.ANY, protocol), outside


def _ports(rows: Sequence[Rule]) -> str:
    """What the rows of one policy line allow."""
    words = []
    for row in rows:
        name = "everything" if row.protocol == Protocol.ANY else Protocol(row.protocol).name.lower()
        if (row.port_first, row.port_last) == (0, 65535):
            span = ""
        elif row.port_first == row.port_last:
            span = f"{row.port_first}/"
        else:
            span = f"{row.port_first}-{row.port_last}/"
        words.append(f"{span}{name}")
    return ", ".join(dict.fromkeys(words))
