"""Form and signature of what arrives: flips, cuts, foreign encodings, labels."""

from __future__ import annotations

import cbor2
import pytest

from ztdpu.errors import ExchangeError
from ztdpu.keys import wire
from ztdpu.keys.envelope import sign_envelope
from ztdpu.keys.exchange import Allocate


def all_four(pair):
    """One good message of each kind, with who takes it and from whom."""
    request = pair.request()
    yield request, pair.b, "dpu-0"
    offer = pair.offer(request)
    yield offer, pair.a, "dpu-1"
    install = pair.at_a(offer)
    yield pair.a.exchange.installed(install.offer_hash, [1], now_s=pair.now_s), pair.b, "dpu-0"
    yield pair.b.exchange.hint("dpu-0", "restart", now_s=pair.now_s), pair.a, "dpu-1"


def test_every_bit_flip_is_refused(pair, kit):
    count = 0
    for envelope, taker, sender in all_four(pair):
        before = kit.snapshot(taker.exchange)
        for at in range(len(envelope)):
            for bit in range(8):
                flipped = bytearray(envelope)
                flipped[at] ^= 1 << bit
                with pytest.raises(ExchangeError):
                    taker.exchange.receive(sender, bytes(flipped), now_s=pair.now_s)
                count += 1
        assert kit.snapshot(taker.exchange) == before
    assert count > 25_000
    pair.now_s += 1
    assert pair.finish(pair.request()).spis


def test_every_truncation_and_extra_octets_are_refused(pair, kit):
    for envelope, taker, sender in all_four(pair):
        before = kit.snapshot(taker.exchange)
        for octets in range(len(envelope)):
            with pytest.raises(ExchangeError, match="malformed"):
                taker.exchange.receive(sender, envelope[:octets], now_s=pair.now_s)
        for extra in (b"\0", b"\xf6", envelope):
            with pytest.raises(ExchangeError, match="malformed"):
                taker.exchange.receive(sender, envelope + extra, now_s=pair.now_s)
        assert kit.snapshot(taker.exchange) == before


def test_too_large(pair, kit):
    kit.refused(pair.b, "dpu-0", bytes(64 * 1024 + 1), pair.now_s, "too large")
    kit.refused(pair.b, "dpu-0", bytes(64 * 1024), pair.now_s, "malformed")
    assert pair.finish(pair.request()).spis


def rewrite_body(pair, change):
    """A request whose body is `change` of the honest one, signed by the peer."""
    body = wire.decode(pair.forge_request())[1]
    return sign_envelope("sa-request", change(body), pair.a.key)


BODY_ATTACKS = {
    "octets behind": lambda body: body + b"\0",
    "cut": lambda body: body[:-1],
    "longer head than needed": lambda body: b"\x98\x06" + body[1:],
    "indefinite array": lambda body: b"\x9f" + body[1:] + b"\xff",
    "a map": lambda body: b"\xa1\x00" + body,
    "a tag": lambda body: b"\xd9\xd9\xf7" + body,
    "one field more": lambda body: cbor2.dumps([*cbor2.loads(body), 0]),
    "one field less": lambda body: cbor2.dumps(cbor2.loads(body)[:-1]),
    "another label inside": lambda body: cbor2.dumps(["sa-offer", *cbor2.loads(body)[1:]]),
    "another suite": lambda body: cbor2.dumps([*cbor2.loads(body)[:3], [0x20, 1, 2], *cbor2.loads(body)[4:]]),
    "another protocol": lambda body: cbor2.dumps(
        [cbor2.loads(body)[0], [2, *cbor2.loads(body)[1][1:]], *cbor2.loads(body)[2:]]
    ),
    "a float": lambda body: cbor2.dumps([*cbor2.loads(body)[:5], 1.5]),
    "a boolean": lambda body: cbor2.dumps([*cbor2.loads(body)[:5], True]),
    "null": lambda body: cbor2.dumps(None),
    "not an array": lambda body: cbor2.dumps("sa-request"),
    "empty": lambda body: b"",
    "negative": lambda body: cbor2.dumps([*cbor2.loads(body)[:5], [[-1]]]),
    "deep": lambda body: b"\x81" * 8 + b"\x00",
    "wants as text": lambda body: cbor2.dumps([*cbor2.loads(body)[:5], "wants"]),
}


@pytest.mark.parametrize("attack", BODY_ATTACKS)
def test_signed_body_that_is_not_canonical(pair, kit, attack):
    honest = pair.request()
    kit.refused(pair.b, "dpu-0", rewrite_body(pair, BODY_ATTACKS[attack]), pair.now_s, "malformed")
    assert pair.finish(honest).spis


def test_signed_body_unchanged_is_accepted(pair):
    assert isinstance(pair.at_b(rewrite_body(pair, lambda body: body)), Allocate)


@pytest.mark.parametrize("label", ["sa-offer", "sa-installed", "sa-hint", "key-binding", "", "x" * 40])
def test_signature_under_one_label_is_nothing_under_another(pair, kit, label):
    _, body, signature = wire.decode(pair.forge_request())
    relabelled = wire.encode([label, body, signature])
    kit.refused(pair.b, "dpu-0", relabelled, pair.now_s, "malformed" if len(label) > 32 else "not the peer's")
    resigned = sign_envelope(label, body, pair.a.key)
    kit.refused(pair.b, "dpu-0", resigned, pair.now_s, "malformed")


def test_the_other_signature_of_the_same_body(pair, kit):
    # ECDSA has two valid signatures for one content; a second envelope would have another hash.
    label, body, signature = wire.decode(pair.request())
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    other = signature[:32] + (order - int.from_bytes(signature[32:], "big")).to_bytes(32, "big")
    kit.refused(pair.b, "dpu-0", wire.encode([label, body, other]), pair.now_s, "not the peer's")
    assert pair.finish(wire.encode([label, body, signature])).spis


@pytest.mark.parametrize("signature", [bytes(64), b"\xff" * 64, b"\x00" * 63 + b"\x01", b"\x01" * 64])
def test_worthless_signatures(pair, kit, signature):
    label, body, _ = wire.decode(pair.request())
    kit.refused(pair.b, "dpu-0", wire.encode([label, body, signature]), pair.now_s, "not the peer's")


def test_nothing_received_shows_in_an_error(pair, kit):
    forged = pair.forge_request(head=pair.head(trust_domain="secret-canary"))
    with pytest.raises(ExchangeError) as caught:
        pair.at_b(forged)
    assert "canary" not in str(caught.value)
