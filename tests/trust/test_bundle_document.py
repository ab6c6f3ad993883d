"""Bundle documents: what is written is read again, what is malformed or goes back is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from ztdpu.errors import SvidError
from ztdpu.trust.bundle_document import BundleDocument, check_successor, encode_bundle_document, read_bundle_document
from ztdpu.trust.jwt_svid import key_id, read_jwt_bundle
from ztdpu.trust.svid import create_authority

DOMAIN = "test.example"
NOW = datetime(2026, 12, 1, tzinfo=UTC)
KEYS = {curve.name: ec.generate_private_key(curve) for curve in (ec.SECP256R1(), ec.SECP384R1())}
AUTHORITIES = tuple(
    create_authority(DOMAIN, NOW - timedelta(hours=1), key, number).certificate
    for number, key in enumerate(KEYS.values(), start=1)
)
JWT_KEY = KEYS["secp256r1"].public_key()


def make(**changes: Any) -> BundleDocument:
    fields: dict[str, Any] = {
        "trust_domain": DOMAIN,
        "sequence": 7,
        "refresh_hint_s": 300,
        "authorities": AUTHORITIES,
        "jwt_keys": {key_id(JWT_KEY): JWT_KEY},
    }
    return BundleDocument(**fields | changes)


def read(octets: bytes) -> BundleDocument:
    return read_bundle_document(octets, trust_domain=DOMAIN)


@given(sequence=st.integers(0, (1 << 63) - 1), hint_s=st.integers(0, 86_400), count=st.integers(0, 2))
def test_what_is_written_is_read_again(sequence, hint_s, count) -> None:
    document = make(sequence=sequence, refresh_hint_s=hint_s, authorities=AUTHORITIES[:count])
    assert read(encode_bundle_document(document)) == document


def test_key_ids_stand_with_keys_of_jwt_svids_alone() -> None:
    fields = json.loads(encode_bundle_document(make()))
    by_use = {one["use"]: one for one in fields["keys"]}
    assert "kid" not in by_use["x509-svid"]
    assert len(by_use["x509-svid"]["x5c"]) == 1
    assert by_use["jwt-svid"]["kid"] == key_id(JWT_KEY)
    assert fields["spiffe_sequence"] == 7
    assert set(read_jwt_bundle(encode_bundle_document(make()))) == {key_id(JWT_KEY)}


def changed(change: Any) -> bytes:
    fields = json.loads(encode_bundle_document(make()))
    change(fields)
    return json.dumps(fields).encode()


def test_unknown_uses_and_kinds_are_left_out() -> None:
    def add(fields: Any) -> None:
        fields["keys"] += [{"kty": "EC", "use": "wit-svid", "kid": "x"}, {"kty": "RSA", "use": "x509-svid"}]

    assert read(changed(add)) == make()


MALFORMED = {
    "no sequence": lambda f: f.pop("spiffe_sequence"),
    "sequence is a text": lambda f: f.update(spiffe_sequence="7"),
    "sequence below zero": lambda f: f.update(spiffe_sequence=-1),
    "sequence beyond 63 bits": lambda f: f.update(spiffe_sequence=1 << 63),
    "no keys": lambda f: f.pop("keys"),
    "entry without use": lambda f: f["keys"][0].pop("use"),
    "two certificates": lambda f: f["keys"][0]["x5c"].append(f["keys"][0]["x5c"][0]),
    "no certificate": lambda f: f["keys"][0].update(x5c=[]),
    "key id of a certificate": lambda f: f["keys"][0].update(kid="x"),
    "another key": lambda f: f["keys"][0].update(x=f["keys"][1]["x"]),
    "no key id": lambda f: f["keys"][2].pop("kid"),
    "no point": lambda f: f["keys"][2].update(x="AA"),
    "too many": lambda f: f.update(keys=f["keys"] * 5),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_documents_are_refused(case) -> None:
    assert read(changed(lambda _: None)) == make()
    with pytest.raises(SvidError):
        read(changed(MALFORMED[case]))


@pytest.mark.parametrize("octets", [b"", b"[]", b"{", b'{"keys":[],"keys":[],"spiffe_sequence":1}', b" " * 70_000])
def test_what_is_no_document_is_refused(octets) -> None:
    with pytest.raises(SvidError):
        read(octets)


def test_an_authority_of_another_domain_is_refused() -> None:
    other = create_authority("other.example", NOW, ec.generate_private_key(ec.SECP384R1()), 9).certificate
    with pytest.raises(SvidError):
        read(encode_bundle_document(make(authorities=(other,))))


def test_a_successor_never_goes_back_and_believes_somebody() -> None:
    check_successor(make(), sequence=7)
    with pytest.raises(SvidError, match="older"):
        check_successor(make(), sequence=8)
    with pytest.raises(SvidError, match="without authorities"):
        check_successor(make(authorities=()), sequence=1)


# --- documents of another implementation ---------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "domain", "jwt_keys", "cause"),
    [
        ("spiffebundle_valid_1.json", "local", 1, None),
        ("spiffebundle_valid_2.json", "local", 6, None),
        ("spiffebundle_missing_kid.json", "local", 0, KeyError),
        ("spiffebundle_multiple_x509.json", "local", 0, ValueError),
        ("spiffebundle_no_keys.json", "local", 0, KeyError),
    ],
)
def test_documents_of_another_implementation(shared_vectors, name, domain, jwt_keys, cause):
    """They may leave the sequence out; ours never do, so without one a document is refused whatever is in it."""
    path = shared_vectors / "spiffe" / name
    if not path.exists():
        pytest.skip(f"{name} is not here")
    fields = json.loads(path.read_bytes())
    octets = json.dumps({"spiffe_sequence": 1} | fields).encode()
    if cause is None:
        document = read_bundle_document(octets, trust_domain=domain)
        assert (len(document.authorities), len(document.jwt_keys)) == (1, jwt_keys)
    else:
        with pytest.raises(SvidError) as refusal:
            read_bundle_document(octets, trust_domain=domain)
        assert isinstance(refusal.value.__cause__, cause)
    if "spiffe_sequence" not in fields:
        with pytest.raises(SvidError):
            read_bundle_document(path.read_bytes(), trust_domain=domain)
