"""Documents to reference values and appraisal policies."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from ztdpu.errors import NotFoundError, PolicyError
from ztdpu.model.attestation import Tier
from ztdpu.policy.cluster import Cluster
from ztdpu.policy.load import load_directory
from ztdpu.policy.references import appraisal_policy_for, reference_values_for, tiers_of_networks
from ztdpu.trust.firmware import compute_fwid, default_firmware, measure
from ztdpu.trust.profile import load_profile
from ztdpu.trust.reference import AppraisalPolicy, DebugState, OperationalMode

EXAMPLE = Path(__file__).parents[2] / "policies"


def test_the_example_names_what_emulated_devices_ship_with() -> None:
    profile = load_profile("bluefield-3")
    blocks = measure(profile, default_firmware(profile))
    values = reference_values_for(load_directory(EXAMPLE), "bluefield-3")
    shipped = {block.index: (block.value.hex(),) for block in blocks if not block.raw}
    assert {index: allowed.digests for index, allowed in values.measurements.items()} == shipped
    assert {level: allowed.digests for level, allowed in values.fwids.items()} == {
        level: (compute_fwid(profile, row, blocks).hex(),)
        for level, row in enumerate(profile.levels)
        if row.fwid_covers
    }
    assert set(values.minimum_versions) == {"version", "nic-rollback-counters", "arm-rollback-counters"}
    assert str(values.measurements[3].source).startswith(str(EXAMPLE / "attestation/bluefield-3.yaml"))


def test_a_profile_without_values_and_one_with_two(repository: Path) -> None:
    with pytest.raises(NotFoundError, match="no ReferenceValues"):
        reference_values_for(load_directory(repository), "bluefield-3")
    text = (EXAMPLE / "attestation/bluefield-3.yaml").read_text()
    (repository / "a.yaml").write_text(text)
    assert reference_values_for(load_directory(repository), "bluefield-3").profile == "bluefield-3"
    (repository / "b.yaml").write_text(text.replace("name: bluefield-3-shipped", "name: other"))
    with pytest.raises(PolicyError, match="'bluefield-3-shipped' and 'other'"):
        reference_values_for(load_directory(repository), "bluefield-3")


def appraisal_document(name: str, **fields: str) -> str:
    rows = "".join(f"  {key}: {value}\n" for key, value in fields.items())
    return f"apiVersion: ztdpu.dev/v1\nkind: AppraisalPolicy\nmetadata: {{name: {name}}}\nspec:\n{rows}"


def test_the_strictest_tenant_of_a_device_decides(repository: Path) -> None:
    lenient = appraisal_document(
        "lenient", allowDebug="true", allowedTiers="[affirming, warning]", allowedModes="[normal, recovery]"
    )
    strict = appraisal_document("strict", maximumEvidenceAgeS="30")
    (repository / "appraisal.yaml").write_text(f"{lenient}---\n{strict}")
    file = repository / "cluster.yaml"
    text = file.read_text()

    def policy_with(blue: str, red: str) -> AppraisalPolicy:
        changed = text
        for tenant, name in (("blue", blue), ("red", red)):
            changed = changed.replace(f"metadata: {{name: {tenant}}}\n", f"metadata: {{name: {tenant}}}\n{name}")
        file.write_text(changed)
        return appraisal_policy_for(load_directory(repository), ("blue", "red"))

    both_lenient = policy_with(*("spec: {appraisalPolicy: lenient}\n",) * 2)
    assert both_lenient.lease_tiers == {Tier.AFFIRMING, Tier.WARNING}
    assert DebugState.ENABLED in both_lenient.allowed_debug_states
    assert both_lenient.allowed_modes == {OperationalMode.NORMAL, OperationalMode.RECOVERY}
    mixed = policy_with("spec: {appraisalPolicy: lenient}\n", "spec: {appraisalPolicy: strict}\n")
    assert mixed.lease_tiers == {Tier.AFFIRMING, Tier.WARNING}, "tiers count per tenant"
    assert mixed.allowed_modes == {OperationalMode.NORMAL}
    assert DebugState.ENABLED not in mixed.allowed_debug_states
    assert mixed.maximum_evidence_age_s == 30
    one_silent = policy_with("spec: {appraisalPolicy: lenient}\n", "")
    assert one_silent.lease_tiers == {Tier.AFFIRMING, Tier.WARNING}
    assert one_silent.allowed_modes == {OperationalMode.NORMAL}, "no policy of its own means the defaults"
    assert policy_with("", "").lease_tiers == {Tier.AFFIRMING}


@pytest.mark.parametrize(
    ("blue", "red", "tolerant"),
    [
        ("lenient", "lenient", {"blue", "red", "both"}),
        ("lenient", "strict", {"blue"}),
        ("strict", "lenient", {"red"}),
        ("strict", "strict", set()),
    ],
)
def test_a_network_bears_what_its_tenant_bears_and_a_peering_what_both_members_do(
    blue: str, red: str, tolerant: set[str]
) -> None:
    allowed = {"lenient": ["affirming", "warning"], "strict": ["affirming"]}
    cluster = SimpleNamespace(
        tenants={
            name: SimpleNamespace(spec=SimpleNamespace(appraisal_policy=policy))
            for name, policy in (("blue", blue), ("red", red), ("silent", None))
        },
        appraisal_policies={
            name: SimpleNamespace(spec=SimpleNamespace(allowed_tiers=tiers)) for name, tiers in allowed.items()
        },
        peerings={"both": SimpleNamespace(spec=SimpleNamespace(members=[SimpleNamespace(tenant=t) for t in ("blue", "red")]))},
    )  # fmt: skip
    tiers = tiers_of_networks(cast("Cluster", cluster))
    assert {name for name, allowed in tiers.items() if Tier.WARNING in allowed} == tolerant
    assert all(Tier.AFFIRMING in allowed for allowed in tiers.values())
