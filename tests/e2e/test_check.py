"""`ztdpu check connectivity` on a running lab: all that may pass does, no attack does, and a fault shows."""

import json
import os

import pytest

from ztdpu.lab.connectivity import allowed_flows, try_flows
from ztdpu.policy.load import load_directory

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


def check(lab, *options, held=True):
    ended = lab.ztdpu("check", "connectivity", "--state", str(lab.state), *options, check=False)
    assert ended.returncode == (0 if held else 1), ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture
def spare_lab(new_lab):
    return new_lab("--stranger", "dpu-x").up()


@pytest.mark.soak
def test_everything_holds_twice_and_what_a_revoked_device_takes_along_is_counted(spare_lab):
    result = json.loads(check(spare_lab, "-o", "json"))
    assert result["ok"]
    assert len(result["flows"]) == 24
    assert all(flow["seen"] == flow["delivered"] == flow["attempts"] == 5 for flow in result["flows"])
    assert len(result["attacks"]) == 10
    assert all(attack["delivered"] == 0 < attack["seen"] == attack["attempts"] for attack in result["attacks"])
    assert result["skipped"] == {}
    table = check(spare_lab).splitlines()
    assert table[0].split("  ")[0] == "FLOW OR ATTACK"
    assert max(map(len, table)) <= 80
    assert not [line for line in table if "\u2026" in line]

    spare_lab.ztdpu("device", "revoke", "dpu-1", "--reason", "test", "--yes")
    flows = list(allowed_flows(load_directory(spare_lab.plan.policy), spare_lab.plan))
    with spare_lab.crew() as crew:
        assert [(count.seen, count.delivered) for count in try_flows(crew, flows)] == [(5, 0)] * 24


def test_without_a_spare_device_two_attacks_are_skipped_by_name(lab):
    result = json.loads(check(lab, "-o", "json"))
    assert set(result["skipped"]) == {"altered-firmware", "relayed-attestation"}
    assert len(result["attacks"]) == 8
