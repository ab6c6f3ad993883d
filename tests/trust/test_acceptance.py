"""Acceptance of KeyBindings: replay, relay, rollback, second keys; each refusal with the binding that is accepted."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st

from ztdpu.errors import BindingError
from ztdpu.trust import binding as bindings
from ztdpu.trust.acceptance import BindingRecord, accept_binding, check_possession


@pytest.fixture(scope="module")
def root(world):
    return world.boot()


@pytest.fixture(scope="module")
def appraisal(world, root):
    return world.appraise(world.collect(root))


@pytest.fixture(scope="module")
def first(world, root, appraisal):
    """The device's first binding, accepted."""
    return accept(world, world.bind(root), appraisal)


def accept(world, envelope, appraisal, **changes):
    arguments = {
        "appraisal": appraisal,
        "expected_domain": world.domain,
        "expected_nonce": world.binding_nonce,
        "stored": None,
        "pinned_device_id_sha256": appraisal.device_id_sha256,
    } | changes
    return accept_binding(envelope, **arguments)


def resign(world, root, **changes):
    """A binding that the true Alias signed and that says something else: what a lying root of trust would make."""
    binding = bindings.open_envelope(world.bind(root), root.alias_public_key)
    return bindings.sign(bindings.encode_body(dataclasses.replace(binding, **changes)), root._device.alias_key)


def test_the_first_binding(world, first, appraisal):
    assert first.new_boot
    assert first.binding.ueid == appraisal.ueid
    assert first.record.boot_counter == 7
    assert first.record.tls_spki_sha256 == world.spki_sha256(world.keys.tls)
    assert first.record.offer_spki_sha256 == world.spki_sha256(world.keys.offer)
    assert first.record.alias_spki_sha256 == appraisal.alias_spki_sha256


def test_the_next_of_the_same_boot(world, root, appraisal, first):
    second = accept(world, world.bind(root, world.other_keys), appraisal, stored=first.record)
    assert not second.new_boot
    assert second.record.sequence > first.record.sequence
    assert second.record.retired_aliases == frozenset()


def test_replay_of_a_binding(world, root, appraisal, first):
    """Threat A1: the same envelope again, in this stream and in 1,000 others."""
    envelope = world.bind(root)
    stored = accept(world, envelope, appraisal, stored=first.record).record
    with pytest.raises(BindingError, match="newer"):
        accept(world, envelope, appraisal, stored=stored)
    for _ in range(1000):
        with pytest.raises(BindingError, match="nonce"):
            accept(world, envelope, appraisal, expected_nonce=world.random.randbytes(32))


def test_the_two_nonces_differ(world, root, appraisal):
    envelope = world.bind(root, nonce=appraisal.nonce)
    with pytest.raises(BindingError, match="nonce"):
        accept(world, envelope, appraisal, expected_nonce=appraisal.nonce)


def test_relay(world, root, appraisal, first):
    """Threat A2: evidence of the genuine X on the channel of Y; Y's binding is signed by Y's Alias, or for Y."""
    other = world.boot("dpu-1")
    for envelope in (world.bind(other), world.bind(other, world.other_keys)):
        with pytest.raises(BindingError, match="Alias"):
            accept(world, envelope, appraisal, stored=first.record)
    own = world.appraise(world.collect(other))
    assert accept(world, world.bind(other, world.other_keys), own)
    with pytest.raises(BindingError, match="pinned"):
        accept(world, world.bind(other), own, pinned_device_id_sha256=appraisal.device_id_sha256)
    with pytest.raises(BindingError, match="on record"):
        accept(world, world.bind(other), own, stored=first.record)


def test_evidence_of_one_boot_and_binding_of_another(world, appraisal, first):
    rebooted = world.boot(counter=8)
    with pytest.raises(BindingError, match="Alias"):
        accept(world, world.bind(rebooted), appraisal, stored=first.record)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ueid": b"\x01" + bytes(32)}, "another device"),
        ({"role": "reducer"}, "role"),
        ({"trust_domain": "other.lab"}, "trust domain"),
        ({"nonce": bytes(32)}, "nonce"),
        ({"boot_counter": 8}, "another boot"),
        ({"boot_nonce": bytes(16)}, "another boot"),
        ({"sequence": 1}, "not newer"),
        ({"sequence": 0}, "not newer"),
    ],
)
def test_every_field_that_has_one_right_value(world, root, appraisal, first, changes, why):
    assert accept(world, resign(world, root), appraisal, stored=first.record)
    with pytest.raises(BindingError, match=why):
        accept(world, resign(world, root, **changes), appraisal, stored=first.record)


def test_one_key_for_both_purposes(world, root, appraisal):
    envelope = resign(world, root, tls_spki_sha256=world.spki_sha256(world.keys.offer))
    with pytest.raises(BindingError, match="same"):
        accept(world, envelope, appraisal)


# --- boots ---------------------------------------------------------------------------------------


def boot_and_accept(world, stored, **boot):
    root = world.boot(**boot)
    return accept(world, world.bind(root), world.appraise(world.collect(root)), stored=stored)


def test_a_newer_boot_retires_the_older_alias_for_ever(world, first):
    newer = boot_and_accept(world, first.record, counter=8)
    assert newer.new_boot
    assert newer.record.retired_aliases == {first.record.alias_spki_sha256}
    newest = boot_and_accept(world, newer.record, counter=9)
    assert newest.record.retired_aliases == {first.record.alias_spki_sha256, newer.record.alias_spki_sha256}
    for counter in (7, 8):
        with pytest.raises(BindingError, match="retired"):
            boot_and_accept(world, newest.record, counter=counter)


def test_rollback_of_the_boot_counter(world, first):
    """Threat A3."""
    for counter in (0, 6):
        with pytest.raises(BindingError, match="older boot"):
            boot_and_accept(world, first.record, counter=counter)


def test_one_boot_has_one_alias(world, first):
    with pytest.raises(BindingError, match="second Alias"):
        boot_and_accept(world, first.record, counter=7, nonce=b"m" * 16)


def test_an_alias_has_one_boot(world, root, appraisal, first):
    stored = dataclasses.replace(first.record, boot_counter=6)
    with pytest.raises(BindingError, match="newer boot with the Alias"):
        accept(world, world.bind(root), appraisal, stored=stored)


def test_sequence_starts_again_with_a_newer_boot(world, first):
    stored = dataclasses.replace(first.record, sequence=1_000_000)
    assert boot_and_accept(world, stored, counter=8).record.sequence == 1


# --- denied keys, keys of others, restore --------------------------------------------------------


def test_denied_and_foreign_keys(world, root, appraisal, first):
    tls, offer = world.spki_sha256(world.keys.tls), world.spki_sha256(world.keys.offer)
    envelope = world.bind(root)
    for key in (tls, offer, appraisal.alias_spki_sha256, appraisal.device_id_sha256):
        with pytest.raises(BindingError, match="revoked"):
            accept(world, envelope, appraisal, stored=first.record, denied_keys={key})
    for key in (tls, offer):
        with pytest.raises(BindingError, match="another device"):
            accept(world, envelope, appraisal, stored=first.record, keys_of_others=[key])
    unrelated = {bytes(32)}
    assert accept(world, envelope, appraisal, stored=first.record, denied_keys=unrelated, keys_of_others=unrelated)


def test_after_a_restore_only_a_newer_boot_with_new_keys(world, root, appraisal, first):
    restored = dataclasses.replace(first.record, restored=True)
    newer = world.boot(counter=8)
    shown = world.appraise(world.collect(newer))
    with pytest.raises(BindingError, match="newer boot"):
        accept(world, world.bind(root, world.other_keys), appraisal, stored=restored)
    with pytest.raises(BindingError, match="never seen"):
        accept(world, world.bind(newer), shown, stored=restored)
    seen = {world.spki_sha256(world.other_keys.offer)}
    with pytest.raises(BindingError, match="never seen"):
        accept(world, world.bind(newer, world.other_keys), shown, stored=restored, keys_seen=seen)
    accepted = accept(world, world.bind(newer, world.other_keys), shown, stored=restored)
    assert not accepted.record.restored


def test_keys_of_a_record(first):
    assert first.record.keys == {first.record.tls_spki_sha256, first.record.offer_spki_sha256}
    assert isinstance(first.record, BindingRecord)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_change_of_an_envelope_is_accepted(world, envelope, appraisal, data):
    octets = bytearray(envelope)
    place = data.draw(st.integers(0, len(octets) - 1))
    octets[place] ^= data.draw(st.integers(1, 255))
    if data.draw(st.booleans()):
        del octets[place + 1 :]
    with pytest.raises(BindingError):
        accept(world, bytes(octets), appraisal)


@pytest.fixture(scope="module")
def envelope(world, root):
    return world.bind(root)


# --- possession ----------------------------------------------------------------------------------


def make_csr(key):
    hash_ = None if isinstance(key, ed25519.Ed25519PrivateKey) else SHA256()
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return builder.sign(key, hash_).public_bytes(Encoding.DER)


SIGNED = hashlib.sha256(b"this stream").digest()


def prove(world, binding, **changes):
    def proof(key, octets=SIGNED):
        return key.sign(octets, ec.ECDSA(SHA256()))

    arguments = {
        "csr": make_csr(world.keys.tls),
        "signed": SIGNED,
        "tls_possession": proof(world.keys.tls),
        "offer_possession": proof(world.keys.offer),
    }
    arguments |= {name: value(proof) if callable(value) else value for name, value in changes.items()}
    return check_possession(binding, **arguments)


def test_both_keys_are_held(world, first):
    assert prove(world, first.binding) == world.keys.tls.public_key()


def test_every_missing_proof(world, first):
    good = make_csr(world.keys.tls)
    broken = bytearray(good)
    broken[-1] ^= 1
    for changes in (
        {"csr": b""},
        {"csr": b"\x30\x00"},
        {"csr": good + b"\0"},
        {"csr": bytes(broken)},
        {"csr": bytes(4000)},
        {
            "csr": good.replace(b"\x02\x01\x00", b"\x02\x01\x04", 1)
        },  # a version that the library has an error of its own for
        {"csr": make_csr(world.other_keys.tls)},
        {"csr": make_csr(world.keys.offer)},
        {"csr": make_csr(world.p384(70))},
        {"csr": make_csr(ed25519.Ed25519PrivateKey.generate())},
        {"tls_possession": b""},
        {"tls_possession": lambda proof: proof(world.keys.offer)},
        {"tls_possession": lambda proof: proof(world.keys.tls, b"another stream")},
        {"offer_possession": b"\x30\x00"},
        {"offer_possession": lambda proof: proof(world.keys.tls)},
        {"offer_possession": lambda proof: proof(world.keys.offer, b"another stream")},
        {"signed": b"another stream"},
    ):
        with pytest.raises(BindingError):
            prove(world, first.binding, **changes)
