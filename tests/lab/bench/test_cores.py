"""Sections that run in process: each once, shortly; shape and plausibility of what they say, never speed."""

import pytest

from ztdpu.lab.bench import appraisal, exchange, firewall, policy, sealing
from ztdpu.lab.bench.report import _TABLES
from ztdpu.model.verdict import Verdict
from ztdpu.packet.firewall import Firewall
from ztdpu.policy.load import load_directory


@pytest.mark.parametrize(
    ("section", "measure"),
    [
        ("appraisal", lambda: appraisal.measure(seconds=0.01)),
        ("exchange", lambda: exchange.measure(seconds=0.01)),
        ("firewall", lambda: firewall.measure(seconds=0.01)),
        ("sealing", lambda: sealing.measure(seconds=0.01)),
    ],
)
def test_a_section_fills_its_tables(section, measure):
    found = measure()
    for _, heads, rows, _ in _TABLES[section](found):
        assert rows
        assert {len(row) for row in rows} == {len(heads)}


def test_the_attestation_that_is_timed_is_a_whole_one():
    bench = appraisal.Attestation()
    bench.attest()
    bench.attest()


def test_an_exchange_carries_all_networks():
    small, large = exchange.Pair(1), exchange.Pair(4)
    assert list(small.run()) == list(exchange._STEPS)
    large.run()
    assert large.octets["offer"] > small.octets["offer"]


def test_many_rules_are_that_many_rows(tmp_path):
    for name, text in policy.many_rules_documents(120).items():
        (tmp_path / name).write_text(text)
    assert len(load_directory(tmp_path).network_policies) == 3
    row = policy._row("x", policy.many_rules_documents(120), 1)
    assert (row["devices"], row["rules_on_first"]) == (2, 120)


def test_the_example_grows(tmp_path):
    for name, text in policy.example_documents(5).items():
        (tmp_path / name).write_text(text)
    assert len(load_directory(tmp_path).devices) == 5


def test_only_the_last_rule_allows_the_benchs_packet():
    syn = firewall.parsed(firewall.make_packet(60_000, 0x02))
    for rules, verdict in ((firewall.make_rules(50), Verdict.ALLOW), (firewall.make_rules(50)[:-1], Verdict.DROP)):
        outcome = Firewall(firewall.make_tables(rules)).egress(firewall._ENDPOINT, syn, 1.0)
        assert outcome.verdict is verdict
