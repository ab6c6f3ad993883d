"""The table of an appraisal: every place once, and no line that disagrees with the findings."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ztdpu.model.attestation import CheckResult
from ztdpu.trust.reference import AllowedDigests
from ztdpu.trust.spdm.evidence import MeasurementBlock


def lines(appraisal):
    return {check.place: check for check in appraisal.checks}


def test_a_good_device_shows_every_index_and_level(world):
    table = lines(world.appraise())
    assert list(table) == [*map(str, range(1, 11)), "254", "level 4", "level 5"]
    assert {place for place, check in table.items() if check.result is CheckResult.UNJUDGED} == {"5", "6"}
    assert table["1"].expected == (">= 1.0.0",)
    assert table["1"].seen == "1.0.0"
    assert table["254"].seen == "normal, debug disabled-since-boot"
    assert table["3"].seen in table["3"].expected
    assert all(check.source for check in table.values() if check.result is CheckResult.EXPECTED)


def test_lines_say_what_the_findings_say(world):
    root = world.boot(nic_firmware="a", version="0.9.0", device_mode="debug")
    appraisal = world.appraise(world.collect(root), highest_versions={"nic-rollback-counters": (9,)})
    table = lines(appraisal)
    bad = {place for place, check in table.items() if check.result is CheckResult.UNEXPECTED}
    assert bad == {"1", "3", "5", "254", "level 5"}
    assert table["1"].seen == "0.9.0"
    assert table["5"].expected == (">= 9",)
    assert table["5"].source == "device record"


def test_vulnerable_and_missing(world):
    evidence = world.collect(world.boot())
    shown = next(block.value.hex() for block in evidence.blocks if block.index == 3)
    allowed = AllowedDigests(component="nic", digests=("0" * 128,), vulnerable_digests=(shown,), source=world.source)
    gone = AllowedDigests(component="bmc", digests=("0" * 128,), source=world.source)
    references = dataclasses.replace(
        world.references, measurements={**world.references.measurements, 3: allowed, 40: gone}
    )
    table = lines(world.appraise(evidence, references=references))
    assert table["3"].result is CheckResult.VULNERABLE
    assert table["40"].result is CheckResult.MISSING
    assert table["40"].component == "bmc"


def test_an_index_that_nobody_knows_is_shown_and_not_judged(world):
    blocks = list(world.collect(world.boot()).blocks)
    further = MeasurementBlock(index=11, value_type=3, raw=False, value=b"x" * 64)
    table = lines(world.appraise(world.collect_blocks(world.boot(), [*blocks, further])))
    assert (table["11"].component, table["11"].result) == ("index-11", CheckResult.UNJUDGED)


@pytest.mark.parametrize("index", [1, 254])
def test_what_is_left_out_is_a_line(world, index):
    evidence = world.collect(world.boot())
    rest = [block for block in evidence.blocks if block.index != index]
    table = lines(world.appraise(world.collect_blocks(world.boot(), rest)))
    assert table[str(index)].result is CheckResult.MISSING
    assert table[str(index)].seen == ""


@settings(max_examples=20, deadline=None)
@given(altered=st.sets(st.sampled_from(("nic-firmware", "arm-firmware", "psc-firmware", "nic-security-configuration"))))
def test_bad_lines_are_exactly_the_indices_of_findings(world, altered):
    root = world.boot(**{name.replace("-", "_"): "altered" for name in altered})
    appraisal = world.appraise(world.collect(root))
    bad = {int(c.place) for c in appraisal.checks if c.result is CheckResult.UNEXPECTED and c.place.isdecimal()}
    assert bad == {finding.index for finding in appraisal.findings if finding.index is not None}
