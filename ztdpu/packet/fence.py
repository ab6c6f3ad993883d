"""One endpoint's part of the firewall: its addresses, its rules, its flows.

Made by `packet.firewall` from the tables, one per endpoint; a swap makes new ones and carries the flows over.
Outcomes are made once per rule and shared by all its packets.

Policies in audit mode have no row among the rules that decide. A second set of rows, as if they were enforced, is asked
beside, for first packets only: where the two differ the outcome says so, and what happens stays the same.
"""

from __future__ import annotations

from typing import Final

from ztdpu.model.flow import Direction
from ztdpu.model.verdict import Outcome, Reason, Verdict
from ztdpu.packet.flows import EndpointFlows
from ztdpu.packet.rules import RuleIndex
from ztdpu.packet.tables import EndpointTable, NetworkTable, Rule
from ztdpu.packet.ways import Way

NO_RULE: Final = Outcome(verdict=Verdict.DROP, reason=Reason.NO_RULE)


class Fence:
    """What one endpoint may send and get."""

    __slots__ = (
        "_established", "_openings", "_related", "addresses", "audit", "flows", "network", "rules", "table", "ways",
    )  # fmt: skip

    def __init__(
        self,
        table: EndpointTable,
        network: NetworkTable,
        ways: dict[bytes, Way],
        rules: RuleIndex,
        audit: RuleIndex | None = None,
    ) -> None:
        self.table = table
        self.network = network
        self.ways = ways
        """Every overlay address that exists for this endpoint."""
        self.rules = rules
        self.addresses = frozenset(table.addresses)
        self.flows = EndpointFlows(network.network_id)
        self.audit = audit
        """The rules there would be if policies in audit mode were enforced."""
        self._openings: dict[int, Outcome] = {}
        self._established: dict[tuple[Verdict, int | None], Outcome] = {}
        self._related: dict[tuple[Verdict, int | None], Outcome] = {}

    def judge(self, direction: Direction, peer: bytes, protocol: int, port: int) -> Outcome:
        """Return what the rules say about a first packet: they allow or deny it, or none speaks of it."""
        rule = self.rules.match(direction, peer, protocol, port)
        if rule is None:
            outcome = NO_RULE
        else:
            known = self._openings.get(rule.rule_id)
            outcome = known or self._openings.setdefault(rule.rule_id, _opening(rule))
        if self.audit is None:
            return outcome
        return _audited(outcome, self.audit.match(direction, peer, protocol, port))

    def established(self, opening: Outcome) -> Outcome:
        """Return the outcome of all later packets of a flow that was opened with `opening`."""
        key = opening.verdict, opening.rule_id
        outcome = self._established.get(key)
        if outcome is None:
            outcome = self._established[key] = Outcome(
                verdict=opening.verdict, reason=Reason.FLOW_ESTABLISHED, rule_id=opening.rule_id
            )
        return outcome

    def related(self, established: Outcome) -> Outcome:
        """Return the outcome of an ICMP error about a flow whose packets get `established`."""
        key = established.verdict, established.rule_id
        outcome = self._related.get(key)
        if outcome is None:
            outcome = self._related[key] = Outcome(
                verdict=established.verdict, reason=Reason.FLOW_RELATED, rule_id=established.rule_id
            )
        return outcome


def _opening(rule: Rule) -> Outcome:
    """AUDIT as the verdict of a row passes, but names the reason for which it would be dropped."""
    verdict = rule.verdict or Verdict.DROP
    reason = Reason.RULE_ALLOWED if verdict is Verdict.ALLOW else Reason.RULE_DENIED
    return Outcome(verdict=verdict, reason=reason, rule_id=rule.rule_id)


def _audited(outcome: Outcome, shadow: Rule | None) -> Outcome:
    """Say where the rows for auditing differ; whether the packet passes stays as it is."""
    passes = outcome.verdict is not Verdict.DROP
    would_pass = shadow is not None and shadow.verdict is not Verdict.DROP
    if passes == would_pass:
        return outcome
    return Outcome(
        verdict=Verdict.AUDIT if passes else Verdict.DROP,
        reason=Reason.AUDIT_WOULD_DROP if passes else Reason.AUDIT_WOULD_ALLOW,
        rule_id=shadow.rule_id if shadow is not None else None,
    )
