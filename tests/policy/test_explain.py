"""Explanations: each verdict with its station, reason and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ztdpu.errors import NotFoundError, UsageError
from ztdpu.model.flow import Protocol
from ztdpu.model.verdict import Reason, Verdict
from ztdpu.policy.example import EXAMPLE_POLICIES
from ztdpu.policy.explain import Explanation, explain, named_ports, parse_port
from ztdpu.policy.load import load_directory


def ask(repository: Path, source: str, destination: str, port: str) -> Explanation:
    protocol, number = parse_port(port)
    return explain(load_directory(repository), source=source, destination=destination, protocol=protocol, port=number)


def line_of(repository: Path, words: str) -> int:
    return (repository / "cluster.yaml").read_text().split(words)[0].count("\n") + 1


def test_allowed_with_the_lines_that_allow(repository: Path) -> None:
    answer = ask(repository, "blue-0", "blue-1", "5005/tcp")
    assert answer.verdict is Verdict.ALLOW
    assert [step.station for step in answer.steps] == ["route", "egress", "ingress"]
    egress, ingress = answer.steps[1:]
    assert egress.where is not None
    assert egress.where.line == line_of(repository, "- to:")
    assert ingress.where is not None
    assert ingress.where.line == line_of(repository, "- from:")


def test_denied_at_the_destination(repository: Path) -> None:
    answer = ask(repository, "blue-0", "blue-1", "6000/tcp")
    assert (answer.verdict, answer.reason) == (Verdict.DROP, Reason.NO_RULE)
    assert [step.station for step in answer.steps] == ["route", "egress", "ingress"]
    assert "allows 5000-5009/tcp" in answer.steps[-1].text, "the nearest line helps"


def test_denied_at_the_source_asks_no_further(repository: Path) -> None:
    answer = ask(repository, "blue-0", "blue-1", "22/tcp")
    assert [step.station for step in answer.steps] == ["route", "egress"]
    assert "allows 5000-6000/tcp" in answer.steps[-1].text


def test_another_tenant_does_not_exist_from_here(repository: Path) -> None:
    answer = ask(repository, "blue-0", "red-0", "5000/tcp")
    assert (answer.verdict, answer.reason) == (Verdict.DROP, Reason.NO_ROUTE)
    assert "not in blue's network; there, 10.1.0.10 is blue-0" in answer.steps[-1].text
    answer = ask(repository, "blue-0", "red-1", "5000/tcp")
    assert "there, nobody has 10.1.0.12" in answer.steps[-1].text


def test_addresses_both_families_and_icmp(repository: Path) -> None:
    assert ask(repository, "blue-0", "10.1.0.11", "5000/tcp").verdict is Verdict.ALLOW
    assert ask(repository, "blue-0", "fd00:1::11", "5000/tcp").verdict is Verdict.ALLOW
    nowhere = ask(repository, "blue-0", "10.9.9.9", "5000/tcp")
    assert nowhere.reason is Reason.NO_RULE, "the fence asks rules first, and counts it as theirs"
    assert "nobody in blue's network has 10.9.9.9" in nowhere.steps[0].text
    assert ask(repository, "blue-0", "10.1.0.10", "5000/tcp").reason is Reason.MARTIAN
    icmp = ask(repository, "blue-0", "fd00:1::11", "icmp")
    assert icmp.protocol == "icmpv6"
    assert icmp.steps[-1].station == "ingress", "egress allows ICMP, ingress does not"


def test_unknown_names_and_families(repository: Path) -> None:
    with pytest.raises(NotFoundError, match="no endpoint 'blue-7'"):
        ask(repository, "blue-7", "blue-0", "1/tcp")
    with pytest.raises(NotFoundError, match="no endpoint 'blue-7'"):
        ask(repository, "blue-0", "blue-7", "1/tcp")
    with pytest.raises(UsageError, match="no address of the same family"):
        ask(repository, "red-0", "fd00:1::11", "1/tcp")


@pytest.mark.parametrize(
    ("text", "meaning"),
    [("22/tcp", (Protocol.TCP, 22)), ("53/UDP", (Protocol.UDP, 53)), ("icmp", (Protocol.ICMP, 0))],
)
def test_ports_are_read(text: str, meaning: tuple[Protocol, int]) -> None:
    assert parse_port(text) == meaning


@pytest.mark.parametrize("text", ["", "tcp", "0/tcp", "65536/tcp", "22/sctp", "22/icmp", "x/tcp", "-1/tcp"])
def test_odd_ports_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no port"):
        parse_port(text)


def test_a_port_may_be_named_as_the_destination_names_it() -> None:
    cluster = load_directory(EXAMPLE_POLICIES)
    named = named_ports(cluster, "green-0")
    assert parse_port("nfs", named) == parse_port("nfs/tcp", named) == (Protocol.TCP, 2049)
    assert named_ports(cluster, "10.2.0.10") == named
    with pytest.raises(UsageError) as refused:
        parse_port("nsf", named)
    assert "nfs/tcp" in refused.value.remedy
    with pytest.raises(UsageError, match="is no port"):
        parse_port("nfs", named_ports(cluster, "blue-0"))


def test_a_port_out_of_range_is_told_the_range() -> None:
    with pytest.raises(UsageError) as refused:
        parse_port("99999/tcp")
    assert "1 to 65535" in refused.value.remedy
