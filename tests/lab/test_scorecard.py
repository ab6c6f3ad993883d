"""The demo's judgement: good figures pass, every bad one is named."""

import pytest

from ztdpu.lab.scorecard import Scorecard
from ztdpu.model.device import DeviceState, DeviceStatus

REPORT = {
    "ranks": 2, "steps": 600, "loss_first": 2.5, "loss_last": 0.1, "accuracy": 0.96,
    "max_abs_diff_to_single_process": 1e-15, "seconds": 2.0,
}  # fmt: skip
ATTACK = {
    "name": "cross-tenant-tcp", "expected": "no_rule", "reason": "no_rule", "attempts": 20, "seen": 20, "delivered": 0,
    "twin_delivered": 20,
}  # fmt: skip
WIRE = {"psp_packets": 900, "clear_packets": 0, "canary_hits": 0, "clear_samples": [], "lost": 0}
FENCE = {"canary_hits": 200}
MS = 1_000_000


def device(**changes):
    values = {
        "name": "dpu-0", "state": DeviceState.AFFIRMING, "since_unix_ms": 0, "reason": "", "ready": True,
        "tier": "affirming", "lease_s": 55.55, "generation_wanted": 1, "generation_applied": 1, "key_epochs": {},
        "underlay_address": "", "profile": "", "device_id_sha256": "", "boot_counter": 1, "version": 1,
    }  # fmt: skip
    return DeviceStatus(**values | changes)


def test_good_figures_are_ok_and_have_the_promised_shape():
    score = Scorecard()
    score.note_devices([device()])
    score.note_training("blue", [REPORT, REPORT])
    score.note_attack(**ATTACK)
    score.note_wire(WIRE, FENCE)
    score.note_revocation("dpu-1", [[n * MS for n in range(1000, 2042)]] * 2, 2000 * MS)
    assert score.note_bystander("red", 700, [REPORT, REPORT]) == "red trains on, 700 steps since"
    document = score.document(seconds=31.26)
    assert document == {
        "ok": True,
        "seconds": 31.3,
        "fabric": "netns",
        "isolation": "full",
        "devices": [{"name": "dpu-0", "tier": "affirming", "lease_s": 55.5}],
        "tenants": {"blue": {key: value for key, value in REPORT.items() if key != "seconds"}},
        "attacks": [ATTACK],
        "wire": {"psp_packets": 900, "clear_packets": 0, "canary_hits": 0, "canary_hits_without_encryption": 200},
        "revocation": {
            "device": "dpu-1", "pps_before": 1001, "ack_to_last_packet_ms": 41.0, "packets_after_ack": 82,
            "red_steps_during_revocation": 700, "red_accuracy": 0.96,
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"seen": 19},
        {"delivered": 1},
        {"twin_delivered": 19},
        {"reason": ""},
        {"reason": "no_route"},
        {"attempts": 0, "seen": 0},
    ],
)
def test_an_attack_that_proves_nothing_is_a_fault(change):
    score = Scorecard()
    score.note_attack(**ATTACK | change)
    assert not score.document(seconds=1)["ok"]


@pytest.mark.parametrize("change", [{"accuracy": 0.89}, {"max_abs_diff_to_single_process": 1e-4}, {"ranks": 3}])
def test_a_training_that_went_wrong_is_a_fault(change):
    score = Scorecard()
    score.note_training("blue", [REPORT | change, REPORT])
    assert len(score.faults) == 1


@pytest.mark.parametrize(
    ("steps", "change"),
    [(0, {}), (700, {"accuracy": 0.89}), (700, {"max_abs_diff_to_single_process": 1e-4})],
)
def test_a_training_that_a_revocation_elsewhere_disturbs_is_a_fault(steps, change):
    score = Scorecard()
    score.note_bystander("red", steps, [REPORT | change, REPORT])
    assert len(score.faults) == 1


@pytest.mark.parametrize(
    ("wire", "fence"),
    [
        ({"psp_packets": 0}, {}),
        ({"clear_packets": 1}, {}),
        ({"canary_hits": 1}, {}),
        ({"lost": 1}, {}),
        ({}, {"canary_hits": 0}),
    ],
)
def test_a_wire_that_shows_too_much_or_proves_nothing_is_a_fault(wire, fence):
    score = Scorecard()
    score.note_wire(WIRE | wire, FENCE | fence)
    assert len(score.faults) == 1


def test_a_slow_or_unproven_revocation_is_a_fault():
    slow, thin = Scorecard(), Scorecard()
    slow.note_revocation("dpu-1", [[n * MS for n in range(1000, 3002)]], 2000 * MS)
    assert slow.revocation["ack_to_last_packet_ms"] == 1001.0
    assert len(slow.faults) == 1
    thin.note_revocation("dpu-1", [[n * MS for n in range(1000, 2000)], []], 2000 * MS)
    assert thin.revocation["packets_after_ack"] == 0
    assert len(thin.faults) == 1


def test_a_device_without_lease_or_tier_is_a_fault():
    score = Scorecard()
    score.note_devices([device(lease_s=0.0), device(tier="warning")])
    assert len(score.faults) == 2
    empty = Scorecard()
    empty.note_devices([])
    assert len(empty.faults) == 1
