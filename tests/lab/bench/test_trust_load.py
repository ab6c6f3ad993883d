"""Enrolments and streams under load, in short: none refused, and the figures are there. The full rounds are soak."""

from __future__ import annotations

import pytest

from ztdpu.lab.bench import enrolment, fleet
from ztdpu.lab.bench.report import _TABLES


def test_sixty_enrolments_beside_idle_and_trickling_connections() -> None:
    found = enrolment.measure(devices=60)
    assert (found["enrolled"], found["refused"]) == (60, [])
    assert 0 < found["median_ms"] <= found["p99_ms"] <= found["worst_ms"]
    assert 0 < found["control_cpu_ms"] < 100
    assert _TABLES["enrolment"](found)


def test_a_push_reaches_every_stream() -> None:
    found = fleet.measure(sizes=(5, 12))
    assert [row["agents"] for row in found["rows"]] == [5, 12]
    assert all(row["opened_per_s"] > 0 and row["control_mib"] > row["empty_mib"] for row in found["rows"])
    assert _TABLES["fleet"](found)


@pytest.mark.soak
def test_five_hundred_enrolments_take_under_a_second_each() -> None:
    found = enrolment.measure(devices=500)
    assert (found["enrolled"], found["refused"]) == (500, [])
    assert found["p99_ms"] < 1000
