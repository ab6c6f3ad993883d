"""One endpoint's part of the firewall: its addresses, its rules, its flows.

Made by `packet.firewall` from the tables, one per endpoint; a swap makes new ones and carries the flows over.
Outcomes are made once per rule and shared by all its packets.
"""

from __future__ import annotations

from typing import Final

from ztdpu.model.flow import Direction
from ztdpu.model.verdict import Outcome, Reason, Verdict
from ztdpu.packet.flows import EndpointFlows
from ztdpu.packet.rules import RuleIndex
from ztdpu.packet.tables import EndpointTable, NetworkTable, Route, Rule

NO_RULE: Final = Outcome(verdict=Verdict.DROP, reason=Reason.NO_RULE)


class Fence:
    """What one endpoint may send and get."""

    __slots__ = ("_established", "_openings", "_related", "addresses", "flows", "network", "routes", "rules", "table")

    def __init__(
        self, table: EndpointTable, network: NetworkTable, routes: dict[bytes, Route], rules: RuleIndex
    ) -> None:
        self.table = table
        self.network = network
        self.routes = routes
        """Overlay address to route, of the endpoint's network."""
        self.rules = rules
        self.addresses = frozenset(table.addresses)
        self.flows = EndpointFlows(network.network_id)
        self._openings: dict[int, Outcome] = {}
        self._established: dict[int, Outcome] = {}
        self._related: dict[int | None, Outcome] = {}

    def judge(self, direction: Direction, peer: bytes, protocol: int, port: int) -> Outcome:
        """Return what the rules say about a first packet: they allow, audit or deny it, or none speaks of it."""
        rule = self.rules.match(direction, peer, protocol, port)
        if rule is None:
            return NO_RULE
        outcome = self._openings.get(rule.rule_id)
        if outcome is None:
            outcome = self._openings[rule.rule_id] = _opening(rule)
        return outcome

    def established(self, opening: Outcome) -> Outcome:
        """Return the outcome of all later packets of a flow that was opened with `opening`."""
        rule_id = opening.rule_id or 0
        outcome = self._established.get(rule_id)
        if outcome is None:
            outcome = self._established[rule_id] = Outcome(
                verdict=opening.verdict, reason=Reason.FLOW_ESTABLISHED, rule_id=opening.rule_id
            )
        return outcome

    def related(self, established: Outcome) -> Outcome:
        """Return the outcome of an ICMP error about a flow whose packets get `established`."""
        outcome = self._related.get(established.rule_id)
        if outcome is None:
            outcome = self._related[established.rule_id] = Outcome(
                verdict=established.verdict, reason=Reason.FLOW_RELATED, rule_id=established.rule_id
            )
        return outcome


def _opening(rule: Rule) -> Outcome:
    """AUDIT passes, but names the reason for which it would be dropped."""
    reason = Reason.RULE_ALLOWED if rule.verdict is Verdict.ALLOW else Reason.RULE_DENIED
    return Outcome(verdict=rule.verdict, reason=reason, rule_id=rule.rule_id)
