"""COSE_Sign1 with ES256, ES384 or ES512 (RFC 9052 section 4.4, RFC 9053 section 2.1): signed and verified, no more.

Called by `ear_cwt` and `corim`, which say what the protected header and the payload must be. The payload is inside,
nothing is added from outside, the algorithm is the key's and never the message's choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512

from ztdpu.errors import RefusedError
from ztdpu.trust import strict_cbor
from ztdpu.trust.strict_cbor import Tag

TAG_SIGN1: Final = 18
HEADER_ALGORITHM, HEADER_CRITICAL, HEADER_CONTENT_TYPE, HEADER_KEY_ID = 1, 2, 3, 4
_PARTS: Final = 4
_HASHES: Final[Mapping[str, tuple[int, SHA256 | SHA384 | SHA512, int]]] = {
    "secp256r1": (-7, SHA256(), 32),
    "secp384r1": (-35, SHA384(), 48),
    "secp521r1": (-36, SHA512(), 66),
}
"""Curve -> algorithm, hash, octets of r and of s. One hash for each curve, as RFC 9053 recommends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign1:
    """A message taken apart; nothing about it is believed yet."""

    protected: bytes
    """Exactly as received: what is signed."""
    header: Mapping[Any, Any]
    """The protected header, read."""
    unprotected: Mapping[Any, Any]
    payload: bytes
    signature: bytes


def sign(
    payload: bytes, *, key: ec.EllipticCurvePrivateKey, header: Mapping[int, Any], unprotected: Mapping[int, Any]
) -> bytes:
    """Sign `payload`; the algorithm of the key's curve goes into the protected header.

    Raises:
        ValueError: a key on another curve than P-256, P-384, P-521.

    """
    algorithm, digest, octets = _algorithm(key.curve)
    protected = strict_cbor.encode({HEADER_ALGORITHM: algorithm, **header})
    r, s = decode_dss_signature(key.sign(signed_octets(protected, payload), ec.ECDSA(digest)))
    signature = r.to_bytes(octets, "big") + s.to_bytes(octets, "big")
    return strict_cbor.encode(Tag(TAG_SIGN1, [protected, dict(unprotected), payload, signature]))


def take_apart(item: Any, *, refusal: type[RefusedError], limit_octets: int, is_deterministic: bool = True) -> Sign1:
    """The parts of a decoded message, tag 18 and all.

    Raises:
        refusal: it is no COSE_Sign1 with its payload inside, or its header asks for something critical.

    """
    if not isinstance(item, Tag) or item.number != TAG_SIGN1 or not isinstance(item.value, list):
        raise refusal("no COSE_Sign1 (tag 18)")
    if len(item.value) != _PARTS:
        raise refusal(f"COSE_Sign1 of {len(item.value)} parts, not of {_PARTS}")
    protected, unprotected, payload, signature = item.value
    if not all(isinstance(one, bytes) for one in (protected, payload, signature)) or not isinstance(unprotected, dict):
        raise refusal("COSE_Sign1 with a part of the wrong type, or without its payload inside")
    header = strict_cbor.decode(
        protected, refusal=refusal, limit_octets=limit_octets, is_deterministic=is_deterministic
    )
    if not isinstance(header, dict) or not isinstance(header.get(HEADER_ALGORITHM), int):
        raise refusal("COSE_Sign1 whose protected header names no algorithm")
    if set(header) & set(unprotected):
        raise refusal("COSE_Sign1 with the same header parameter protected and unprotected")
    if HEADER_CRITICAL in header or HEADER_CRITICAL in unprotected or HEADER_ALGORITHM in unprotected:
        raise refusal("COSE_Sign1 with critical header parameters, none of which is understood here")
    return Sign1(protected=protected, header=header, unprotected=unprotected, payload=payload, signature=signature)


def verify(message: Sign1, *, key: ec.EllipticCurvePublicKey, refusal: type[RefusedError]) -> None:
    """Verify the signature.

    Raises:
        refusal: another algorithm than the key's, or a signature that does not verify.
        ValueError: a key on another curve than P-256, P-384, P-521.

    """
    algorithm, digest, octets = _algorithm(key.curve)
    if message.header[HEADER_ALGORITHM] != algorithm:
        raise refusal("COSE_Sign1 is signed with another algorithm than the given key's")
    if len(message.signature) != 2 * octets:
        raise refusal("COSE_Sign1 with a signature of another size")
    r, s = (int.from_bytes(half, "big") for half in (message.signature[:octets], message.signature[octets:]))
    try:
        key.verify(encode_dss_signature(r, s), signed_octets(message.protected, message.payload), ec.ECDSA(digest))
    except InvalidSignature as error:
        raise refusal("COSE_Sign1 does not verify with the given key") from error


def signed_octets(protected: bytes, payload: bytes) -> bytes:
    """The Sig_structure of RFC 9052 section 4.4, with no additional data."""
    return strict_cbor.encode(["Signature1", protected, b"", payload])


def _algorithm(curve: ec.EllipticCurve) -> tuple[int, SHA256 | SHA384 | SHA512, int]:
    known = _HASHES.get(curve.name)
    if known is None:
        raise ValueError(f"COSE_Sign1 is signed on P-256, P-384 or P-521 here, not on {curve.name}")
    return known
