"""Replays, relays, foreign bindings and rollbacks in numbers, on every profile: none is accepted."""

import pytest

from ztdpu.errors import BindingError, CertificateError, EvidenceError, SpdmError
from ztdpu.model.attestation import Tier
from ztdpu.trust.faults import Preset
from ztdpu.trust.profile import MeasurementKind, list_profiles, load_profile

REPLAYS, RELAYS = 1000, 200


def test_a_thousand_replays(make_verifier):
    """One good exchange, sent again to sessions of another nonce: whole, or its signed end alone behind a live start."""
    verifier, accepted = make_verifier("generic"), 0
    recorded, door = [], verifier.root.open_session()
    verifier.attest(spdm=lambda request: recorded.append(door.answer(request)) or recorded[-1])
    for number in range(REPLAYS):
        live, replay = verifier.root.open_session(), iter(recorded)

        def answer(request, live=live, replay=replay, whole=number % 2):
            old, fresh = next(replay), live.answer(request)
            return old if whole or request[1] == 0xE0 else fresh

        try:
            verifier.attest(spdm=answer)
            accepted += 1
        except SpdmError:
            continue
    assert accepted == 0
    assert verifier.attest().tier is Tier.AFFIRMING


def test_two_hundred_relays_and_foreign_bindings(make_verifier):
    """Y shows X's live evidence as its own, or has X's evidence with a binding of its own, or X's binding."""
    x, y = make_verifier("generic"), make_verifier("generic")
    y.secrets = y.maker.make_device(serial="Y", uds=b"\x79" * 32, now=y.secrets_since)
    y.root.set_preset(Preset.FIRMWARE_ALTERED)
    y.root.set_preset(Preset.NONE)
    assert y.attest().tier is x.attest().tier is Tier.AFFIRMING
    assert x.maker.root == y.maker.root
    accepted = 0
    for number in range(RELAYS):
        door = x.root.open_session()
        kind = number % 4
        try:
            if kind == 0:  # relayed under Y's name
                y.attest(spdm=door.answer)
            elif kind == 1:  # relayed under Y's name, with Y's own binding
                y.attest(spdm=door.answer, bind=y.root.bind_keys)
            elif kind == 2:  # under X's name, bound by Y
                x.attest(bind=y.root.bind_keys)
            else:  # Y's own evidence, bound by X
                y.attest(bind=x.root.bind_keys)
            accepted += 1
        except CertificateError:
            assert kind in {0, 1}
        except BindingError:
            assert kind in {2, 3}
    assert accepted == 0
    assert x.attest().tier is y.attest().tier is Tier.AFFIRMING


@pytest.mark.parametrize("name", list_profiles())
def test_each_component_one_below_its_minimum_is_named(make_verifier, name):
    profile = load_profile(name)
    for spec in profile.measurements:
        if spec.kind not in {MeasurementKind.VERSION, MeasurementKind.SVN}:
            continue
        verifier = make_verifier(name, minimum_of=spec.component)
        assert verifier.attest().tier is Tier.AFFIRMING
        verifier.root.set_preset(Preset.FIRMWARE_ROLLBACK)
        found = verifier.attest()
        assert found.tier is Tier.CONTRAINDICATED
        assert [(one.code, one.component, one.index) for one in found.findings] == [
            ("version_below_minimum", spec.component, spec.index)
        ]


@pytest.mark.parametrize("name", list_profiles())
def test_evidence_of_a_retired_boot_never_comes_back(make_verifier, name):
    verifier = make_verifier(name)
    verifier.attest()
    old = verifier.root.root
    for _ in range(2):
        verifier.root.set_preset(Preset.FIRMWARE_ALTERED)
        verifier.root.set_preset(Preset.NONE)
    verifier.attest()
    door = old.open_session()
    with pytest.raises(EvidenceError, match="older boot"):
        verifier.attest(spdm=door.answer, bind=old.bind_keys)
    assert verifier.attest().tier is Tier.AFFIRMING
