"""Every fault preset, on every profile: refused for its own reason, and `none` heals."""

import dataclasses
import hashlib
import random
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ztdpu.errors import BindingError, CertificateError, EvidenceError, Location, SpdmError
from ztdpu.model.attestation import Tier
from ztdpu.trust.acceptance import accept_binding
from ztdpu.trust.appraise import appraise
from ztdpu.trust.binding import BindRequest
from ztdpu.trust.faults import FaultyRoot, Preset
from ztdpu.trust.firmware import compute_fwid, default_firmware, measure
from ztdpu.trust.manufacture import create_manufacturer
from ztdpu.trust.profile import list_profiles, load_profile
from ztdpu.trust.reference import AllowedDigests, AppraisalPolicy, MinimumVersion, ReferenceValues
from ztdpu.trust.spdm.requester import MeasurementSession

NOW = datetime(2026, 12, 1, tzinfo=UTC)
SOURCE = Location(file="reference.yaml", line=1)
POLICY = AppraisalPolicy(name="strict", source=SOURCE)
OFFER = ec.derive_private_key(7, ec.SECP256R1()).public_key()
OFFER_SPKI = OFFER.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

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


class Verifier:
    """Control's half: appraises, accepts bindings, remembers the newest."""

    def __init__(self, name):
        self.random = random.Random(name)
        self.profile = load_profile(name)
        self.maker = create_manufacturer(
            profile=self.profile, random=self.random.randbytes, now=NOW - timedelta(days=1)
        )
        self.secrets = self.maker.make_device(serial="EMU1", uds=self.random.randbytes(32), now=NOW - timedelta(days=1))
        self.stored = None
        self.root = FaultyRoot(draw_secrets=self.draw, profile=self.profile, random=self.random.randbytes)
        blocks = measure(self.profile, default_firmware(self.profile))
        self.references = ReferenceValues(
            name="shipped",
            profile=name,
            measurements={
                spec.index: AllowedDigests(component=spec.component, digests=(block.value.hex(),), source=SOURCE)
                for spec, block in zip(self.profile.measurements, blocks, strict=True)
                if not block.raw and not spec.slow_ms
            },
            fwids={
                place: AllowedDigests(
                    component="f", digests=(compute_fwid(self.profile, level, blocks).hex(),), source=SOURCE
                )
                for place, level in enumerate(self.profile.levels)
                if level.fwid_covers
            },
            minimum_versions={"version": MinimumVersion(minimum=(1, 0, 0), source=SOURCE)},
            source=SOURCE,
        )

    def draw(self):
        self.secrets = dataclasses.replace(self.secrets, boot_counter=self.secrets.boot_counter + 1)
        return self.secrets

    def attest(self):
        nonce, binding_nonce = self.random.randbytes(32), self.random.randbytes(32)
        session = MeasurementSession(
            profile=self.profile, nonce=nonce, challenge_nonce=self.random.randbytes(32), now_s=0
        )
        door = self.root.open_session()
        while (request := session.next_request()) is not None:
            session.receive(door.answer(request), now_s=1)
        found = appraise(
            session.evidence(), self.references, POLICY, NOW,
            manufacturer_roots=(self.maker.root,), pinned_device_id_sha256=self.secrets.device_id_sha256, nonce=nonce,
        )  # fmt: skip
        if found.tier is not Tier.AFFIRMING:
            return found
        asked = BindRequest(
            trust_domain="ztdpu.lab", nonce=binding_nonce, tls_spki_sha256=hashlib.sha256(b"tls").digest(),
            offer_spki=OFFER_SPKI, ttl_s=600, agent_digest=bytes(32),
        )  # fmt: skip
        accepted = accept_binding(
            self.root.bind_keys(asked), appraisal=found, expected_domain="ztdpu.lab", expected_nonce=binding_nonce,
            stored=self.stored, pinned_device_id_sha256=self.secrets.device_id_sha256,
        )  # fmt: skip
        self.stored = accepted.record
        return found


@pytest.fixture(scope="module", params=list_profiles())
def verifier(request):
    return Verifier(request.param)


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
