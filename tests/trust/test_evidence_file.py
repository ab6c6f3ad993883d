"""Evidence files: what control exported appraises to the same again, and one bit changed anywhere is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import random

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

from ztdpu.errors import EvidenceError, RefusedError
from ztdpu.model.attestation import Tier
from ztdpu.trust import canonical
from ztdpu.trust.binding import binding_sha256, encode_body, open_envelope, sign
from ztdpu.trust.ear import issue_ear
from ztdpu.trust.evidence_file import (
    FILE_LIMIT_OCTETS,
    EvidenceFile,
    encode_file,
    open_file,
    public_octets,
    verify_file,
)


def make_file(world, root=None, **changes):
    root = root or world.boot()
    evidence = world.collect(root)
    appraisal = world.appraise(evidence)
    envelope = world.bind(root)
    ear = issue_ear(
        appraisal,
        device="dpu-0",
        key=world.ear_key,
        issuer="spiffe://ztdpu.lab/control",
        now=world.now,
        binding_sha256=binding_sha256(envelope),
        ttl_s=60,
    )
    fields = {
        "trust_domain": world.domain,
        "device": "dpu-0",
        "appraised_unix_ms": round(world.now.timestamp() * 1000),
        "evidence": evidence.encode(),
        "key_binding": envelope,
        "ear": ear,
        "ear_key": public_octets(world.ear_key.public_key()),
        "pinned_device_id_sha256": b"",
        "highest_versions": {"version": "1.0.0"},
        "manufacturer_roots": (canonical_root(world),),
    }
    return EvidenceFile(**fields | changes)


def canonical_root(world):
    from cryptography.hazmat.primitives.serialization import Encoding

    return world.roots[0].public_bytes(Encoding.DER)


def verify(world, octets, **changes):
    arguments = {"references": world.references, "policy": world.policy} | changes
    return verify_file(open_file(octets), **arguments)


@pytest.fixture(scope="module")
def octets(world):
    return encode_file(make_file(world), world.ear_key)


def test_the_same_verdict_comes_again(world, octets):
    verified = verify(world, octets, manufacturer_roots=world.roots)
    assert verified.agrees
    assert verified.appraisal.tier is verified.result.status is Tier.AFFIRMING
    assert verified.binding.ueid == verified.appraisal.ueid
    assert open_file(octets, ear_key=public_octets(world.ear_key.public_key())) == verified.file


def test_findings_are_those_of_the_first_appraisal(world):
    root = world.boot(nic_firmware="altered", device_mode="debug")
    first = world.appraise(world.collect(root))
    verified = verify(world, encode_file(make_file(world, root), world.ear_key))
    assert verified.appraisal.findings == first.findings
    assert verified.result.status is Tier.CONTRAINDICATED
    assert verified.agrees


def test_another_policy_comes_to_another_verdict_and_that_is_said(world, octets):
    strict = dataclasses.replace(world.references, minimum_versions={})
    assert verify(world, octets, references=strict).agrees
    none = dataclasses.replace(world.references, measurements={}, fwids={})
    verified = verify(world, octets, references=none)
    assert not verified.agrees
    assert verified.appraisal.tier is Tier.CONTRAINDICATED


def test_one_bit_changed_anywhere_is_refused(world, octets):
    """Every octet, one bit of it; the untouched file before and after."""
    bits = random.Random(1)
    verify(world, octets)
    for at in range(len(octets)):
        changed = bytearray(octets)
        changed[at] ^= 1 << bits.randrange(8)
        with pytest.raises(RefusedError):
            open_file(bytes(changed))
    verify(world, octets)


def test_cut_or_lengthened_files_are_refused(world, octets):
    for wrong in (octets[:-1], octets + b"\0", b"", octets[1:], b"x" * (FILE_LIMIT_OCTETS + 1)):
        with pytest.raises(RefusedError):
            open_file(wrong)


def test_a_file_that_its_maker_forged_is_consistent_and_not_controls(world, octets):
    """Whoever signs a file of their own is found out by whoever knows control's key."""
    other = world.p256(77)
    forged = encode_file(dataclasses.replace(make_file(world), ear_key=public_octets(other.public_key())), other)
    with pytest.raises(EvidenceError, match="another control"):
        open_file(forged, ear_key=public_octets(world.ear_key.public_key()))
    with pytest.raises(RefusedError):  # the result inside is still signed by control
        verify(world, forged)
    with pytest.raises(ValueError, match="another key"):
        encode_file(make_file(world), other)


def test_parts_of_different_devices_do_not_make_a_file(world):
    good = make_file(world)
    stranger = make_file(world, world.boot("dpu-1"))
    verify(world, encode_file(good, world.ear_key))
    for changes in (
        {"evidence": stranger.evidence},
        {"key_binding": stranger.key_binding},
        {"ear": stranger.ear},
        {"device": "dpu-9"},
        {"trust_domain": "other.example"},
        {"key_binding": b""},
        {"pinned_device_id_sha256": bytes(32)},
        {"highest_versions": {"version": "a.b"}},
        {"manufacturer_roots": ()},
        {"manufacturer_roots": (b"no certificate",)},
        {"appraised_unix_ms": good.appraised_unix_ms + 3_700_000},
        {"appraised_unix_ms": good.appraised_unix_ms - 31_000},
    ):
        wrong = encode_file(dataclasses.replace(good, **changes), world.ear_key)
        with pytest.raises(RefusedError):
            verify(world, wrong)


@pytest.mark.parametrize("is_bound", [True, False])
def test_a_result_stands_beside_its_own_evidence_only(world, is_bound):
    """Same device, same boot, same binding: only the nonce tells which evidence a result is of."""
    root = world.boot()
    ear = {
        "device": "dpu-0",
        "key": world.ear_key,
        "now": world.now,
        "ttl_s": 60,
        "issuer": "spiffe://ztdpu.lab/control",
    }
    unbound = issue_ear(world.appraise(world.collect(root)), binding_sha256=bytes(32), **ear)
    good = make_file(world, root, **({} if is_bound else {"key_binding": b"", "ear": unbound}))
    verify(world, encode_file(good, world.ear_key))
    for other in (world.collect(root, b"another nonce of this control".ljust(32)), world.collect(world.boot("dpu-1"))):
        wrong = dataclasses.replace(good, evidence=other.encode())
        with pytest.raises(EvidenceError, match="different devices, boots or nonces"):
            verify(world, encode_file(wrong, world.ear_key))


@pytest.mark.parametrize("changes", [{}, {"boot_counter": 8}, {"boot_nonce": b"m" * 16}, {"ueid": b"\x01" + bytes(32)}])
def test_a_binding_that_names_another_boot_or_device_is_refused_though_the_alias_signed_it(world, changes):
    root = world.boot()
    binding = open_envelope(world.bind(root), root.alias_public_key)
    envelope = sign(encode_body(dataclasses.replace(binding, **changes)), root.device.alias_key)
    ear = issue_ear(
        world.appraise(world.collect(root)), device="dpu-0", key=world.ear_key, issuer="spiffe://ztdpu.lab/control",
        now=world.now, binding_sha256=binding_sha256(envelope), ttl_s=60,
    )  # fmt: skip
    octets = encode_file(make_file(world, root, key_binding=envelope, ear=ear), world.ear_key)
    if not changes:
        assert verify(world, octets).binding == binding
    else:
        with pytest.raises(EvidenceError, match="key binding and evidence"):
            verify(world, octets)


def test_own_roots_decide_when_they_are_named(world, octets):
    stranger = type(world)()
    with pytest.raises(RefusedError):
        verify(world, octets, manufacturer_roots=(make_other_root(world),))
    assert verify(stranger, octets).appraisal.tier is Tier.AFFIRMING  # the same seed: the same plant


def test_what_is_signed_names_the_key(world, octets):
    """Else the same signature could be shown as another's: whoever has one can compute a second key that it fits."""
    _, named, body, signature = canonical.decode(octets, refusal=EvidenceError)
    signed = b"ztdpu/v1/evidence-file\0" + hashlib.sha256(named).digest() + body
    world.ear_key.public_key().verify(signature, signed, ec.ECDSA(SHA256()))


def test_roots_that_cannot_be_read_to_the_end_are_refused(world):
    """A file of a stranger, signed by his own key: what he puts in as roots is looked at before anybody uses it."""
    curve = bytes.fromhex("06052b81040022")
    for odd in (
        canonical_root(world).replace(curve, curve[:-1] + b"\x7f"),
        canonical_root(world).replace(b"ztdpu", b"\xff" * 5),
    ):
        good = make_file(world)
        wrong = dataclasses.replace(good, manufacturer_roots=(odd, *good.manufacturer_roots))
        with pytest.raises(EvidenceError, match="root"):
            verify(world, encode_file(wrong, world.ear_key))
        verify(world, encode_file(good, world.ear_key))


def test_the_result_is_by_the_control_of_the_domain_that_the_file_names(world):
    """Without a key binding nothing else in the file names it."""
    ear = {"device": "dpu-0", "key": world.ear_key, "now": world.now, "binding_sha256": bytes(32), "ttl_s": 60}
    root = world.boot()
    evidence = world.collect(root)
    ear = issue_ear(world.appraise(evidence), issuer="spiffe://ztdpu.lab/control", **ear)
    good = make_file(world, root, evidence=evidence.encode(), key_binding=b"", ear=ear)
    assert verify(world, encode_file(good, world.ear_key)).binding is None
    with pytest.raises(EvidenceError, match=r"control of other\.example"):
        verify(world, encode_file(dataclasses.replace(good, trust_domain="other.example"), world.ear_key))


def make_other_root(world):
    from ztdpu.trust.manufacture import create_manufacturer

    return create_manufacturer(profile=world.profile, random=random.Random(5).randbytes, now=world.now).root


def test_fields_of_another_shape_are_refused(world):
    body_of = make_file(world)
    good = canonical.decode(encode_file(body_of, world.ear_key), refusal=EvidenceError)
    body = canonical.decode(good[2], refusal=EvidenceError)
    for at, wrong in ((1, 2), (1, True), (4, -1), (4, 1 << 50), (9, [["a"]]), (9, [[1, 2]]), (10, ["x"]), (3, b"x")):
        changed = [*body[:at], wrong, *body[at + 1 :]]
        with pytest.raises(EvidenceError):
            open_file(resign(world, canonical.encode(changed), good[1]))
    open_file(resign(world, good[2], good[1]))


def resign(world, body, named):
    from ztdpu.trust.evidence_file import _signed_octets

    signature = world.ear_key.sign(_signed_octets(named, body), ec.ECDSA(SHA256()))
    return canonical.encode(["evidence-file", named, body, signature])
