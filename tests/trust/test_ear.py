"""Attestation results: what is issued verifies, and nothing else does."""

from __future__ import annotations

import base64
import dataclasses
import hmac
import json
from datetime import datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc import jws, jwt
from joserfc.jwk import ECKey, RSAKey

from ztdpu.errors import EarError
from ztdpu.model.attestation import Dimension, Tier
from ztdpu.trust import claims
from ztdpu.trust.ear import issue_ear, verify_ear
from ztdpu.trust.ear_claims import EAR_PROFILE

BINDING = b"b" * 32


@pytest.fixture(scope="module")
def appraisal(world):
    return world.appraise()


def issue(world, appraisal, **changes):
    arguments = {
        "device": "dpu-0",
        "key": world.ear_key,
        "issuer": "spiffe://ztdpu.lab/control",
        "now": world.now,
        "binding_sha256": BINDING,
        "ttl_s": 60,
    } | changes
    return issue_ear(appraisal, **arguments)


def verify(world, token, **changes):
    arguments = {
        "key": world.ear_key.public_key(),
        "now": world.now,
        "device": "dpu-0",
        "binding_sha256": BINDING,
    } | changes
    return verify_ear(token, **arguments)


def decode_part(token, part):
    text = token.split(".")[part]
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def encode_part(value):
    octets = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(octets).rstrip(b"=").decode()


def sign(world, payload, header=None):
    """Sign whatever payload with control's own key: what a careless issuer would make."""
    header = header or {"alg": "ES256", "typ": "JWT"}
    octets = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return jws.serialize_compact(header, octets, ECKey.import_key(world.ear_key), algorithms=["ES256"])


@pytest.fixture(scope="module")
def payload(world, appraisal):
    return decode_part(issue(world, appraisal), 1)


def test_what_is_issued_verifies(world, appraisal):
    result = verify(world, issue(world, appraisal))
    assert result.status is Tier.AFFIRMING
    assert result.vector == appraisal.vector
    assert result.ueid == appraisal.ueid
    assert result.device_id_sha256 == appraisal.device_id_sha256
    assert result.boot_counter == 7
    assert result.nonce == world.spdm_nonce
    assert result.expires_at - result.issued_at == timedelta(seconds=60)
    assert result.policies == ("default",)


def test_claim_names_are_those_of_draft_3(payload):
    assert payload["eat_profile"] == EAR_PROFILE
    assert EAR_PROFILE.startswith("tag:")
    assert type(payload["iat"]) is int
    assert set(payload["ear_verifier_id"]) == {"developer", "build"}
    submodule = payload["submods"]["dpu-0"]
    assert submodule["ear_status"] == payload["ear_status"] == "affirming"
    assert submodule["ear_trustworthiness_vector"]["executables"] == 3
    assert submodule["ear_appraisal_policy_ids"] == ["default"]
    assert 8 <= len(payload["eat_nonce"]) <= 88


def test_another_jose_reads_it(world, appraisal):
    token = jwt.decode(issue(world, appraisal), ECKey.import_key(world.ear_key.public_key()), algorithms=["ES256"])
    assert token.header == {"alg": "ES256", "typ": "JWT"}


@pytest.mark.parametrize(
    ("offset_s", "accepted"), [(-31, False), (-30, True), (0, True), (60, True), (90, True), (91, False), (3600, False)]
)
def test_freshness_with_thirty_seconds_of_slack(world, appraisal, offset_s, accepted):
    token, now = issue(world, appraisal), world.now + timedelta(seconds=offset_s)
    if accepted:
        assert verify(world, token, now=now)
    else:
        with pytest.raises(EarError, match=r"fresh|future"):
            verify(world, token, now=now)


def test_for_another_device_binding_or_key(world, appraisal):
    token = issue(world, appraisal)
    for changes in (
        {"device": "dpu-1"},
        {"binding_sha256": b"c" * 32},
        {"binding_sha256": b""},
        {"key": world.p256(30).public_key()},
    ):
        with pytest.raises(EarError):
            verify(world, token, **changes)
    assert verify(world, token)


@pytest.mark.parametrize("tier", list(Tier))
def test_only_leased_tiers_pass_by_default(world, appraisal, tier):
    claim = {Tier.NONE: 0, Tier.AFFIRMING: 2, Tier.WARNING: 32, Tier.CONTRAINDICATED: 96}[tier]
    lowered = dataclasses.replace(appraisal, tier=tier, vector={Dimension.EXECUTABLES: claim})
    token = issue(world, lowered)
    assert verify(world, token, allowed_tiers=frozenset(Tier)).status is tier
    if tier in (Tier.AFFIRMING, Tier.WARNING):
        assert verify(world, token).status is tier
    else:
        with pytest.raises(EarError, match=tier.word):
            verify(world, token)


def change(payload, path, value):
    """A deep copy with one claim changed, or left out where `value` is `...`."""
    copy = json.loads(json.dumps(payload))
    part = copy
    for name in path[:-1]:
        part = part[name]
    if value is ...:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    return copy


S = ("submods", "dpu-0")
REFUSED = [
    *((("eat_profile",), value) for value in (..., "tag:ietf.org,2026:rats/ear#03", None, 1)),
    *((("iss",), value) for value in (..., "", 1)),
    *((("iat",), value) for value in (..., 1.5, "1", True, -1, 2**63)),
    *((("exp",), value) for value in (..., 1.5, None, 0, 2**80)),
    *((("eat_nonce",), value) for value in (..., "", "AAAA", "!" * 43, ["a"])),
    *((("ear_status",), value) for value in (..., "good", 2, "Affirming")),
    *((("ear_verifier_id",), value) for value in (..., {}, {"build": "x"}, "x")),
    *((("submods",), value) for value in (..., {}, [], {"dpu-0": 1}, {"dpu-0": {}, "dpu-1": {}})),
    *(((*S, "ear_status"), value) for value in (..., "none!", "")),
    *(((*S, "ear_trustworthiness_vector"), value) for value in (..., {}, [], {"luck": 2}, {"executables": "3"})),
    *(((*S, "ear_trustworthiness_vector", "executables"), value) for value in (True, 3.0, 128, -129, None)),
    *(((*S, "ear_appraisal_policy_ids"), value) for value in (..., "default", [], [1])),
    *(((*S, "ueid"), value) for value in (..., "AQ", 1)),
    *(((*S, "bootcount"), value) for value in (..., -1, True, "7", 2**64)),
    *(((*S, "ztdpu_binding_sha256"), value) for value in (..., "AAAA", None)),
    *(((*S, "ztdpu_device_id_sha256"), value) for value in (..., "AAAA", None)),
]


@pytest.mark.parametrize(("path", "value"), REFUSED)
def test_every_required_claim(world, payload, path, value):
    with pytest.raises(EarError):
        verify(world, sign(world, change(payload, path, value)))


def test_unknown_claims_are_ignored(world, payload):
    for path in (("x",), (*S, "x"), ("ear_verifier_id", "x")):
        assert verify(world, sign(world, change(payload, path, {"deep": [1]})))


@pytest.mark.parametrize("claim", [32, 33, 95, -33, 96, 127, -97])
def test_status_is_never_better_than_the_vector(world, payload, claim):
    worse = change(payload, (*S, "ear_trustworthiness_vector", "hardware"), claim)
    with pytest.raises(EarError, match="better"):
        verify(world, sign(world, worse))
    honest = claims.tier_of_claim(claim).word
    told = change(change(worse, (*S, "ear_status"), honest), ("ear_status",), honest)
    assert verify(world, sign(world, told), allowed_tiers=frozenset(Tier)).status.word == honest
    flattering = change(worse, (*S, "ear_status"), honest)
    with pytest.raises(EarError, match="better"):
        verify(world, sign(world, flattering), allowed_tiers=frozenset(Tier))


def test_a_worse_status_than_the_vector_is_allowed(world, payload):
    worse = change(change(payload, (*S, "ear_status"), "warning"), ("ear_status",), "warning")
    assert verify(world, sign(world, worse)).status is Tier.WARNING


def test_contradictory_times(world, payload):
    for iat, exp in ((payload["iat"], payload["iat"]), (payload["iat"], payload["iat"] + 3601)):
        with pytest.raises(EarError, match="contradictory"):
            verify(world, sign(world, change(change(payload, ("iat",), iat), ("exp",), exp)))


def test_other_algorithms_and_headers(world, appraisal, payload):
    token = issue(world, appraisal)
    body = token.split(".")[1]
    # Algorithm confusion: the public key taken for a secret.
    head = encode_part({"alg": "HS256", "typ": "JWT"}) + "." + body
    confused = head + "." + encode_part(hmac.digest(world.spki(world.ear_key), head.encode(), "sha256"))
    rsa_key = RSAKey.import_key(rsa.generate_private_key(65537, 2048))
    wrong = [
        encode_part({"alg": "none"}) + "." + body + ".",
        encode_part({"alg": "none", "typ": "JWT"}) + "." + body + "." + token.split(".")[2],
        confused,
        jwt.encode({"alg": "RS256", "typ": "JWT"}, payload, rsa_key, algorithms=["RS256"]),
        sign(world, payload, {"alg": "ES256"}),
        sign(world, payload, {"alg": "ES256", "typ": "at+jwt"}),
        sign(world, payload, {"alg": "ES256", "typ": "JWT", "kid": "other"}),
        "",
        ".",
        "..",
        "a.b.c",
        token + ".",
        token + "A",
        token[:-1],
        token.replace(".", "", 1),
        token + "=" * 9000,
        "ä" + token,
        "[" * 8000 + "." + body + "." + token.split(".")[2],
        encode_part(b"[" * 5000) + "." + body + "." + token.split(".")[2],
    ]
    for one in wrong:
        with pytest.raises(EarError):
            verify(world, one)
    assert verify(world, token)


def test_signed_json_that_is_ambiguous(world, payload):
    text = json.dumps(payload)
    twice = text[:-1] + ', "ear_status": "affirming"}'
    for octets in (
        twice.encode(),
        b"[]",
        b"1",
        b"{",
        text.replace('"exp": ', '"exp": NaN, "x": ').encode(),
        b'{"a":' * 1500 + b"1" + b"}" * 1500,
        b"\xff",
    ):
        with pytest.raises(EarError):
            verify(world, sign(world, octets))
    assert verify(world, sign(world, text.encode()))


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_no_change_of_a_token_is_accepted(world, fixed_token, data):
    place = data.draw(st.integers(0, len(fixed_token) - 1))
    letter = data.draw(st.sampled_from("ABCxyz019-_.=\n "))
    changed = fixed_token[:place] + letter + fixed_token[place + 1 :]
    if changed == fixed_token:
        return
    with pytest.raises(EarError):
        verify(world, changed)


@pytest.fixture(scope="module")
def fixed_token(world, appraisal):
    return issue(world, appraisal)


def test_the_callers_own_mistakes(world, appraisal):
    for changes in (
        {"ttl_s": 0},
        {"ttl_s": 3601},
        {"binding_sha256": b""},
        {"device": ""},
        {"key": world.p384(31)},
        {"now": datetime(2026, 1, 1)},  # noqa: DTZ001
    ):
        with pytest.raises(ValueError):
            issue(world, appraisal, **changes)
    token = issue(world, appraisal)
    for changes in ({"key": world.p384(31).public_key()}, {"now": datetime(2026, 1, 1)}):  # noqa: DTZ001
        with pytest.raises(ValueError):
            verify(world, token, **changes)


def test_old_claim_names_are_not_read(world, shared_vectors):
    path = shared_vectors / "rats" / "ear_own.json"
    if not path.exists():
        pytest.skip("ear_own.json is not here")
    vector = json.loads(path.read_text())
    with pytest.raises(EarError):
        verify(world, sign(world, vector["ear_claims_veraison_2023"]))
    key = ECKey.import_key(vector["public_pem"]).public_key
    with pytest.raises(EarError, match="profile"):
        verify(world, vector["ear_jwt_draft04_names"], key=key)


@pytest.mark.parametrize(
    ("claim", "tier"),
    [
        *((claim, Tier.NONE) for claim in (-1, 0, 1)),
        *((claim, Tier.AFFIRMING) for claim in (2, 31, -2, -32)),
        *((claim, Tier.WARNING) for claim in (32, 95, -33, -96)),
        *((claim, Tier.CONTRAINDICATED) for claim in (96, 127, -97, -128)),
    ],
)
def test_tiers_of_claims(claim, tier):
    assert claims.tier_of_claim(claim) is tier


def test_claims_out_of_bounds():
    for claim in (128, -129):
        with pytest.raises(ValueError, match="127"):
            claims.tier_of_claim(claim)


@given(st.dictionaries(st.sampled_from(Dimension), st.integers(-128, 127)))
def test_the_worst_claim_decides(vector):
    said = [claims.tier_of_claim(claim) for claim in vector.values() if claim]
    worst = max(map(claims.rank_of_tier, said), default=claims.rank_of_tier(Tier.NONE))
    assert claims.rank_of_tier(claims.tier_of_vector(vector)) == worst


@pytest.fixture(scope="module")
def erot(world):
    """Appraisal of a second root in the same device: its own chain, nonce and boot."""
    nonce = bytes(range(64, 96))
    return world.appraise(world.collect(world.boot("dpu-1", counter=3), nonce=nonce), nonce=nonce)


def test_a_device_with_two_roots_is_one_result_with_two_submodules(world, appraisal, erot):
    token = issue(world, appraisal, components={"erot": erot})
    assert set(decode_part(token, 1)["submods"]) == {"dpu-0", "dpu-0/erot"}
    result = verify(world, token)
    part = result.components["erot"]
    assert (part.ueid, part.boot_counter, part.nonce) == (erot.ueid, 3, erot.nonce)
    assert (result.ueid, result.nonce, result.status) == (appraisal.ueid, appraisal.nonce, Tier.AFFIRMING)


def test_the_status_on_top_is_the_worst_submodule(world, appraisal, erot):
    sick = dataclasses.replace(erot, tier=Tier.CONTRAINDICATED, vector=dict(erot.vector) | {Dimension.EXECUTABLES: 96})
    token = issue(world, appraisal, components={"erot": sick})
    assert decode_part(token, 1)["ear_status"] == "contraindicated"
    assert decode_part(token, 1)["submods"]["dpu-0"]["ear_status"] == "affirming"
    with pytest.raises(EarError, match="contraindicated"):
        verify(world, token)
    assert verify(world, token, allowed_tiers=frozenset(Tier)).components["erot"].status is Tier.CONTRAINDICATED


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda body: body["submods"].update({"dpu-1/erot": body["submods"].pop("dpu-0/erot")}), "something else"),
        (lambda body: body["submods"].update({"dpu-0/a/b": body["submods"].pop("dpu-0/erot")}), "something else"),
        (lambda body: body["submods"].update({"dpu-0/": body["submods"].pop("dpu-0/erot")}), "something else"),
        (lambda body: body["submods"].update({"dpu-1": body["submods"].pop("dpu-0/erot")}), "exactly one device"),
        (lambda body: body["submods"].pop("dpu-0"), "exactly one device"),
        (lambda body: body["submods"]["dpu-0/erot"].pop("eat_nonce"), "eat_nonce"),
        (lambda body: body["submods"]["dpu-0/erot"].update(ear_status="warning"), "worst of its submodules"),
        (
            lambda body: body["submods"]["dpu-0/erot"]["ear_trustworthiness_vector"].update(executables=96),
            "better status than its",
        ),
        (lambda body: body["submods"].update({"dpu-0/erot": ["JWT", "x"]}), "lacks"),
        (lambda body: body["submods"].update({f"dpu-0/c{n}": body["submods"]["dpu-0/erot"] for n in range(9)}), "one"),
    ],
)
def test_hostile_submodules(world, appraisal, erot, change, said):
    body = decode_part(issue(world, appraisal, components={"erot": erot}), 1)
    assert verify(world, sign(world, body)).components
    change(body)
    with pytest.raises(EarError, match=said):
        verify(world, sign(world, body))


def test_names_of_components_are_bounded(world, appraisal, erot):
    for names in (["Erot"], ["a/b"], [""], [f"c{n}" for n in range(5)]):
        with pytest.raises(ValueError, match="components"):
            issue(world, appraisal, components=dict.fromkeys(names, erot))


def test_the_drafts_own_example_is_of_another_profile(world, shared_vectors):
    """Its signature is good, its names and its float `iat` are of 2023: read by nobody here."""
    path = shared_vectors / "rats" / "ear_draft_jwt.json"
    if not path.exists():
        pytest.skip("ear_draft_jwt.json is not here")
    vector = json.loads(path.read_text())
    key = ECKey.import_key(vector["trusted_verifiers"]["keys"][0])
    payload = jwt.decode(vector["ear_token"], key, algorithms=["ES256"]).claims
    assert payload["eat_profile"] == "tag:github.com,2023:veraison/ear"
    with pytest.raises(EarError, match="profile"):
        verify(world, vector["ear_token"], key=key.public_key)


def test_own_claims_are_those_of_the_vector(world, appraisal, shared_vectors):
    """Everything that the draft-04 vector has, ours has under the same names and of the same types."""
    path = shared_vectors / "rats" / "ear_own.json"
    if not path.exists():
        pytest.skip("ear_own.json is not here")
    vector = json.loads(path.read_text())
    key = ECKey.import_key(vector["public_pem"])
    theirs = jwt.decode(vector["ear_jwt_draft04_names"], key, algorithms=["ES256"]).claims
    assert theirs == vector["ear_claims_draft04"]
    ours = decode_part(issue(world, appraisal), 1)
    assert not set(theirs) - set(ours)
    assert all(type(ours[name]) is type(value) for name, value in theirs.items())
    (their_part,), (our_part,) = theirs["submods"].values(), ours["submods"].values()
    assert not set(their_part) - set(our_part)
    assert their_part["ear_trustworthiness_vector"] == our_part["ear_trustworthiness_vector"]
