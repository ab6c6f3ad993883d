"""What SPDM 1.2 signatures cover, and how they are made and verified (DSP0274 1.2, 15.2).

    M1 = A || B || C    A: GET_VERSION to ALGORITHMS; B: digests and certificates; C: CHALLENGE, CHALLENGE_AUTH
    L1 = A || M         M: GET_MEASUREMENTS and MEASUREMENTS since the last signed answer
    (the last message counts without its signature)

A requester builds both from the octets that it sent itself. Used by both sides and by the appraisal.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA384

from ztdpu.errors import SpdmError
from ztdpu.trust.spdm.authentication import SIGNATURE_OCTETS
from ztdpu.trust.spdm.evidence import Evidence

_PREFIX: Final = b"dmtf-spdm-v1.2.*" * 4
_COMBINED_OCTETS: Final = 100
_HALF: Final = SIGNATURE_OCTETS // 2


class SigningContext(StrEnum):
    """Which signature it is; part of what is signed."""

    CHALLENGE_AUTH = "responder-challenge_auth signing"
    MEASUREMENTS = "responder-measurements signing"


def make_signing_octets(context: SigningContext, transcript: bytes) -> bytes:
    """Give the octets that go into ECDSA: 100 octets of prefix and context, and the transcript's hash."""
    text = context.value.encode()
    padding = bytes(_COMBINED_OCTETS - len(_PREFIX) - len(text))
    return b"".join((_PREFIX, padding, text, hashlib.sha384(transcript).digest()))


def sign_transcript(key: ec.EllipticCurvePrivateKey, context: SigningContext, transcript: bytes) -> bytes:
    """Sign a transcript; gives r || s."""
    der = key.sign(make_signing_octets(context, transcript), ec.ECDSA(SHA384()))
    return b"".join(number.to_bytes(_HALF, "big") for number in decode_dss_signature(der))


def verify_transcript(
    key: ec.EllipticCurvePublicKey, context: SigningContext, transcript: bytes, signature: bytes
) -> None:
    """Verify r || s over a transcript.

    Raises:
        SpdmError: the signature has another size, or is not by that key over these octets.

    """
    if len(signature) != SIGNATURE_OCTETS:
        raise SpdmError(f"signature of {len(signature)} octets, expected are {SIGNATURE_OCTETS}")
    der = encode_dss_signature(*(int.from_bytes(half, "big") for half in (signature[:_HALF], signature[_HALF:])))
    try:
        key.verify(der, make_signing_octets(context, transcript), ec.ECDSA(SHA384()))
    except InvalidSignature as error:
        raise SpdmError(f"signature does not verify ({context.value})") from error


def verify_measurements(evidence: Evidence, key: ec.EllipticCurvePublicKey) -> None:
    """Verify that `key` signed the measurements in evidence, over the transcript that stands in it.

    Raises:
        SpdmError: it did not.

    """
    verify_transcript(key, SigningContext.MEASUREMENTS, evidence.l1, evidence.signature)
