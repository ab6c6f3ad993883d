"""Envelopes: one signature per content, bound to its label."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztdpu.keys import wire
from ztdpu.keys.envelope import SignatureError, WireError, read_envelope, sign_envelope, verify_envelope

ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


@given(label=st.text(min_size=1, max_size=8), body=st.binary(max_size=100))
def test_round_trip(label, body):
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, derive_private_key

    key = derive_private_key(7, SECP256R1())
    envelope = read_envelope(sign_envelope(label, body, key))
    assert (envelope.label, envelope.body) == (label, body)
    verify_envelope(envelope, key.public_key())
    assert int.from_bytes(envelope.signature[32:], "big") <= ORDER // 2


def test_label_body_and_key_are_bound(kit):
    key, other = kit.OFFER_KEYS["dpu-0"], kit.OFFER_KEYS["dpu-1"]
    envelope = read_envelope(sign_envelope("sa-hint", b"body", key))
    verify_envelope(envelope, key.public_key())
    for changed, public in (
        (kit.replace(envelope, label="sa-offer"), key),
        (kit.replace(envelope, body=b"bode"), key),
        # The separator cannot be moved between label and body.
        (kit.replace(envelope, label="sa-hin", body=b"t\0body"), key),
        (envelope, other),
    ):
        with pytest.raises(SignatureError):
            verify_envelope(changed, public.public_key())


def test_higher_form_of_a_signature(kit):
    key = kit.OFFER_KEYS["dpu-0"]
    envelope = read_envelope(sign_envelope("sa-hint", b"body", key))
    s = ORDER - int.from_bytes(envelope.signature[32:], "big")
    with pytest.raises(SignatureError, match="lower form"):
        verify_envelope(
            kit.replace(envelope, signature=envelope.signature[:32] + s.to_bytes(32, "big")), key.public_key()
        )


@pytest.mark.parametrize(
    "fields",
    [
        ["sa-hint", b"body"],
        ["sa-hint", b"body", bytes(63)],
        ["sa-hint", "body", bytes(64)],
        [1, b"", bytes(64)],
        b"",
        7,
    ],
)
def test_malformed(fields):
    assert read_envelope(wire.encode(["sa-hint", b"body", bytes(64)]))
    with pytest.raises(WireError):
        read_envelope(wire.encode(fields))
