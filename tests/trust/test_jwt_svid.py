"""JWT-SVIDs: what is issued, what is refused, and two other implementations of JWT."""

import base64
import json
from datetime import UTC, datetime, timedelta

import jwt as pyjwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from joserfc import jwt
from joserfc.jwk import ECKey

from ztdpu.errors import SvidError
from ztdpu.trust.jwt_svid import (
    JWT_BUNDLE_LIMIT_OCTETS,
    check_audience,
    issue_jwt_svid,
    jwt_bundle,
    key_id,
    read_jwt_bundle,
    verify_jwt_svid,
)
from ztdpu.trust.spiffe_id import SpiffeId, parse_spiffe_id

NOW = datetime(2026, 11, 1, tzinfo=UTC)
ID = parse_spiffe_id("spiffe://test.example/tenant/blue/job/train/rank/0")
KEY = ec.derive_private_key(11, ec.SECP256R1())
OTHER = ec.derive_private_key(12, ec.SECP256R1())
KEYS = {key_id(KEY.public_key()): KEY.public_key()}


def issue(**changes):
    given = {"key": KEY, "spiffe_id": ID, "audience": ["db"], "now": NOW, "ttl_s": 60}
    return issue_jwt_svid(**given | changes)


def verify(token, **changes):
    given = {"keys": KEYS, "trust_domain": "test.example", "audience": "db", "now": NOW}
    return verify_jwt_svid(token, **given | changes)


def forge(header=(), claims=(), *, key=KEY):
    """A token with a good signature and whatever else."""
    head = {"alg": "ES256", "kid": key_id(KEY.public_key()), "typ": "JWT"} | dict(header)
    body = {"sub": str(ID), "aud": ["db"], "iat": int(NOW.timestamp()), "exp": int(NOW.timestamp()) + 60} | dict(claims)
    body = {name: value for name, value in body.items() if value is not None}
    return jwt.encode(head, body, ECKey.import_key(key), algorithms=["ES256"])


def test_issued_verifies_here_and_elsewhere():
    token = issue(audience=["db", "web"])
    svid = verify(token)
    assert (svid.spiffe_id, svid.audience) == (ID, ("db", "web"))
    assert svid.expires_at == NOW + timedelta(seconds=60)
    options = {"verify_exp": False, "verify_iat": False}
    claims = pyjwt.decode(token, KEY.public_key(), algorithms=["ES256"], audience="web", options=options)
    assert claims["sub"] == str(ID)
    assert pyjwt.get_unverified_header(token)["kid"] == key_id(KEY.public_key())


def test_the_bundle_is_read_here_and_elsewhere():
    bundle = jwt_bundle([KEY.public_key(), OTHER.public_key()])
    assert set(read_jwt_bundle(bundle)) == {key_id(KEY.public_key()), key_id(OTHER.public_key())}
    entry = json.loads(bundle)["keys"][0]
    assert (entry["use"], entry["kty"]) == ("jwt-svid", "EC")
    assert ECKey.import_key({k: v for k, v in entry.items() if k != "use"}).thumbprint() == entry["kid"]


def test_forged_like_a_good_one_verifies():
    assert verify(forge()).spiffe_id == ID
    assert verify(forge(header={"typ": "JOSE"}, claims={"aud": "db"})).audience == ("db",)


@pytest.mark.parametrize(
    "token",
    [
        forge(header={"kid": "unknown"}),
        forge(header={"typ": "at+jwt"}),
        forge(header={"jku": "https://evil.example"}),
        forge(key=OTHER),
        forge(claims={"aud": ["web"]}),
        forge(claims={"aud": []}),
        forge(claims={"aud": [7]}),
        forge(claims={"aud": None}),
        forge(claims={"sub": None}),
        forge(claims={"sub": "spiffe://other.example/x"}),
        forge(claims={"sub": "spiffe://test.example"}),
        forge(claims={"sub": "https://test.example/x"}),
        forge(claims={"exp": None}),
        forge(claims={"exp": int(NOW.timestamp()) - 6}),
        forge(claims={"exp": True}),
        forge(claims={"exp": 1e300}),
        forge(claims={"exp": (1 << 40) - 1}),  # after the last year of a datetime
        forge(claims={"iat": int(NOW.timestamp()) + 60}),
        forge(claims={"nbf": int(NOW.timestamp()) + 60}),
        pyjwt.encode({"sub": str(ID), "aud": "db", "exp": 1 << 33}, "s" * 32, algorithm="HS256"),
        pyjwt.encode({"sub": str(ID), "aud": "db", "exp": 1 << 33}, "", algorithm="none"),
        "",
        "a.b",
        "a.b.c",
        "ä.b.c",
        forge(claims={"x": "x" * 9000}),
    ],
)
def test_refused(token):
    with pytest.raises(SvidError):
        verify(token)


def test_every_flipped_bit_of_a_token_is_refused():
    token = issue()
    refused = 0
    for place in range(0, len(token), 3):
        changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
        if (
            base64.urlsafe_b64decode(changed.rpartition(".")[2] + "==")
            == base64.urlsafe_b64decode(token.rpartition(".")[2] + "==")
            and changed.rpartition(".")[0] == token.rpartition(".")[0]
        ):
            continue  # the last character has bits that mean nothing
        with pytest.raises(SvidError):
            verify(changed)
        refused += 1
    assert refused > 60


@pytest.mark.parametrize("audience", [[], ["a"] * 2, list("abcde"), [""], ["x" * 256], ["a\nb"]])
def test_audiences_are_bounded(audience):
    with pytest.raises(SvidError):
        check_audience(audience)


def test_what_is_not_issued():
    with pytest.raises(SvidError):
        issue(spiffe_id=SpiffeId(trust_domain="test.example", path=""))
    for mistake in (
        {"ttl_s": 301},
        {"ttl_s": 0},
        {"now": NOW.replace(tzinfo=None)},
        {"key": ec.generate_private_key(ec.SECP384R1())},
    ):
        with pytest.raises(ValueError):
            issue(**mistake)


@pytest.mark.parametrize(
    "octets",
    [
        b"", b"[]", b"{}", b'{"keys": 1}', b'{"keys": [1]}', b'{"keys": [{"use": "jwt-svid"}]}',
        b'{"keys": [], "keys": []}', b" " * (JWT_BUNDLE_LIMIT_OCTETS + 1),
        b'{"keys": [{"use": "jwt-svid", "kty": "EC", "crv": "P-256", "kid": "k", "x": "AA", "y": "AA"}]}',
        b'{"keys": [{"use": "jwt-svid", "kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}]}',
    ],
)  # fmt: skip
def test_bundles_that_are_none(octets):
    with pytest.raises(SvidError):
        read_jwt_bundle(octets)


def test_other_entries_of_a_bundle_are_left_out():
    mine = json.loads(jwt_bundle([KEY.public_key()]))["keys"]
    others = [
        {"use": "x509-svid", "kty": "EC"},
        {"use": "jwt-svid", "kty": "RSA", "kid": "r"},
        {"use": "x", "kty": "y"},
    ]
    assert set(read_jwt_bundle(json.dumps({"keys": others + mine, "spiffe_sequence": 1}).encode())) == set(KEYS)
    assert read_jwt_bundle(b'{"keys": []}') == {}
