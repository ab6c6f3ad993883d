"""What each profile puts on the wire, by hand: sizes of 1.1 and 1.2, and signatures checked with nothing of ours."""

import hashlib
from datetime import UTC, datetime

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256, SHA384

from ztdpu.errors import SpdmError
from ztdpu.trust.boot import boot_device
from ztdpu.trust.extensions import Boot
from ztdpu.trust.manufacture import create_manufacturer
from ztdpu.trust.profile import list_profiles, load_profile
from ztdpu.trust.spdm.requester import MeasurementSession
from ztdpu.trust.spdm.responder import Responder
from ztdpu.trust.spdm.suite import suite_of
from ztdpu.trust.spdm.transcript import verify_measurements

NOW = datetime(2026, 12, 1, tzinfo=UTC)
LITERALS = {
    "1.1": [
        ("10840000", "1004000000010011"),
        ("11e100000000000000000000", "116100000000000016000000"),
        ("11e3000020000100" + "8000000002000000" + "00" * 16, None),
        ("11810000", None),
    ],
    "1.2": [
        ("10840000", "1004000000010012"),
        ("12e1000000000000000000000012000000120000", "1261000000000000160004000012000000120000"),
        ("12e3000020000102" + "1000000001000000" + "00" * 16, None),
        ("12810000", None),
    ],
}


class Recorded:
    def __init__(self, name):
        self.profile = load_profile(name)
        maker = create_manufacturer(profile=self.profile, random=lambda octets: b"\x51" * octets, now=NOW)
        secrets = maker.make_device(serial="EMU3", uds=b"\x5c" * 32, now=NOW)
        device = boot_device(self.profile, secrets, secrets.firmware, Boot(counter=1, nonce=bytes(16)))
        self.key = device.alias_key.public_key()
        responder = Responder(
            profile=self.profile, certificates=device.certificates, key=device.alias_key, blocks=device.blocks
        )
        session = MeasurementSession(profile=self.profile, nonce=b"\xaa" * 32, challenge_nonce=b"\xbb" * 32)
        self.pairs = []
        while (request := session.next_request()) is not None:
            self.pairs.append((request, responder.answer(request, b"\x99" * 32)))
            session.receive(self.pairs[-1][1])
        self.evidence = session.evidence()

    def join(self, *, first, last, signature):
        octets = b"".join(octets for pair in self.pairs[first:last] for octets in pair)
        return octets[:-signature], octets[-signature:]


@pytest.fixture(scope="module", params=list_profiles())
def recorded(request):
    return Recorded(request.param)


def verify(key, raw, octets):
    half = len(raw) // 2
    scheme = SHA384() if key.curve.name == "secp384r1" else SHA256()
    der = encode_dss_signature(int.from_bytes(raw[:half], "big"), int.from_bytes(raw[half:], "big"))
    key.verify(der, octets, ec.ECDSA(scheme))


def place_of(recorded, code):
    return next(place for place, (request, _) in enumerate(recorded.pairs) if request[1] == code)


def test_first_messages_octet_by_octet(recorded):
    for (request, answer), (wanted, answered) in zip(
        recorded.pairs, LITERALS[recorded.profile.spdm_version], strict=False
    ):
        assert request.hex() == wanted
        assert answered is None or answer.hex() == answered


def test_measurements_are_signed_as_the_version_says(recorded):
    is_1_1, octets = recorded.profile.spdm_version == "1.1", 2 * (recorded.key.curve.key_size // 8)
    first, end = place_of(recorded, 0xE0), len(recorded.pairs)
    exchanges, signature = recorded.join(first=first, last=end, signature=octets)
    if is_1_1:  # nothing before the first GET_MEASUREMENTS, no prefix, hashed once
        verify(recorded.key, signature, exchanges)
        assert recorded.evidence.l1 == exchanges
        return
    negotiation = b"".join(part for pair in recorded.pairs[:3] for part in pair)
    digest = hashlib.new(recorded.profile.hash, negotiation + exchanges).digest()
    prefix = b"dmtf-spdm-v1.2.*" * 4 + bytes(6) + b"responder-measurements signing"
    assert len(prefix) == 100
    verify(recorded.key, signature, prefix + digest)
    assert recorded.evidence.l1 == negotiation + exchanges


def test_challenges_are_signed_over_everything_before_them(recorded):
    octets = 2 * (recorded.key.curve.key_size // 8)
    m1, signature = recorded.join(first=0, last=place_of(recorded, 0x83) + 1, signature=octets)
    if recorded.profile.spdm_version == "1.1":
        verify(recorded.key, signature, m1)
        return
    prefix = b"dmtf-spdm-v1.2.*" * 4 + bytes(4) + b"responder-challenge_auth signing"
    verify(recorded.key, signature, prefix + hashlib.new(recorded.profile.hash, m1).digest())
    with pytest.raises(InvalidSignature):
        verify(recorded.key, signature, m1)


def test_evidence_of_one_version_is_none_of_another(recorded):
    suite = suite_of(recorded.profile)
    verify_measurements(recorded.evidence, recorded.key, suite)
    for name in list_profiles():
        other = suite_of(load_profile(name))
        if (other.version, other.curve) == (suite.version, suite.curve):
            continue
        with pytest.raises(SpdmError):
            verify_measurements(recorded.evidence, recorded.key, other)


def test_suites_are_made_once():
    one, two = suite_of(load_profile("bluefield-3")), suite_of(load_profile("bluefield-3"))
    assert one is two
    assert (one.version_word, one.hash_octets, one.signature_octets) == ("1.1", 48, 96)
    generic = suite_of(load_profile("generic"))
    assert (generic.version_word, generic.hash_octets, generic.signature_octets) == ("1.2", 32, 64)
