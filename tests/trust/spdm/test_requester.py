"""The verifier's half: a good device is accepted, and whatever differs is refused."""

import dataclasses
import hashlib
from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from ztdpu.errors import SpdmError, StateError
from ztdpu.trust import dice
from ztdpu.trust.profile import load_profile
from ztdpu.trust.spdm import algorithms, messages
from ztdpu.trust.spdm import authentication as auth
from ztdpu.trust.spdm.evidence import decode_evidence
from ztdpu.trust.spdm.responder import Responder
from ztdpu.trust.spdm.suite import suite_of
from ztdpu.trust.spdm.transcript import SigningContext, sign_transcript

SUITE = suite_of(dataclasses.replace(load_profile("bluefield-3"), spdm_version="1.2"))
VERSION, CAPABILITIES, ALGORITHMS, DIGESTS, CERTIFICATE, CHALLENGE, MEASUREMENTS = 0, 1, 2, 3, 4, -2, -1


BORNE = {messages.ErrorCode.BUSY, messages.ErrorCode.REQUEST_RESYNCH}


def replace_answer(bench, place: int, answer: bytes) -> list[bytes]:
    answers = list(bench.answers)
    answers[place] = answer
    return answers


def refuse_at(bench, place: int, answer: bytes, **arguments) -> str:
    """Feed good answers up to `place`, then `answer`; the text of the refusal, there and nowhere before."""
    answers = list(bench.answers)
    session = bench.session(**arguments)
    for good in answers[: place % len(answers)]:
        session.next_request()
        session.receive(good)
    session.next_request()
    with pytest.raises(SpdmError) as caught:
        session.receive(answer)
    with pytest.raises(StateError):
        session.next_request()
    with pytest.raises(StateError):
        session.evidence()
    return str(caught.value)


def test_a_good_device_is_accepted(bench):
    evidence = bench.replay(bench.answers)
    assert evidence == bench.evidence
    assert evidence.blocks == bench.device.blocks
    assert evidence.certificates == bench.device.certificates
    assert evidence.nonce == b"\xaa" * 32
    assert decode_evidence(evidence.encode()) == evidence


@pytest.mark.parametrize("portion_octets", [64, 500, 1024, 4600, 8000])
def test_portions_of_any_size_give_the_same_chain(bench, portion_octets):
    evidence = bench.drive(bench.responder(), challenge_nonce=None, portion_octets=portion_octets)
    assert evidence.certificates == bench.device.certificates


def test_order_of_calls(bench):
    session = bench.session()
    with pytest.raises(StateError):
        session.receive(bench.answers[0])
    with pytest.raises(StateError):
        session.evidence()
    session.next_request()
    with pytest.raises(StateError):
        session.next_request()
    assert not session.done


@pytest.mark.parametrize("field", ["nonce", "challenge_nonce"])
def test_nonces_of_another_size_are_refused(bench, field):
    with pytest.raises(ValueError):
        bench.session(**{field: bytes(31)})


def test_every_truncation_and_extension_of_every_answer_is_refused(bench):
    for place, answer in enumerate(bench.answers):
        lengths = range(len(answer)) if len(answer) < 200 else (*range(60), *range(60, len(answer), 97))
        for length in lengths:
            refuse_at(bench, place, answer[:length])
        refuse_at(bench, place, answer + b"\0")
        refuse_at(bench, place, answer + bytes(messages.TRANSFER_OCTETS))


def check_flip(bench, place: int, bit: int) -> bool:
    """True when the flipped answer was accepted, which it may be only if nothing accepted differs."""
    flipped = bytearray(bench.answers[place])
    flipped[bit // 8] ^= 1 << bit % 8
    try:
        evidence = bench.replay(replace_answer(bench, place, bytes(flipped)))
    except SpdmError:
        return False
    assert evidence == bench.evidence, (place, bit)
    return True


def test_one_flip_in_every_octet_is_refused_or_changes_nothing(bench):
    accepted = []
    for place, answer in enumerate(bench.answers):
        bits = (octet * 8 + (octet + place) % 8 for octet in range(len(answer)))
        accepted += [(answer[1], bit) for bit in bits if check_flip(bench, place, bit)]
    # M1 and L1 together cover every octet that the device sends.
    assert accepted == []


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_flip_is_refused_without_a_challenge_too(bench, data):
    answers = [answer for answer in bench.answers if answer[1] != messages.Code.CHALLENGE_AUTH]
    place = data.draw(st.integers(0, len(answers) - 1))
    bit = data.draw(st.integers(0, len(answers[place]) * 8 - 1))
    flipped = bytearray(answers[place])
    flipped[bit // 8] ^= 1 << bit % 8
    good = bench.replay(answers, challenge_nonce=None)
    answers[place] = bytes(flipped)
    try:
        assert bench.replay(answers, challenge_nonce=None) == good
    except SpdmError:
        return
    assert answers[place][1] in {messages.Code.DIGESTS, messages.Code.CERTIFICATE}
    assert bit // 8 in {2, 3}  # reserved parameters, which no signature covers


@settings(max_examples=200)
@given(st.integers(0, 11), st.binary(max_size=120))
@example(CAPABILITIES, b"\0\0\0\0\x16\0\0\0\0\0\0\x01\0\0\0\x01")
def test_noise_is_refused(bench, place, noise):
    """There, or by the end: what happens to be well-formed, like other sizes in CAPABILITIES, is under a signature."""
    place %= len(bench.answers)
    for answer in (noise, bench.answers[place][:4] + noise):
        assume(answer != bench.answers[place])
        with pytest.raises((SpdmError, StateError)):
            bench.replay(replace_answer(bench, place, answer))


@pytest.mark.parametrize("code", [code for code in (*messages.ErrorCode, 0x99) if code not in BORNE])
def test_errors_end_the_session_with_their_name(bench, code):
    text = refuse_at(bench, MEASUREMENTS, messages.Error(version=0x12, code=code).encode())
    assert messages.describe_error(code) in text


def test_another_nonce_is_a_relay_and_refused(bench):
    bench.replay(bench.answers)
    with pytest.raises(SpdmError, match="does not verify"):
        bench.replay(bench.answers, nonce=b"\xac" * 32)
    with pytest.raises(SpdmError, match="does not verify"):
        bench.replay(bench.answers, challenge_nonce=b"\xac" * 32)


def test_a_device_without_1_2_is_refused(bench):
    good = messages.Version(entries=(0x1000, 0x1100, 0x1201)).encode()
    session = bench.session()
    session.next_request()
    session.receive(good)
    for entries in ((), (0x1000, 0x1100), (0x1300,)):
        assert "1.2" in refuse_at(bench, VERSION, messages.Version(entries=entries).encode())


@pytest.mark.parametrize("lacking", [messages.Capability.CERT, messages.Capability.MEAS_SIG, messages.Capability.CHAL])
def test_a_device_without_a_needed_capability_is_refused(bench, lacking):
    flags = messages.Capabilities.decode(bench.answers[CAPABILITIES], version=0x12).flags
    refuse_at(bench, CAPABILITIES, messages.Capabilities(version=0x12, flags=flags & ~lacking).encode())


@pytest.mark.parametrize("change", [{"transfer_octets": 41}, {"message_octets": 4607}])
def test_impossible_sizes_are_refused(bench, change):
    answer = messages.Capabilities.decode(bench.answers[CAPABILITIES], version=0x12)
    refuse_at(bench, CAPABILITIES, dataclasses.replace(answer, **change).encode())


@pytest.mark.parametrize(
    "change",
    [
        {"asymmetric": 0x10},
        {"asymmetric": 0x90},
        {"hash": 1},
        {"measurement_hash": 2},
        {"measurement_hash": 0},
        {"measurement_specification": 0},
    ],
)
def test_other_algorithms_are_refused(bench, change):
    answer = algorithms.Algorithms.decode(bench.answers[ALGORITHMS], version=0x12)
    assert "other algorithms" in refuse_at(bench, ALGORITHMS, dataclasses.replace(answer, **change).encode())


@pytest.mark.parametrize(
    "change",
    [{"other_parameters": 3}, {"other_parameters": 4}, {"tables": (algorithms.AlgorithmTable(2, 0),)}],
)
def test_what_was_not_offered_is_refused(bench, change):
    answer = algorithms.Algorithms.decode(bench.answers[ALGORITHMS], version=0x12)
    assert "not offered" in refuse_at(bench, ALGORITHMS, dataclasses.replace(answer, **change).encode())


def test_a_reserved_kind_of_measurements_is_refused(bench):
    answer = messages.Capabilities.decode(bench.answers[CAPABILITIES], version=0x12)
    odd = dataclasses.replace(answer, flags=answer.flags | messages.Capability.MEAS_NO_SIG)
    assert "signed measurements" in refuse_at(bench, CAPABILITIES, odd.encode())


def test_an_empty_slot_is_refused(bench):
    digest = auth.Digests.decode(bench.answers[DIGESTS], suite=SUITE).slots[0]
    assert "slot" in refuse_at(bench, DIGESTS, auth.Digests(version=0x12, slots={1: digest}).encode())


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"slot": 1}, id="another slot"),
        pytest.param({"portion": b""}, id="nothing: would never end"),
        pytest.param({"portion": bytes(1025)}, id="more than asked for"),
        pytest.param({"remainder": 0xFFFF}, id="too much to come"),
        pytest.param({"remainder": 0}, id="ends early"),
    ],
)
def test_portions_that_do_not_fit_are_refused(bench, change):
    answer = auth.Certificate.decode(bench.answers[CERTIFICATE], version=0x12)
    refuse_at(bench, CERTIFICATE, dataclasses.replace(answer, **change).encode())


def test_portions_that_change_their_sum_are_refused(bench):
    answer = auth.Certificate.decode(bench.answers[CERTIFICATE + 1], version=0x12)
    text = refuse_at(bench, CERTIFICATE + 1, dataclasses.replace(answer, remainder=answer.remainder + 1).encode())
    assert "add up" in text


def run_with(bench, **changes) -> None:
    """Run a session against a responder whose construction is changed."""
    responder = Responder(
        **{
            "profile": bench.profile,
            "certificates": bench.device.certificates,
            "key": bench.device.alias_key,
            "blocks": bench.device.blocks,
            **changes,
        }
    )
    bench.drive(responder, challenge_nonce=None)


def test_a_key_that_is_not_the_leafs_is_refused(bench):
    run_with(bench)
    with pytest.raises(SpdmError, match="does not verify"):
        run_with(bench, key=dice.derive_key(b"\6" * 32))


def test_leaf_on_another_curve_is_refused(bench):
    key = dice.derive_ec_key(b"\6" * 32, ec.SECP256R1())
    name = x509.Name([])
    leaf = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(datetime(2026, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2027, 1, 1, tzinfo=UTC))
        .sign(key, SHA256())
    )
    certificates = (*bench.device.certificates[:-1], leaf.public_bytes(Encoding.DER))
    with pytest.raises(SpdmError, match="secp384r1"):
        run_with(bench, certificates=certificates)


def test_measurements_that_changed_while_read_are_refused_though_signed(bench):
    class Changed(Responder):
        def _make_measurements(self, asked, nonce):
            return dataclasses.replace(super()._make_measurements(asked, nonce), content_changed=1)

    responder = Changed(
        profile=bench.profile,
        certificates=bench.device.certificates,
        key=bench.device.alias_key,
        blocks=bench.device.blocks,
    )
    with pytest.raises(SpdmError, match="changed"):
        bench.drive(responder, challenge_nonce=None)


class OtherSlot(Responder):
    """Signs good answers that name slot 1, as one with two chains could be brought to."""

    wrong: messages.Code

    def _make_measurements(self, asked, nonce):
        good = super()._make_measurements(asked, nonce)
        return dataclasses.replace(good, slot=1) if self.wrong is messages.Code.MEASUREMENTS else good

    def _answer_challenge(self, request, nonce):
        before = b"".join((*self._negotiation, *self._authentication, request))
        unsigned = auth.slice_unsigned(super()._answer_challenge(request, nonce), SUITE)
        if self.wrong is messages.Code.CHALLENGE_AUTH:
            unsigned = unsigned[:2] + b"\x01" + unsigned[3:]
        return unsigned + sign_transcript(self._key, SigningContext.CHALLENGE_AUTH, before + unsigned, SUITE)


@pytest.mark.parametrize("wrong", [messages.Code.MEASUREMENTS, messages.Code.CHALLENGE_AUTH])
def test_an_answer_for_another_slot_is_refused_though_signed(bench, wrong):
    responder = OtherSlot(
        profile=bench.profile,
        certificates=bench.device.certificates,
        key=bench.device.alias_key,
        blocks=bench.device.blocks,
    )
    responder.wrong = messages.Code.ERROR
    bench.drive(responder)
    responder.wrong = wrong
    with pytest.raises(SpdmError, match="another slot"):
        bench.drive(responder)


def test_an_index_twice_is_refused_though_signed(bench):
    class Twice(Responder):
        def _make_measurements(self, asked, nonce):
            good = super()._make_measurements(asked, nonce)
            first = next(iter(self._blocks.values()))
            return dataclasses.replace(good, record=good.record + first, count=good.count + 1)

    responder = Twice(
        profile=bench.profile,
        certificates=bench.device.certificates,
        key=bench.device.alias_key,
        blocks=bench.device.blocks,
    )
    with pytest.raises(SpdmError, match="twice"):
        bench.drive(responder, challenge_nonce=None)


def test_transcript_holds_what_was_sent_and_nothing_else(bench):
    session = bench.session(challenge_nonce=None)
    sent, got = [], []
    responder = bench.responder()
    while (request := session.next_request()) is not None:
        sent.append(request)
        got.append(responder.answer(request, b"\x98" * 32))
        session.receive(got[-1])
    expected = [*(octets for pair in zip(sent[:3], got[:3], strict=True) for octets in pair), sent[-1], got[-1][:-96]]
    assert session.evidence().messages == tuple(expected)
    assert hashlib.sha384(session.evidence().l1).digest() == hashlib.sha384(b"".join(expected)).digest()


def test_measurements_other_than_those_of_the_challenge_are_refused_though_signed(bench):
    class TwoFaced(Responder):
        def _record(self):
            return b"".join(list(self._blocks.values())[: self.shown])

        shown = 99

    arguments = {
        "profile": bench.profile,
        "certificates": bench.device.certificates,
        "key": bench.device.alias_key,
        "blocks": bench.device.blocks,
    }
    bench.drive(TwoFaced(**arguments))
    responder = TwoFaced(**arguments)
    session = bench.session()
    for _ in bench.answers[:-2]:
        session.receive(responder.answer(session.next_request(), b"\x98" * 32))
    responder.shown = 1
    session.receive(responder.answer(session.next_request(), b"\x98" * 32))
    responder.shown = 99
    answer = responder.answer(session.next_request(), b"\x98" * 32)
    with pytest.raises(SpdmError, match="changed"):
        session.receive(answer)
