"""Signed envelopes: `[label, body, signature]`, ECDSA P-256 with SHA-256 by a device's offer key.

The signature covers "ztdpu/v1/" label 0x00 body, so a body signed under one label is nothing under another.
It is stored as r and s, 32 octets each, with s in the lower half: of the two signatures that verify, one is
accepted, hence an envelope's hash names its content. Used by `exchange`; holds no state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from ztdpu.keys import wire
from ztdpu.keys.wire import WireError

SIGNATURE_OCTETS: Final = 64
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_HASH: Final = ECDSA(SHA256())


class SignatureError(ValueError):
    """The signature does not verify under the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What was received, taken apart and not yet verified."""

    label: str
    body: bytes
    signature: bytes


def sign_envelope(label: str, body: bytes, key: EllipticCurvePrivateKey) -> bytes:
    """Return the envelope for `body`, signed."""
    r, s = decode_dss_signature(key.sign(_signed_octets(label, body), _HASH))
    s = min(s, _ORDER - s)
    return wire.encode([label, body, r.to_bytes(32, "big") + s.to_bytes(32, "big")])


def read_envelope(octets: bytes) -> Envelope:
    """Take an envelope apart. Raises WireError when it is malformed; verifies nothing."""
    label, body, signature = wire.take_array(wire.decode(octets), 3)
    return Envelope(
        label=wire.take_text(label, 32),
        body=wire.take_blob(body),
        signature=wire.take_bytes(signature, SIGNATURE_OCTETS),
    )


def verify_envelope(envelope: Envelope, key: EllipticCurvePublicKey) -> None:
    """Raise SignatureError unless `key` signed this body under this label."""
    r, s = int.from_bytes(envelope.signature[:32], "big"), int.from_bytes(envelope.signature[32:], "big")
    if s > _ORDER // 2:
        raise SignatureError("signature is not in its lower form")
    try:
        key.verify(encode_dss_signature(r, s), _signed_octets(envelope.label, envelope.body), _HASH)
    except InvalidSignature:
        raise SignatureError("signature does not verify") from None


def _signed_octets(label: str, body: bytes) -> bytes:
    return b"ztdpu/v1/" + label.encode() + b"\0" + body


__all__ = ["Envelope", "SignatureError", "WireError", "read_envelope", "sign_envelope", "verify_envelope"]
