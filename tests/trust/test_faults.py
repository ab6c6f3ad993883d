"""Every fault preset, on every profile: refused for its own reason, and `none` heals."""

import pytest

from ztdpu.errors import BindingError, CertificateError, EvidenceError, SpdmError
from ztdpu.model.attestation import Tier
from ztdpu.trust.faults import Preset
from ztdpu.trust.profile import list_profiles

REFUSALS = {
    Preset.STALE_ALIAS: (BindingError, "newer boot with the Alias key of an older one"),
    Preset.OLD_BOOT: (BindingError, "older boot"),
    Preset.WRONG_ROOT: (CertificateError, "pinned manufacturer root"),
    Preset.DUPLICATE_INDEX: (SpdmError, "there twice"),
    Preset.UNSIGNED_LAST: (SpdmError, "not signed"),
    Preset.NONCE_REUSE: (SpdmError, "signature does not verify"),
    Preset.FOREIGN_BINDING: (BindingError, "not signed by the device's Alias key"),
    Preset.SLOW: (SpdmError, "still busy"),
    Preset.SILENT: (SpdmError, "ends after 0 octets"),
}
FINDINGS = {
    Preset.FIRMWARE_ALTERED: "measurement_unexpected",
    Preset.FIRMWARE_ROLLBACK: "version_below_minimum",
    Preset.DEBUG_ENABLED: "debug_enabled",
}


@pytest.fixture(scope="module", params=list_profiles())
def verifier(request, make_verifier):
    return make_verifier(request.param)


def test_the_table_names_every_preset():
    assert set(REFUSALS) | set(FINDINGS) | {Preset.NONE, Preset.MALLEATED_SIGNATURE} == set(Preset)


@pytest.mark.parametrize("preset", REFUSALS)
def test_what_does_not_verify_is_refused_for_its_own_reason(verifier, preset):
    assert verifier.attest().tier is Tier.AFFIRMING
    verifier.root.set_preset(preset)
    kind, words = REFUSALS[preset]
    with pytest.raises(EvidenceError, match=words) as caught:
        verifier.attest()
    assert type(caught.value) is kind
    verifier.root.set_preset(Preset.NONE)
    assert verifier.attest().tier is Tier.AFFIRMING


@pytest.mark.parametrize("preset", FINDINGS)
def test_what_verifies_and_is_bad_is_a_finding(verifier, preset):
    verifier.root.set_preset(preset)
    found = verifier.attest()
    assert found.tier is Tier.CONTRAINDICATED
    assert FINDINGS[preset] in {one.code for one in found.findings}
    verifier.root.set_preset(Preset.NONE)
    assert verifier.attest().tier is Tier.AFFIRMING


def test_a_malleated_signature_is_the_same_statement(verifier):
    """ECDSA gives two signatures for one; keys are compared by SPKI and bindings named by their body."""
    verifier.attest()
    before = verifier.stored
    verifier.root.set_preset(Preset.MALLEATED_SIGNATURE)
    assert verifier.attest().tier is Tier.AFFIRMING
    after = verifier.stored
    assert (after.alias_spki_sha256, after.boot_counter) == (before.alias_spki_sha256, before.boot_counter)
    assert after.sequence == before.sequence + 1
    verifier.root.set_preset(Preset.NONE)


def test_presets_that_boot_do_so_once_each_way(verifier):
    counter = verifier.root.root.boot.counter
    verifier.root.set_preset(Preset.FIRMWARE_ALTERED)
    assert verifier.root.root.boot.counter == counter + 1
    verifier.root.set_preset(Preset.NONE)
    assert verifier.root.root.boot.counter == counter + 2
    verifier.root.set_preset(Preset.SLOW)
    verifier.root.set_preset(Preset.NONE)
    assert verifier.root.root.boot.counter == counter + 2
