"""`explain` says of random policies what happens to real packets at real firewalls."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.policy.worlds import PORTS, Fabric, clusters, questions, text
from ztdpu.model.flow import Protocol
from ztdpu.model.verdict import Verdict
from ztdpu.policy.cluster import Cluster
from ztdpu.policy.explain import Explainer

SEEN: dict[str, int] = {}


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cluster=clusters(), data=st.data())
def test_explain_equals_the_packet_path(cluster: Cluster, data: st.DataObject) -> None:
    fabric, explainer = Fabric(cluster), Explainer(cluster)
    asked = list(questions(cluster))
    asked += 3 * [one for one in asked if cluster.endpoints[one[0]].tenant == cluster.endpoints[one[1]].tenant]
    for _ in range(8):
        source, _, own, other, protocol = data.draw(st.sampled_from(asked))
        port = 0 if protocol in (Protocol.ICMP, Protocol.ICMPV6) else data.draw(st.sampled_from(PORTS))
        outcome, holder = fabric.send(source, own, other, protocol, port)
        answer = explainer.explain(source=source, destination=text(other), protocol=protocol, port=port)
        said = f"{source} {text(own)} -> {text(other)} {port}/{protocol.name}: {answer}"
        assert (answer.verdict, answer.reason) == (outcome.verdict, outcome.reason), said
        if outcome.verdict is not Verdict.DROP:
            assert f"is {holder} on" in answer.steps[0].text, said
        SEEN[outcome.reason] = SEEN.get(outcome.reason, 0) + 1


def test_the_random_policies_above_opened_and_closed_enough() -> None:
    """A property over packets that are all dropped would hold for a fence without a gate."""
    assert SEEN.get("rule_allowed", 0) > 20, SEEN
    assert len(SEEN) > 3, SEEN
