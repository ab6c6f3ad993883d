"""A whole recorded session of another implementation: parsed, re-encoded, repeated, verified."""

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
from cryptography import x509

from ztdpu.errors import SpdmError
from ztdpu.trust.profile import load_profile
from ztdpu.trust.spdm import algorithms, messages
from ztdpu.trust.spdm import authentication as auth
from ztdpu.trust.spdm.chain_format import encode_chain, split_chain
from ztdpu.trust.spdm.evidence import decode_blocks
from ztdpu.trust.spdm.requester import MeasurementSession
from ztdpu.trust.spdm.suite import suite_of
from ztdpu.trust.spdm.transcript import SigningContext, verify_transcript

PATH = Path(__file__).parents[4] / "shared" / "vectors" / "spdm" / "spdm12_p384_sha384.json"
pytestmark = pytest.mark.skipif(not PATH.is_file(), reason=f"{PATH.name} is not here")

PROFILE = dataclasses.replace(load_profile("bluefield-3"), spdm_version="1.2", measurement_hash="sha384")
SUITE = suite_of(PROFILE)


def plain(kind):
    return lambda message: kind.decode(message, version=SUITE.version)


def sized(kind):
    return lambda message: kind.decode(message, suite=SUITE)


def read_challenge(answer):
    return auth.ChallengeAuth.decode(answer, summary=auth.ALL_SUMMARY, suite=SUITE)


def read_measurements(answer):
    return auth.Measurements.decode(answer, is_signed=True, suite=SUITE)


CODECS = {
    0x84: (messages.GetVersion.decode, messages.Version.decode),
    0xE1: (plain(messages.GetCapabilities), plain(messages.Capabilities)),
    0xE3: (plain(algorithms.NegotiateAlgorithms), plain(algorithms.Algorithms)),
    0x81: (plain(auth.GetDigests), sized(auth.Digests)),
    0x82: (plain(auth.GetCertificate), plain(auth.Certificate)),
    0x83: (plain(auth.Challenge), read_challenge),
    0xE0: (plain(auth.GetMeasurements), read_measurements),
}


@pytest.fixture(scope="module")
def vector():
    return json.loads(PATH.read_text())


@pytest.fixture(scope="module")
def pairs(vector):
    return [(bytes.fromhex(request), bytes.fromhex(answer)) for request, answer in vector["transcript"]]


@pytest.fixture(scope="module")
def leaf_key(vector):
    _, certificates = split_chain(bytes.fromhex(vector["chain"]), SUITE)
    return x509.load_der_x509_certificate(certificates[-1]).public_key()


def test_every_message_encodes_again_to_its_octets(pairs):
    for request, answer in pairs:
        decode_request, decode_answer = CODECS[request[1]]
        assert decode_request(request).encode() == request
        assert decode_answer(answer).encode() == answer


def test_negotiated_values(vector, pairs):
    assert [hex(entry) for entry in messages.Version.decode(pairs[0][1]).entries] == vector["versions"]
    assert hex(messages.Capabilities.decode(pairs[1][1], version=SUITE.version).flags) == vector["cap"]
    selected = algorithms.Algorithms.decode(pairs[2][1], version=SUITE.version)
    assert selected.measurement_hash == vector["meas_hash_algo"]
    assert (selected.asymmetric, selected.hash) == (SUITE.asymmetric, SUITE.hash_bit)


def test_chain(vector, pairs):
    chain = bytes.fromhex(vector["chain"])
    root_hash, certificates = split_chain(chain, SUITE)
    assert (len(certificates), len(chain)) == (vector["certs"], vector["chain_len"])
    assert encode_chain(certificates, SUITE) == chain
    assert hashlib.sha384(certificates[0]).digest() == root_hash
    slots = auth.Digests.decode(pairs[3][1], suite=SUITE).slots
    assert sum(1 << slot for slot in slots) == vector["slot_mask"]
    assert slots[0] == hashlib.sha384(chain).digest()


def test_measurement_blocks(vector, pairs):
    answer = read_measurements(pairs[-1][1])
    blocks = decode_blocks(answer.record, count=answer.count)
    seen = [[b.index, b.value_type, b.raw, len(b.value), b.value[:8].hex()] for b in blocks]
    assert seen == vector["blocks"]
    assert b"".join(block.encode() for block in blocks) == answer.record
    assert answer.content_changed == vector["content_changed"]
    assert answer.opaque.hex() == vector["opaque"]


def test_m1_and_the_challenge_signature(vector, pairs, leaf_key):
    octets = [message for pair in pairs[:6] for message in pair]
    m1 = b"".join((*octets, pairs[6][0], auth.slice_unsigned(pairs[6][1], SUITE)))
    assert hashlib.sha384(m1).hexdigest() == vector["m1_hash"]
    answer = read_challenge(pairs[6][1])
    assert answer.signature.hex() == vector["chal_sig"]
    assert answer.summary_hash.hex() == vector["msh"]
    assert answer.summary_hash == hashlib.sha384(read_measurements(pairs[7][1]).record).digest()
    verify_transcript(leaf_key, SigningContext.CHALLENGE_AUTH, m1, answer.signature, SUITE)
    with pytest.raises(SpdmError):
        verify_transcript(leaf_key, SigningContext.MEASUREMENTS, m1, answer.signature, SUITE)


def test_l1_and_the_measurement_signature(vector, pairs, leaf_key):
    octets = [message for pair in pairs[:3] for message in pair]
    l1 = b"".join((*octets, pairs[7][0], auth.slice_unsigned(pairs[7][1], SUITE)))
    assert hashlib.sha384(l1).hexdigest() == vector["l1_hash"]
    signature = read_measurements(pairs[7][1]).signature
    assert signature.hex() == vector["meas_sig"]
    verify_transcript(leaf_key, SigningContext.MEASUREMENTS, l1, signature, SUITE)
    with pytest.raises(SpdmError):
        verify_transcript(leaf_key, SigningContext.MEASUREMENTS, l1[8 + 4 :], signature, SUITE)


def test_our_requester_sends_the_same_octets_and_accepts_the_answers(vector, pairs):
    session = MeasurementSession(
        profile=PROFILE,
        nonce=pairs[7][0][4:36],
        challenge_nonce=pairs[6][0][4:36],
    )
    for request, answer in pairs:
        assert session.next_request() == request
        session.receive(answer)
    assert session.next_request() is None
    evidence = session.evidence()
    assert hashlib.sha384(evidence.l1).hexdigest() == vector["l1_hash"]
    assert encode_chain(evidence.certificates, SUITE).hex() == vector["chain"]


def test_our_requester_refuses_them_under_another_profile(pairs):
    session = MeasurementSession(
        profile=dataclasses.replace(PROFILE, measurement_hash="sha512"), nonce=pairs[7][0][4:36]
    )
    for _, answer in pairs[:2]:
        session.next_request()
        session.receive(answer)
    session.next_request()
    with pytest.raises(SpdmError, match="other algorithms"):
        session.receive(pairs[2][1])


def test_every_recorded_session_is_played_here():
    assert [path.name for path in PATH.parent.glob("*.json")] == [PATH.name]
