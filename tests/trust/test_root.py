"""The emulated root of trust and the messages of its binding door."""

import dataclasses
import hashlib
from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from ztdpu.errors import BindingError, StateError
from ztdpu.trust import dice, root
from ztdpu.trust.binding import BindRequest, open_envelope
from ztdpu.trust.firmware import FirmwareFault, alter_firmware
from ztdpu.trust.manufacture import create_manufacturer
from ztdpu.trust.profile import load_profile
from ztdpu.trust.spdm.evidence import Evidence
from ztdpu.trust.spdm.requester import MeasurementSession

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
PROFILE = load_profile("bluefield-3")
MANUFACTURER = create_manufacturer(profile=PROFILE, random=lambda octets: b"\x31" * octets, now=NOW)
SECRETS = MANUFACTURER.make_device(serial="EMU0001", uds=b"\x5a" * 32, now=NOW)
OFFER = dice.derive_ec_key(b"\3" * 32, ec.SECP256R1())
REQUEST = BindRequest(
    trust_domain="ztdpu.lab",
    nonce=b"\x55" * 32,
    tls_spki_sha256=b"\x77" * 32,
    offer_spki=dice.encode_spki(OFFER.public_key()),
    ttl_s=600,
    agent_digest=b"\x88" * 32,
)


def boot(*, counter: int = 1, firmware=SECRETS.firmware) -> root.EmulatedRoot:
    return root.EmulatedRoot(
        secrets=SECRETS,
        profile=PROFILE,
        firmware=firmware,
        boot_counter=counter,
        boot_nonce=bytes((counter,)) * 16,
        random=lambda octets: b"\x99" * octets,
    )


def attest(answer, nonce: bytes = b"\xaa" * 32) -> Evidence:
    session = MeasurementSession(profile=PROFILE, nonce=nonce)
    while (request := session.next_request()) is not None:
        session.receive(answer(request))
    return session.evidence()


def test_both_doors_speak_for_the_same_alias():
    device: root.RootOfTrust = boot()
    evidence = attest(device.open_session().answer)
    leaf = x509.load_der_x509_certificate(evidence.certificates[-1]).public_key()
    assert isinstance(leaf, ec.EllipticCurvePublicKey)
    binding = open_envelope(device.bind_keys(REQUEST), leaf)
    assert (binding.trust_domain, binding.nonce, binding.ttl_s, binding.role) == (
        "ztdpu.lab",
        REQUEST.nonce,
        600,
        "agent",
    )
    assert (binding.tls_spki_sha256, binding.offer_spki) == (REQUEST.tls_spki_sha256, REQUEST.offer_spki)
    assert (binding.boot_counter, binding.boot_nonce) == (1, b"\x01" * 16)


def test_sequence_rises_with_every_binding_that_was_made():
    device = boot()
    bad = dataclasses.replace(REQUEST, ttl_s=0)
    sequences = []
    for _ in range(3):
        with pytest.raises(BindingError):
            device.bind_keys(bad)
        sequences.append(open_envelope(device.bind_keys(REQUEST), device.alias_public_key).sequence)
    assert sequences == [1, 2, 3]


@pytest.mark.parametrize(
    "change",
    [
        {"role": "operator"},
        {"role": ""},
        {"trust_domain": ""},
        {"nonce": b""},
        {"offer_spki": b"\x30"},
        {"ttl_s": 3601},
        {"tls_spki_sha256": b"\1"},
        {"agent_digest": b"\1"},
    ],
)
def test_requests_out_of_bounds_are_not_signed(change):
    with pytest.raises(BindingError):
        boot().bind_keys(dataclasses.replace(REQUEST, **change))


def test_an_older_boot_has_another_alias_and_the_same_device():
    first, second = boot(counter=1), boot(counter=2)
    assert first.ueid == second.ueid
    with pytest.raises(BindingError):
        open_envelope(first.bind_keys(REQUEST), second.alias_public_key)


def test_altered_firmware_shows_in_the_evidence():
    good = {block.index: block.value for block in attest(boot().spdm).blocks}
    altered = boot(firmware=alter_firmware(PROFILE, SECRETS.firmware, FirmwareFault.FIRMWARE_ALTERED))
    bad = {block.index: block.value for block in attest(altered.spdm).blocks}
    assert [index for index in good if good[index] != bad[index]] == [3]
    assert bad[3] == hashlib.sha512(b"emulated bluefield-3 nic-firmware 1.0.0, altered").digest()


def test_sessions_do_not_disturb_each_other():
    device = boot()
    one, two = device.open_session(), device.open_session()

    def answer(request: bytes) -> bytes:
        two.answer(bytes.fromhex("10840000"))
        return one.answer(request)

    assert attest(answer).blocks == attest(device.spdm).blocks


def test_door_messages_round_trip():
    assert root.decode_bind_request(root.encode_bind_request(REQUEST)) == REQUEST
    assert root.decode_bind_answer(root.encode_bind_answer(b"envelope")) == b"envelope"
    with pytest.raises(StateError, match="because"):
        root.decode_bind_answer(root.encode_bind_refusal("because"))


@given(st.binary(max_size=200))
def test_noise_at_the_doors_is_refused(message):
    with pytest.raises(BindingError):
        root.decode_bind_request(message)
    with pytest.raises(BindingError):
        root.decode_bind_answer(message)


def test_door_messages_cut_short_are_refused():
    whole = root.encode_bind_request(REQUEST)
    for length in range(len(whole)):
        with pytest.raises(BindingError):
            root.decode_bind_request(whole[:length])
