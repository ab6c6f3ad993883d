"""The device's half: what it answers, and that it answers ERROR to all else."""

import dataclasses
import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ztdpu.errors import SpdmError
from ztdpu.trust.profile import load_profile
from ztdpu.trust.spdm import algorithms, messages
from ztdpu.trust.spdm import authentication as auth
from ztdpu.trust.spdm.evidence import decode_blocks
from ztdpu.trust.spdm.messages import Code, ErrorCode
from ztdpu.trust.spdm.responder import TRANSCRIPT_LIMIT_OCTETS
from ztdpu.trust.spdm.suite import suite_of
from ztdpu.trust.spdm.transcript import SigningContext, verify_transcript

SUITE = suite_of(dataclasses.replace(load_profile("bluefield-3"), spdm_version="1.2"))
NONCE = b"\x99" * 32
GET_VERSION = messages.GetVersion().encode()
GET_CAPABILITIES = messages.GetCapabilities(version=0x12, flags=0).encode()
NEGOTIATE = algorithms.NegotiateAlgorithms(version=0x12, asymmetric=0x90, hash=3).encode()
ALL_SIGNED = auth.GetMeasurements(version=0x12, operation=0xFF, nonce=b"\xaa" * 32).encode()
REQUESTS = {
    "capabilities": GET_CAPABILITIES,
    "algorithms": NEGOTIATE,
    "digests": auth.GetDigests(version=0x12).encode(),
    "certificate": auth.GetCertificate(version=0x12, slot=0, offset=0, length=100).encode(),
    "challenge": auth.Challenge(version=0x12, slot=0, summary=0xFF, nonce=b"\xbb" * 32).encode(),
    "measurements": ALL_SIGNED,
}


def negotiate(responder) -> list[bytes]:
    """Bring a responder to READY; the messages of part A."""
    transcript = []
    for request in (GET_VERSION, GET_CAPABILITIES, NEGOTIATE):
        transcript += [request, responder.answer(request, NONCE)]
    return transcript


def error_of(answer: bytes) -> int:
    assert answer[1] == Code.ERROR, answer[:8].hex()
    return answer[2]


@pytest.mark.parametrize(
    ("after", "allowed"),
    [
        (0, set()),
        (1, {"capabilities"}),
        (2, {"algorithms"}),
        (3, {"digests", "certificate", "challenge", "measurements"}),
    ],
)
def test_only_what_the_state_allows_is_answered(bench, after, allowed):
    for name, request in REQUESTS.items():
        responder = bench.responder()
        for before in (GET_VERSION, GET_CAPABILITIES, NEGOTIATE)[:after]:
            responder.answer(before, NONCE)
        answer = responder.answer(request, NONCE)
        if name in allowed:
            assert answer[1] == request[1] & 0x7F
        else:
            assert error_of(answer) == ErrorCode.UNEXPECTED_REQUEST


def test_get_version_starts_again_at_any_time(bench):
    responder = bench.responder()
    for request in (GET_VERSION, GET_CAPABILITIES, NEGOTIATE, *REQUESTS.values()):
        responder.answer(request, NONCE)
        assert responder.answer(GET_VERSION, NONCE)[1] == Code.VERSION
        assert error_of(responder.answer(ALL_SIGNED, NONCE)) == ErrorCode.UNEXPECTED_REQUEST
        negotiate(responder)
    assert bench.drive(responder).blocks == bench.device.blocks


def test_signature_covers_unsigned_answers_before_it(bench):
    responder = bench.responder()
    key = bench.device.alias_key.public_key()
    part_a = negotiate(responder)
    count = auth.GetMeasurements(version=0x12, operation=0).encode()
    one = auth.GetMeasurements(version=0x12, operation=3).encode()
    answers = [responder.answer(request, NONCE) for request in (count, one, ALL_SIGNED)]
    assert auth.Measurements.decode(answers[0], is_signed=False, suite=SUITE).total == len(bench.device.blocks)
    single = auth.Measurements.decode(answers[1], is_signed=False, suite=SUITE)
    assert [block.index for block in decode_blocks(single.record, count=single.count)] == [3]
    unsigned = auth.slice_unsigned(answers[2], SUITE)
    l1 = b"".join((*part_a, count, answers[0], one, answers[1], ALL_SIGNED, unsigned))
    verify_transcript(key, SigningContext.MEASUREMENTS, l1, answers[2][-96:], SUITE)
    # The next signature starts afresh behind part A.
    again = responder.answer(ALL_SIGNED, NONCE)
    fresh = b"".join((*part_a, ALL_SIGNED, auth.slice_unsigned(again, SUITE)))
    verify_transcript(key, SigningContext.MEASUREMENTS, fresh, again[-96:], SUITE)
    with pytest.raises(SpdmError):
        verify_transcript(key, SigningContext.MEASUREMENTS, l1, again[-96:], SUITE)


def test_another_command_between_measurements_is_not_signed_over(bench):
    responder = bench.responder()
    part_a = negotiate(responder)
    responder.answer(auth.GetMeasurements(version=0x12, operation=0).encode(), NONCE)
    responder.answer(auth.GetDigests(version=0x12).encode(), NONCE)
    answer = responder.answer(ALL_SIGNED, NONCE)
    l1 = b"".join((*part_a, ALL_SIGNED, auth.slice_unsigned(answer, SUITE)))
    verify_transcript(bench.device.alias_key.public_key(), SigningContext.MEASUREMENTS, l1, answer[-96:], SUITE)


@pytest.mark.parametrize("summary", [auth.NO_SUMMARY, auth.ALL_SUMMARY])
def test_challenge_without_certificates_read_covers_a_and_c(bench, summary):
    responder = bench.responder()
    part_a = negotiate(responder)
    request = auth.Challenge(version=0x12, slot=0, summary=summary, nonce=b"\xbb" * 32).encode()
    answer = responder.answer(request, NONCE)
    decoded = auth.ChallengeAuth.decode(answer, summary=summary, suite=SUITE)
    record = b"".join(block.encode() for block in bench.device.blocks)
    assert decoded.summary_hash == (hashlib.sha384(record).digest() if summary else b"")
    m1 = b"".join((*part_a, request, auth.slice_unsigned(answer, SUITE)))
    verify_transcript(bench.device.alias_key.public_key(), SigningContext.CHALLENGE_AUTH, m1, decoded.signature, SUITE)


def test_algorithm_tables_are_answered_with_nothing_selected(bench):
    responder = bench.responder()
    responder.answer(GET_VERSION, NONCE)
    responder.answer(GET_CAPABILITIES, NONCE)
    tables = tuple(algorithms.AlgorithmTable(kind, 0x1B) for kind in (2, 3, 4, 5))
    request = algorithms.NegotiateAlgorithms(version=0x12, asymmetric=0x80, hash=2, tables=tables).encode()
    answer = algorithms.Algorithms.decode(responder.answer(request, NONCE), version=0x12)
    assert [(table.kind, table.bits) for table in answer.tables] == [(2, 0), (3, 0), (4, 0), (5, 0)]


@pytest.mark.parametrize(
    "request_octets",
    [
        pytest.param(auth.GetCertificate(version=0x12, slot=1, offset=0, length=10).encode(), id="slot without chain"),
        pytest.param(
            auth.GetCertificate(version=0x12, slot=0, offset=0xFFFF, length=10).encode(), id="behind the chain"
        ),
        pytest.param(auth.GetCertificate(version=0x12, slot=0, offset=0, length=0).encode(), id="nothing asked for"),
        pytest.param(auth.GetMeasurements(version=0x12, operation=200).encode(), id="unknown index"),
        pytest.param(
            auth.GetMeasurements(version=0x12, operation=0xFF, nonce=bytes(32), slot=3).encode(), id="other slot signs"
        ),
        pytest.param(
            auth.Challenge(version=0x12, slot=2, summary=0, nonce=bytes(32)).encode(), id="challenge to another slot"
        ),
        pytest.param(auth.Challenge(version=0x12, slot=0, summary=1, nonce=bytes(32)).encode(), id="TCB summary"),
        pytest.param(ALL_SIGNED[:-1], id="cut short"),
        pytest.param(ALL_SIGNED + b"\0", id="too long"),
        pytest.param(b"", id="empty"),
        pytest.param(bytes(messages.TRANSFER_OCTETS + 1), id="larger than taken"),
    ],
)
def test_requests_that_cannot_be_met(bench, request_octets):
    responder = bench.responder()
    negotiate(responder)
    assert error_of(responder.answer(request_octets, NONCE)) == ErrorCode.INVALID_REQUEST
    assert responder.answer(ALL_SIGNED, NONCE)[1] == Code.MEASUREMENTS


def test_versions_and_codes_that_are_not_spoken(bench):
    responder = bench.responder()
    negotiate(responder)
    assert error_of(responder.answer(b"\x11" + ALL_SIGNED[1:], NONCE)) == ErrorCode.VERSION_MISMATCH
    answer = responder.answer(bytes.fromhex("12e40000"), NONCE)
    assert (error_of(answer), answer[3]) == (ErrorCode.UNSUPPORTED_REQUEST, 0xE4)


@pytest.mark.parametrize("fields", [{"asymmetric": 0x10, "hash": 2}, {"asymmetric": 0x80, "hash": 1}])
def test_no_common_algorithm(bench, fields):
    responder = bench.responder()
    responder.answer(GET_VERSION, NONCE)
    responder.answer(GET_CAPABILITIES, NONCE)
    request = algorithms.NegotiateAlgorithms(version=0x12, **fields).encode()
    assert error_of(responder.answer(request, NONCE)) == ErrorCode.INVALID_REQUEST
    assert responder.answer(NEGOTIATE, NONCE)[1] == Code.ALGORITHMS


def test_answers_fit_what_the_requester_takes(bench):
    responder = bench.responder()
    responder.answer(GET_VERSION, NONCE)
    small = messages.GetCapabilities(version=0x12, flags=0, transfer_octets=128, message_octets=128)
    responder.answer(small.encode(), NONCE)
    responder.answer(NEGOTIATE, NONCE)
    portion = responder.answer(auth.GetCertificate(version=0x12, slot=0, offset=0, length=4000).encode(), NONCE)
    assert len(portion) == 128
    assert error_of(responder.answer(ALL_SIGNED, NONCE)) == ErrorCode.RESPONSE_TOO_LARGE


def test_a_session_without_end_does_not_fill_the_memory(bench):
    responder = bench.responder()
    negotiate(responder)
    request = auth.GetCertificate(version=0x12, slot=0, offset=0, length=4000).encode()
    answers = [responder.answer(request, NONCE) for _ in range(TRANSCRIPT_LIMIT_OCTETS // 4000 + 2)]
    assert error_of(answers[-1]) in {ErrorCode.REQUEST_RESYNCH, ErrorCode.UNEXPECTED_REQUEST}
    assert bench.drive(responder).blocks == bench.device.blocks


@settings(max_examples=300)
@given(st.lists(st.binary(max_size=80) | st.sampled_from([GET_VERSION, *REQUESTS.values()]), max_size=6))
def test_whatever_comes_there_is_an_answer_and_the_next_session_is_good(bench, requests):
    responder = bench.responder()
    for request in requests:
        answer = responder.answer(request, NONCE)
        assert answer[1] < 0x80
    assert bench.drive(responder, challenge_nonce=None).blocks == bench.device.blocks


@settings(max_examples=200)
@given(st.sampled_from([GET_VERSION, *REQUESTS.values()]), st.data())
def test_flipped_requests_are_answered_or_refused(bench, request_octets, data):
    responder = bench.responder()
    negotiate(responder)
    flipped = bytearray(request_octets)
    flipped[data.draw(st.integers(0, len(flipped) - 1))] ^= data.draw(st.integers(1, 255))
    assert responder.answer(bytes(flipped), NONCE)[1] < 0x80
