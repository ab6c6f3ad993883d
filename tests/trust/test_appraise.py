"""Appraisal: what does not verify raises, what differs is found, all of it, with its place."""

from __future__ import annotations

import dataclasses
import random
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ztdpu.errors import CertificateError, EvidenceError, Location, PolicyError, ZtdpuError
from ztdpu.model.attestation import Dimension, Tier
from ztdpu.trust.firmware import Firmware, default_firmware, measure
from ztdpu.trust.manufacture import create_manufacturer
from ztdpu.trust.reference import (
    AllowedDigests,
    AppraisalPolicy,
    DebugState,
    MinimumVersion,
    OperationalMode,
    ReferenceValues,
)
from ztdpu.trust.spdm.evidence import MeasurementBlock

PLACES = {"version": 1, "nic-rollback-counters": 5, "arm-rollback-counters": 6}
"""Component -> measurement index of the profile."""


@pytest.fixture(scope="module")
def evidence(world):
    return world.collect(world.boot())


def codes(appraisal):
    return [(finding.code, finding.component, finding.index) for finding in appraisal.findings]


def test_good_device_is_affirmed_and_only_at_boot(world, evidence):
    appraisal = world.appraise(evidence)
    assert appraisal.tier is Tier.AFFIRMING
    assert appraisal.findings == ()
    assert appraisal.vector == {
        Dimension.INSTANCE_IDENTITY: 2,
        Dimension.HARDWARE: 2,
        Dimension.EXECUTABLES: 3,
        Dimension.CONFIGURATION: 2,
    }
    assert appraisal.boot_counter == 7
    assert appraisal.ueid == b"\x01" + appraisal.device_id_sha256
    assert appraisal.versions["version"] == (1, 0, 0)
    assert set(appraisal.fwids) == {4, 5}


def test_same_arguments_give_the_same_appraisal(world, evidence):
    first, second = world.appraise(evidence), world.appraise(evidence)
    assert (first.vector, first.findings, first.ueid) == (second.vector, second.findings, second.ueid)


# --- what does not verify ------------------------------------------------------------------------


def test_replayed_evidence_is_refused(world, evidence):
    for _ in range(1000):
        with pytest.raises(EvidenceError, match="nonce"):
            world.appraise(evidence, nonce=world.random.randbytes(32))
    assert world.appraise(evidence).tier is Tier.AFFIRMING


def test_pinned_device_is_accepted_and_another_refused(world, evidence):
    pinned = world.appraise(evidence).device_id_sha256
    assert world.appraise(evidence, pinned_device_id_sha256=pinned).tier is Tier.AFFIRMING
    relayed = world.collect(world.boot("dpu-1"))
    with pytest.raises(CertificateError, match="another device"):
        world.appraise(relayed, pinned_device_id_sha256=pinned)


def test_validity_has_no_slack(world, evidence):
    start = world.now - timedelta(days=300)
    assert world.appraise(evidence, now=start).tier is Tier.AFFIRMING
    with pytest.raises(CertificateError, match="not valid before"):
        world.appraise(evidence, now=start - timedelta(seconds=1))


def test_other_root_is_refused(world, evidence):
    other = create_manufacturer(profile=world.profile, random=world.random.randbytes, now=world.now)
    with pytest.raises(CertificateError, match="pinned"):
        world.appraise(evidence, manufacturer_roots=(other.root,))
    assert world.appraise(evidence, manufacturer_roots=(other.root, *world.roots)).tier is Tier.AFFIRMING
    with pytest.raises(CertificateError, match="pinned"):
        world.appraise(evidence, manufacturer_roots=())


def test_references_of_another_profile_are_refused(world, evidence):
    with pytest.raises(EvidenceError, match="profile"):
        world.appraise(evidence, references=dataclasses.replace(world.references, profile="generic"))


def test_blocks_beside_the_signed_messages_are_refused(world, evidence):
    altered = world.collect(world.boot(nic_firmware="altered"))
    with pytest.raises(EvidenceError, match="differ from the messages"):
        world.appraise(dataclasses.replace(altered, blocks=evidence.blocks))


def test_root_hash_must_be_of_the_sent_root(world, evidence):
    with pytest.raises(EvidenceError, match="hash"):
        world.appraise(dataclasses.replace(evidence, root_hash=bytes(48)))


def test_alias_of_another_firmware_is_refused(world, evidence):
    """Measurements signed by one Alias under the chain of another boot: the signature is not that Alias'."""
    other = world.collect(world.boot(counter=8))
    with pytest.raises(EvidenceError, match="signature"):
        world.appraise(dataclasses.replace(evidence, certificates=other.certificates))


def test_signed_measurements_that_contradict_the_fwid_are_refused(world, evidence):
    """A device whose firmware was replaced after boot: its own Alias signs, and still stands for the old firmware."""
    root = world.boot()
    components = {**default_firmware(world.profile).components, "nic-firmware": "replaced at run time"}
    lying = world.collect_blocks(root, measure(world.profile, Firmware(components=components)))
    assert [block.value for block in lying.blocks] != [block.value for block in evidence.blocks]
    with pytest.raises(EvidenceError, match="contradict"):
        world.appraise(lying)


def test_every_single_bit_of_every_field_counts(world, evidence):
    """Threat A4: no flip anywhere in evidence is accepted, none gives anything but a refusal."""
    fields = [("signature", None), ("root_hash", None)]
    fields += [("messages", position) for position in range(len(evidence.messages))]
    fields += [("certificates", position) for position in range(len(evidence.certificates))]
    accepted = []
    for name, position in fields:
        octets = getattr(evidence, name) if position is None else getattr(evidence, name)[position]
        stride = 1 if len(octets) < 128 else max(1, len(octets) // 48)
        for place in range(0, len(octets), stride):
            flipped = octets[:place] + bytes([octets[place] ^ 1 << (place % 8)]) + octets[place + 1 :]
            if position is None:
                mutant = dataclasses.replace(evidence, **{name: flipped})
            else:
                parts = list(getattr(evidence, name))
                parts[position] = flipped
                mutant = dataclasses.replace(evidence, **{name: tuple(parts)})
            try:
                world.appraise(mutant)
            except EvidenceError:
                continue
            accepted.append((name, position, place))
    # Our own copy of the root is what counts; of the sent one the name, key and, through the header, its hash do.
    assert accepted == []


SHAPES = {
    "dropped": lambda octets: None,
    "empty": lambda octets: b"",
    "doubled": lambda octets: octets + octets,
    "cut": lambda octets: octets[:-1],
    "longer": lambda octets: octets + b"\0",
    "longest": lambda octets: octets + bytes(64 * 1024),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_field_dropped_empty_doubled_or_too_long(world, evidence, shape):
    for name in ("messages", "certificates"):
        for position in range(len(getattr(evidence, name))):
            parts = list(getattr(evidence, name))
            changed = SHAPES[shape](parts[position])
            parts[position : position + 1] = [] if changed is None else [changed]
            with pytest.raises(EvidenceError):
                world.appraise(dataclasses.replace(evidence, **{name: tuple(parts)}))
    for name in ("signature", "root_hash"):
        changed = SHAPES[shape](getattr(evidence, name)) or b""
        with pytest.raises(EvidenceError):
            world.appraise(dataclasses.replace(evidence, **{name: changed}))


def test_certificates_in_any_order_are_the_same_evidence(world, evidence):
    for _ in range(10):
        shuffled = list(evidence.certificates)
        world.random.shuffle(shuffled)
        appraisal = world.appraise(dataclasses.replace(evidence, certificates=tuple(shuffled)))
        assert appraisal.tier is Tier.AFFIRMING


def test_thousands_of_seeded_mutations(world, evidence):
    """Threat A4 at bulk: up to 8 octets anywhere overwritten, inserted or removed."""
    dice = random.Random(4)
    for _ in range(2000):
        name = dice.choice(("messages", "certificates"))
        parts = list(getattr(evidence, name))
        position = dice.randrange(len(parts))
        octets = bytearray(parts[position])
        start = dice.randrange(len(octets))
        octets[start : start + dice.randrange(9)] = dice.randbytes(dice.randrange(9))
        if bytes(octets) == parts[position]:
            continue
        parts[position] = bytes(octets)
        with pytest.raises(EvidenceError):
            world.appraise(dataclasses.replace(evidence, **{name: tuple(parts)}))


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_random_mutations_are_refused_and_never_crash(world, evidence, data):
    name = data.draw(st.sampled_from(("messages", "certificates")))
    parts = list(getattr(evidence, name))
    position = data.draw(st.integers(0, len(parts) - 1))
    octets = bytearray(parts[position])
    start = data.draw(st.integers(0, len(octets) - 1))
    stop = data.draw(st.integers(start, min(len(octets), start + 16)))
    octets[start:stop] = data.draw(st.binary(max_size=16))
    if bytes(octets) == parts[position]:
        return
    parts[position] = bytes(octets)
    with pytest.raises(EvidenceError):
        world.appraise(dataclasses.replace(evidence, **{name: tuple(parts)}))


def test_malleated_signature_still_names_the_same_device(world, evidence):
    """(r, n-s) verifies as well: identity depends on keys, never on certificate or signature octets."""
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFC7634D81F4372DDF581A0DB248B0A77AECEC196ACCC52973
    half = len(evidence.signature) // 2
    s = order - int.from_bytes(evidence.signature[half:])
    twin = dataclasses.replace(evidence, signature=evidence.signature[:half] + s.to_bytes(half))
    assert world.appraise(twin).alias_spki_sha256 == world.appraise(evidence).alias_spki_sha256


def test_blocks_of_another_type_or_size_are_refused(world, evidence):
    root, blocks = world.boot(), list(evidence.blocks)
    assert world.appraise(world.collect_blocks(root, blocks)).tier is Tier.AFFIRMING
    for position, changes in (
        (0, {"value": bytes(5)}),
        (0, {"value": b""}),
        (0, {"raw": False}),
        (2, {"value": bytes(32)}),
        (2, {"raw": True}),
        (2, {"value_type": 2}),
        (10, {"value": bytes(8)}),
    ):
        wrong = [*blocks[:position], dataclasses.replace(blocks[position], **changes), *blocks[position + 1 :]]
        with pytest.raises(EvidenceError, match="type or size"):
            world.appraise(world.collect_blocks(root, wrong))


@pytest.mark.parametrize("index", [2, 3, 4, 7, 8, 9, 10])
def test_no_measurement_behind_a_fwid_can_be_left_out(world, evidence, index):
    rest = [block for block in evidence.blocks if block.index != index]
    with pytest.raises(EvidenceError, match=f"measurement {index} is missing"):
        world.appraise(world.collect_blocks(world.boot(), rest))


@pytest.mark.parametrize(
    ("index", "found"),
    [
        (1, [("version_missing", "version", 1)]),
        (5, [("measurement_missing", "x", 5)]),
        (254, [("device_mode_missing", "device-mode", 254)]),
    ],
)
def test_what_is_left_out_elsewhere_is_found(world, evidence, index, found):
    rest = [block for block in evidence.blocks if block.index != index]
    allowed = AllowedDigests(component="x", digests=("01" + "00" * 31,), source=world.source)
    references = dataclasses.replace(world.references, measurements={**world.references.measurements, 5: allowed})
    references = references if index == 5 else world.references
    appraisal = world.appraise(world.collect_blocks(world.boot(), rest), references=references)
    assert codes(appraisal) == found
    assert appraisal.tier is not Tier.AFFIRMING


def test_a_further_index_is_not_judged_unless_a_reference_names_it(world, evidence):
    further = MeasurementBlock(index=11, value_type=3, raw=False, value=b"x" * 64)
    shown = world.collect_blocks(world.boot(), [*evidence.blocks[:-1], further, evidence.blocks[-1]])
    assert world.appraise(shown).findings == ()
    for digest, expected in ((b"x" * 64, []), (b"y" * 64, [("measurement_unexpected", "oem", 11)])):
        allowed = AllowedDigests(component="oem", digests=(digest.hex(),), source=world.source)
        references = dataclasses.replace(world.references, measurements={**world.references.measurements, 11: allowed})
        appraisal = world.appraise(shown, references=references)
        assert codes(appraisal) == expected
        assert all(finding.dimension is Dimension.CONFIGURATION for finding in appraisal.findings)


def test_nonces_have_32_octets(world, evidence):
    for nonce in (b"", bytes(31), bytes(33)):
        with pytest.raises(ValueError, match="32"):
            world.appraise(evidence, nonce=nonce)


def test_order_of_the_checks(world, evidence):
    """A pinned root comes before everything that a stranger could make us compute."""
    with pytest.raises(CertificateError, match="pinned"):
        world.appraise(dataclasses.replace(evidence, signature=b""), manufacturer_roots=(), nonce=bytes(32))
    with pytest.raises(CertificateError, match="another device"):
        world.appraise(evidence, pinned_device_id_sha256=bytes(32), nonce=bytes(32))
    with pytest.raises(EvidenceError, match="nonce"):
        world.appraise(dataclasses.replace(evidence, signature=b""), nonce=bytes(32))


# --- what differs --------------------------------------------------------------------------------


def test_altered_firmware_is_found_with_index_expected_seen_and_source(world):
    appraisal = world.appraise(world.collect(world.boot(nic_firmware="altered")))
    assert appraisal.tier is Tier.CONTRAINDICATED
    assert codes(appraisal) == [("measurement_unexpected", "nic-firmware", 3), ("fwid_unexpected", "fwid-5", None)]
    first = appraisal.findings[0]
    assert first.dimension is Dimension.EXECUTABLES
    assert first.claim == 96
    assert first.expected == world.references.measurements[3].digests
    assert len(first.seen) == 128
    assert first.source == "policies/reference.yaml:7:3"
    assert appraisal.vector[Dimension.EXECUTABLES] == 96
    assert appraisal.vector[Dimension.HARDWARE] == 2
    assert appraisal.tier is Tier.CONTRAINDICATED


def test_all_differences_are_returned_at_once(world):
    root = world.boot(
        nic_firmware="a", arm_firmware="b", nic_security_configuration="c", version="0.9.0", device_mode="debug"
    )
    appraisal = world.appraise(world.collect(root))
    assert codes(appraisal) == [
        ("measurement_unexpected", "nic-firmware", 3),
        ("measurement_unexpected", "arm-firmware", 4),
        ("measurement_unexpected", "nic-security-configuration", 7),
        ("fwid_unexpected", "fwid-4", None),
        ("fwid_unexpected", "fwid-5", None),
        ("version_below_minimum", "version", 1),
        ("debug_enabled", "device-mode", 254),
    ]


ALTERABLE = ("psc-firmware", "nic-firmware", "arm-firmware", "nic-security-configuration", "arm-security-configuration")


@settings(max_examples=25, deadline=None)
@given(altered=st.sets(st.sampled_from(ALTERABLE)))
def test_exactly_the_altered_components_are_found(world, altered):
    root = world.boot(**{name.replace("-", "_"): "altered" for name in altered})
    appraisal = world.appraise(world.collect(root))
    found = {finding.component for finding in appraisal.findings if finding.code == "measurement_unexpected"}
    assert found == altered
    assert (appraisal.tier is Tier.AFFIRMING) is (not altered)


def test_policy_may_call_unknown_firmware_a_warning(world):
    policy = dataclasses.replace(world.policy, unrecognized_executables=33)
    appraisal = world.appraise(world.collect(world.boot(nic_firmware="altered")), policy=policy)
    assert appraisal.tier is Tier.WARNING
    assert appraisal.vector[Dimension.EXECUTABLES] == 33


def with_measurement(references, index, **changes):
    allowed = dataclasses.replace(references.measurements[index], **changes)
    return dataclasses.replace(references, measurements={**references.measurements, index: allowed})


def test_vulnerable_firmware_is_a_warning(world, evidence):
    shipped = world.references.measurements[3].digests
    references = with_measurement(world.references, 3, digests=(), vulnerable_digests=shipped)
    appraisal = world.appraise(evidence, references=references)
    assert appraisal.tier is Tier.WARNING
    assert codes(appraisal) == [("measurement_vulnerable", "nic-firmware", 3)]
    assert appraisal.vector[Dimension.EXECUTABLES] == 32


def test_referenced_index_that_is_absent_is_found(world, evidence):
    allowed = AllowedDigests(component="dtb", digests=("ab" * 64,), source=world.source)
    references = dataclasses.replace(world.references, measurements={**world.references.measurements, 40: allowed})
    appraisal = world.appraise(evidence, references=references)
    assert codes(appraisal) == [("measurement_missing", "dtb", 40)]
    assert appraisal.tier is Tier.CONTRAINDICATED


def test_index_that_no_reference_names_is_not_judged(world):
    references = dataclasses.replace(
        world.references,
        measurements={k: v for k, v in world.references.measurements.items() if k != 3},
        fwids={},
    )
    altered = world.collect(world.boot(nic_firmware="altered"))
    assert world.appraise(altered, references=references).findings == ()


def test_empty_reference_values_affirm_nothing(world, evidence):
    empty = ReferenceValues(name="empty", profile="bluefield-3", source=world.source)
    appraisal = world.appraise(evidence, references=empty)
    assert codes(appraisal) == [("no_reference_values", "", None)]
    assert appraisal.tier is Tier.CONTRAINDICATED


def test_configuration_without_references_is_affirmed_by_the_mode_alone(world, evidence):
    references = dataclasses.replace(
        world.references, measurements={k: v for k, v in world.references.measurements.items() if k < 5}
    )
    appraisal = world.appraise(evidence, references=references)
    assert appraisal.tier is Tier.AFFIRMING
    assert appraisal.vector[Dimension.CONFIGURATION] == 3


@pytest.mark.parametrize(
    ("component", "shown", "minimum", "accepted"),
    [
        ("version", "1.0.0", (1, 0, 0), True),
        ("version", "0.65535.255", (1, 0, 0), False),
        ("version", "1.2.0", (1, 2), True),
        ("version", "1.2.0", (1, 2, 0, 1), False),
        ("nic-rollback-counters", 4, (4,), True),
        ("nic-rollback-counters", 3, (4,), False),
        ("arm-rollback-counters", 3, (4,), False),
    ],
)
def test_rollback_below_the_minimum(world, component, shown, minimum, accepted):
    root = world.boot(**{component.replace("-", "_"): shown})
    references = dataclasses.replace(
        world.references, minimum_versions={component: MinimumVersion(minimum=minimum, source=world.source)}
    )
    appraisal = world.appraise(world.collect(root), references=references)
    assert codes(appraisal) == ([] if accepted else [("version_below_minimum", component, PLACES[component])])
    assert (appraisal.tier is Tier.AFFIRMING) is accepted
    assert accepted or component in appraisal.findings[0].message


@pytest.mark.parametrize("component", ["version", "nic-rollback-counters", "arm-rollback-counters"])
def test_rollback_below_the_highest_ever_seen(world, component):
    shown = world.appraise().versions[component]
    assert world.appraise(highest_versions={component: shown}).findings == ()
    higher = (*shown[:-1], shown[-1] + 1)
    appraisal = world.appraise(highest_versions={component: higher})
    assert codes(appraisal) == [("version_rolled_back", component, PLACES[component])]
    assert appraisal.tier is Tier.CONTRAINDICATED


def test_a_version_that_is_no_longer_shown_is_found(world, evidence):
    appraisal = world.appraise(evidence, highest_versions={"bmc": (3,)})
    assert codes(appraisal) == [("version_missing", "bmc", None)]


@pytest.mark.parametrize(
    ("mode", "code", "tier"),
    [
        ("normal", None, Tier.AFFIRMING),
        ("debug", "debug_enabled", Tier.CONTRAINDICATED),
        ("recovery", "mode_not_allowed", Tier.CONTRAINDICATED),
        ("manufacturing", "mode_not_allowed", Tier.CONTRAINDICATED),
    ],
)
def test_device_modes(world, mode, code, tier):
    appraisal = world.appraise(world.collect(world.boot(device_mode=mode)))
    assert [finding.code for finding in appraisal.findings] == ([code] if code else [])
    assert appraisal.tier is tier


def test_policy_may_allow_debug_and_recovery(world):
    policy = dataclasses.replace(
        world.policy,
        allowed_debug_states=frozenset(DebugState),
        allowed_modes=frozenset(OperationalMode),
    )
    for mode in ("debug", "recovery"):
        assert world.appraise(world.collect(world.boot(device_mode=mode)), policy=policy).findings == ()


@pytest.mark.parametrize(("age_s", "fresh"), [(0, True), (60, True), (61, False), (-30, True), (-31, False)])
def test_old_evidence_is_a_failing_state_of_its_own(world, evidence, age_s, fresh):
    appraisal = world.appraise(evidence, collected_at=world.now - timedelta(seconds=age_s))
    assert codes(appraisal) == ([] if fresh else [("evidence_too_old", "", None)])
    assert (appraisal.tier is Tier.AFFIRMING) is fresh


def test_changed_references_change_the_verdict_on_stored_evidence(world, evidence):
    assert world.appraise(evidence).tier is Tier.AFFIRMING
    withdrawn = with_measurement(world.references, 3, digests=("00" * 64,))
    assert world.appraise(evidence, references=withdrawn).tier is Tier.CONTRAINDICATED


# --- policy values -------------------------------------------------------------------------------


@pytest.mark.parametrize("digest", ["", "ab", "AB" * 64, "g" * 128, "ab" * 65, "ab" * 64 + "\n"])
def test_what_is_no_digest_is_refused_with_its_place(digest):
    with pytest.raises(PolicyError, match=r"reference.yaml:7:3"):
        AllowedDigests(
            component="x", digests=(digest,), source=Location(file="policies/reference.yaml", line=7, column=3)
        )


@pytest.mark.parametrize(
    "changes",
    [
        {"lease_tiers": frozenset({Tier.CONTRAINDICATED})},
        {"lease_tiers": frozenset({Tier.NONE})},
        {"unrecognized_executables": 2},
        {"maximum_evidence_age_s": 0},
    ],
)
def test_policy_that_would_open_everything_is_refused(world, changes):
    with pytest.raises(PolicyError):
        AppraisalPolicy(name="default", source=world.source, **changes)
    assert issubclass(PolicyError, ZtdpuError)
