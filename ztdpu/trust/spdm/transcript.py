"""What SPDM signatures cover, and how they are made and verified (DSP0274 1.1, 10.8 and 10.11; 1.2, 15.2).

    M1 = A || B || C    A: GET_VERSION to ALGORITHMS; B: digests and certificates; C: CHALLENGE, CHALLENGE_AUTH
    L1 = A || M         M: GET_MEASUREMENTS and MEASUREMENTS since the last signed answer; 1.1 leaves A away
    (the last message counts without its signature)

1.2 signs a prefix that names its purpose and the transcript's hash; 1.1 signs the transcript as it is. There M1 and
L1 are told apart by how they begin (0x10 0x84 and 0x11 0xE0), and neither begins as a KeyBinding's label does.
A requester builds both from the octets that it sent itself. Used by both sides and by the appraisal.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from ztdpu.errors import SpdmError
from ztdpu.trust.spdm.evidence import Evidence
from ztdpu.trust.spdm.messages import FIRST_VERSION_OCTET, Code
from ztdpu.trust.spdm.suite import Suite

_COMBINED_OCTETS: Final = 100


class SigningContext(StrEnum):
    """Which signature it is; from 1.2 on part of what is signed."""

    CHALLENGE_AUTH = "responder-challenge_auth signing"
    MEASUREMENTS = "responder-measurements signing"


def make_signing_octets(context: SigningContext, transcript: bytes, suite: Suite) -> bytes:
    """Give the octets that go into ECDSA: from 1.2 on 100 octets of prefix and context, and the transcript's hash."""
    if not suite.signs_negotiation:
        return transcript
    prefix, text = f"dmtf-spdm-v{suite.version_word}.*".encode() * 4, context.value.encode()
    return b"".join((prefix, bytes(_COMBINED_OCTETS - len(prefix) - len(text)), text, suite.digest(transcript)))


def sign_transcript(key: ec.EllipticCurvePrivateKey, context: SigningContext, transcript: bytes, suite: Suite) -> bytes:
    """Sign a transcript; gives r || s."""
    der = key.sign(make_signing_octets(context, transcript, suite), suite.ecdsa)
    return b"".join(number.to_bytes(suite.half_octets, "big") for number in decode_dss_signature(der))


def verify_transcript(
    key: ec.EllipticCurvePublicKey, context: SigningContext, transcript: bytes, signature: bytes, suite: Suite
) -> None:
    """Verify r || s over a transcript. Both (r, s) and (r, n - s) say the same: nothing is keyed by a signature.

    Raises:
        SpdmError: the key is on another curve, the signature has another size, or it is not by that key over these
            octets.

    """
    if key.curve.name != suite.curve or len(signature) != suite.signature_octets:
        raise SpdmError(f"signature of {len(signature)} octets by a key on {key.curve.name} is not of this profile")
    half = suite.half_octets
    der = encode_dss_signature(*(int.from_bytes(part, "big") for part in (signature[:half], signature[half:])))
    try:
        key.verify(der, make_signing_octets(context, transcript, suite), suite.ecdsa)
    except InvalidSignature as error:
        raise SpdmError(f"signature does not verify ({context.value})") from error


def verify_measurements(evidence: Evidence, key: ec.EllipticCurvePublicKey, suite: Suite) -> None:
    """Verify that `key` signed the measurements in evidence, over the transcript that stands in it.

    Raises:
        SpdmError: it did not, or the transcript does not begin as one of this version does.

    """
    begins = (
        (FIRST_VERSION_OCTET, Code.GET_VERSION) if suite.signs_negotiation else (suite.version, Code.GET_MEASUREMENTS)
    )
    if evidence.l1[:2] != bytes(begins):
        raise SpdmError(f"transcript does not begin as one of SPDM {suite.version_word} does")
    verify_transcript(key, SigningContext.MEASUREMENTS, evidence.l1, evidence.signature, suite)
