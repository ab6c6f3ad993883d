"""Attestation results as CWT: those of the vectors byte for byte, ours both ways, and nothing that could be read twice."""

from __future__ import annotations

import json
import random
from datetime import timedelta

import cbor2
import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from joserfc import jwt
from joserfc.jwk import ECKey

from ztdpu.errors import EarError
from ztdpu.model.attestation import Tier
from ztdpu.trust import cose, ear_cwt, strict_cbor
from ztdpu.trust.ear import issue_ear, open_ear, verify_ear
from ztdpu.trust.ear_cwt import issue_ear_cwt, open_ear_cwt, sign_payload, verify_ear_cwt
from ztdpu.trust.strict_cbor import Tag

BINDING = b"b" * 32
HEADER = {cose.HEADER_CONTENT_TYPE: ear_cwt.CONTENT_TYPE}


@pytest.fixture(scope="module")
def appraisal(world):
    return world.appraise()


def arguments(world):
    return {
        "device": "dpu-0",
        "key": world.ear_key,
        "issuer": "spiffe://ztdpu.lab/control",
        "now": world.now,
        "binding_sha256": BINDING,
        "ttl_s": 60,
    }


def verify(world, token, **changes):
    expected = {"key": world.ear_key.public_key(), "now": world.now, "device": "dpu-0", "binding_sha256": BINDING}
    return verify_ear_cwt(token, **expected | changes)


@pytest.fixture(scope="module")
def token(world, appraisal):
    return issue_ear_cwt(appraisal, **arguments(world))


@pytest.fixture
def payload(token):
    return cbor2.loads(cbor2.loads(token).value[2])


def sign(world, payload, header=None, unprotected=None):
    """Whatever a careless issuer would sign."""
    octets = payload if isinstance(payload, bytes) else strict_cbor.encode(dict(payload))
    return cose.sign(
        octets, key=world.ear_key, header=HEADER if header is None else header, unprotected=unprotected or {}
    )


@pytest.fixture(scope="module")
def vector(shared_vectors):
    path = shared_vectors / "rats" / "ear_own.json"
    if not path.exists():
        pytest.skip("ear_own.json is not here")
    return json.loads(path.read_text())


def test_the_vector_verifies_and_says_what_its_jwt_says(vector):
    key = load_pem_public_key(vector["public_pem"].encode())
    claims = open_ear_cwt(bytes.fromhex(vector["ear_cwt_hex"]), key)
    assert claims == vector["ear_claims_draft04"]
    assert claims == jwt.decode(vector["ear_jwt_draft04_names"], ECKey.import_key(key), algorithms=["ES256"]).claims


def test_the_vector_is_written_byte_for_byte(vector):
    """All but the signature, which is random."""
    theirs = cbor2.loads(bytes.fromhex(vector["ear_cwt_hex"])).value
    key = load_pem_private_key(vector["private_pem"].encode(), None)
    ours = cbor2.loads(sign_payload(vector["ear_claims_draft04"], key=key)).value
    assert (ours[0], ours[2]) == (theirs[0], theirs[2])
    with_their_key_id = strict_cbor.encode(Tag(18, [ours[0], {4: b"verifier-1"}, ours[2], theirs[3]]))
    assert with_their_key_id.hex() == vector["ear_cwt_hex"]


def test_the_vectors_every_octet_counts(vector):
    key, blob = load_pem_public_key(vector["public_pem"].encode()), bytes.fromhex(vector["ear_cwt_hex"])
    key_id = range(blob.index(b"verifier-1"), blob.index(b"verifier-1") + 10)
    assert open_ear_cwt(blob, key)
    for place in set(range(len(blob))) - set(key_id):
        with pytest.raises(EarError):
            open_ear_cwt(blob[:place] + bytes([blob[place] ^ 1]) + blob[place + 1 :], key)


def test_the_vector_is_of_another_profile(world, vector):
    key = load_pem_public_key(vector["public_pem"].encode())
    with pytest.raises(EarError, match="profile"):
        verify(world, bytes.fromhex(vector["ear_cwt_hex"]), key=key)


def test_both_forms_say_the_same(world, appraisal, token):
    components = {"erot": appraisal}
    text = issue_ear(appraisal, **arguments(world), components=components)
    octets = issue_ear_cwt(appraisal, **arguments(world), components=components)
    read = {"key": world.ear_key.public_key(), "now": world.now, "device": "dpu-0", "binding_sha256": BINDING}
    assert verify_ear_cwt(octets, **read) == verify_ear(text, **read)
    told_again = sign_payload(open_ear(text, world.ear_key.public_key()), key=world.ear_key)
    assert verify_ear_cwt(told_again, **read) == verify_ear(text, **read)
    assert verify(world, token).status is Tier.AFFIRMING
    assert verify(world, strict_cbor.encode(Tag(61, strict_cbor.decode(token, refusal=EarError, limit_octets=8192))))


def test_for_another_device_binding_key_or_time(world, token):
    for changes in (
        {"device": "dpu-1"},
        {"binding_sha256": b"c" * 32},
        {"key": world.p256(30).public_key()},
        {"now": world.now + timedelta(seconds=91)},
        {"now": world.now - timedelta(seconds=31)},
        {"allowed_tiers": frozenset({Tier.WARNING})},
    ):
        with pytest.raises(EarError):
            verify(world, token, **changes)
    assert verify(world, token, now=world.now + timedelta(seconds=90))
    with pytest.raises(ValueError, match="P-256"):
        verify(world, token, key=world.p384(31).public_key())


HOSTILE = {
    "text instead of its number": lambda body: body.update({"iat": body.pop(6)}),
    "status as a word": lambda body: body.update({1000: "affirming"}),
    "status as true": lambda body: body.update({1000: True}),
    "status of no tier": lambda body: body.update({1000: 3}),
    "nonce as text": lambda body: body.update({10: "AAAA"}),
    "nonce of another size": lambda body: body.update({10: b"x" * 31}),
    "no submodules": lambda body: body.pop(266),
    "submodules are no map": lambda body: body.update({266: [1]}),
    "submodule with a number as name": lambda body: body.update({266: {1: body[266]["dpu-0"]}}),
    "submodule is octets": lambda body: body.update({266: {"dpu-0": b"x"}}),
    "two devices": lambda body: body[266].update({"dpu-1": body[266]["dpu-0"]}),
    "dimension that nobody knows": lambda body: body[266]["dpu-0"][1001].update({8: 96}),
    "dimension as text": lambda body: body[266]["dpu-0"][1001].update({"executables": 2}),
    "claim out of bounds": lambda body: body[266]["dpu-0"][1001].update({2: 128}),
    "better than its vector": lambda body: body[266]["dpu-0"][1001].update({2: 96}),
    "no binding": lambda body: body[266]["dpu-0"].pop(ear_cwt.KEY_BINDING),
    "verifier with another field": lambda body: body[1004].update({2: "x"}),
    "time as octets": lambda body: body.update({4: b"1"}),
    "time far away": lambda body: body.update({4: (1 << 64) - 1}),
    "lives too long": lambda body: body.update({4: body[6] + 3601}),
    "policies are text": lambda body: body[266]["dpu-0"].update({1003: "default"}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_claims(world, payload, name):
    assert verify(world, sign(world, payload))
    HOSTILE[name](payload)
    with pytest.raises(EarError):
        verify(world, sign(world, payload))


def test_unknown_claims_are_ignored_as_in_a_jwt(world, payload):
    payload |= {-80000: b"x", "iss": "somebody", 273: [[60, b"y"]]}
    assert verify(world, sign(world, payload)).issuer == "spiffe://ztdpu.lab/control"


def test_hostile_envelopes(world, payload, token):
    good = cbor2.dumps(payload, canonical=True)
    parts = list(cbor2.loads(token).value)
    signed = lambda *changed: cbor2.dumps(cbor2.CBORTag(18, [*changed]), canonical=True)  # noqa: E731 - five times below
    repeated = bytes([good[0] + 1]) + good[1:] + bytes.fromhex("1903eca0")
    hostile = [
        sign(world, repeated),
        sign(world, cbor2.dumps(dict(reversed(payload.items())))),
        sign(world, good + b"\x00"),
        sign(world, b"\xbf" + good[1:] + b"\xff"),
        sign(world, payload, header={}),
        sign(world, payload, header=HEADER | {2: [100]}),
        sign(world, payload, header=HEADER | {4: b"k"}, unprotected={4: b"k"}),
        sign(world, payload, header=HEADER | {15: {1: "x"}}),
        sign(world, payload, unprotected={33: b"a certificate"}),
        signed(*parts[:3]),
        signed(parts[0], {1: -7}, *parts[2:]),
        signed(b"", {1: -7}, *parts[2:]),
        signed(parts[0], {}, None, parts[3]),
        signed(*parts[:3], b""),
        signed(*parts[:3], bytes(64)),
        signed(*parts[:3], parts[3] + b"\x00"),
        cbor2.dumps(cbor2.CBORTag(17, [*parts])),
        cbor2.dumps([*parts]),
        bytes(8193),
        b"",
        b"\xd8\x3d" * 2000,
        b"\x9f",
    ]
    for blob in hostile:
        with pytest.raises(EarError):
            verify(world, blob)
    assert verify(world, token)


def test_mutations_are_refused_and_raise_nothing_else(world, token):
    dice = random.Random(20261201)
    for _ in range(1500):
        blob = bytearray(token)
        for _ in range(dice.randint(1, 3)):
            place = dice.randrange(len(blob))
            match dice.randrange(3):
                case 0:
                    blob[place] ^= 1 << dice.randrange(8)
                case 1:
                    del blob[place]
                case _:
                    blob.insert(place, dice.randrange(256))
        if bytes(blob) == token:
            continue
        with pytest.raises(EarError):
            verify(world, bytes(blob))
    assert verify(world, token)


def test_mutated_claims_under_a_good_signature_raise_nothing_else(world, token):
    """What the judge behind the signature has to bear: accepted or refused, never another exception."""
    dice, octets, refused = random.Random(20261202), cbor2.loads(token).value[2], 0
    for _ in range(800):
        blob = bytearray(octets)
        blob[dice.randrange(len(blob))] = dice.randrange(256)
        try:
            verify(world, sign(world, bytes(blob)))
        except EarError:
            refused += 1
    assert 300 < refused < 800  # nonces, digests and texts may be any


def test_junk_in_every_place_of_the_claims_raises_nothing_else(world, payload):
    junk = [
        None,
        True,
        0,
        -1,
        (1 << 64) - 1,
        b"",
        b"x" * 32,
        "",
        "x",
        "a" * 300,
        [],
        [1],
        {},
        {0: 0},
        {"x": 1},
        Tag(1, 0),
    ]
    submodule, refused = dict(payload[266]["dpu-0"]), 0
    payload = dict(payload)
    for value in junk:
        cases = [payload | {key: value} for key in payload]
        cases += [payload | {266: {"dpu-0": submodule | {key: value}}} for key in submodule]
        for case in cases:
            try:
                verify(world, sign(world, case))
            except EarError:
                refused += 1
    assert refused > 200
    assert verify(world, sign(world, payload))
