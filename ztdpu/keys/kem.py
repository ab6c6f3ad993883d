"""The hybrid KEM (ML-KEM-768 with X25519, HPKE code point 0x647a) and single-shot HPKE over it (RFC 9180).

A composite private key cannot be serialised by the library, so its two parts travel together here and the
public octets are the parts' side by side, as X-Wing defines. Keys are generated in the shells and handed in.
Base mode has no associated data: whatever must be bound goes into `info`. Used by `wrapping` and `epoch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)

SUITE_IDS: Final = [0x647A, 1, 2]
"""KEM, KDF and AEAD as they stand in messages: MLKEM768-X25519, HKDF-SHA256, AES-256-GCM."""
MLKEM_PUBLIC_OCTETS: Final = 1184
KEM_PUBLIC_OCTETS: Final = MLKEM_PUBLIC_OCTETS + 32
_SUITE: Final = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


class KemError(ValueError):
    """The public key is unusable, or sealed octets do not open. One refusal for all causes."""


@dataclass(frozen=True)
class KemKey:
    """A private key with both parts. Made per request in a shell, deleted when the answer was opened."""

    mlkem: MLKEM768PrivateKey
    x25519: X25519PrivateKey

    @cached_property
    def private(self) -> MLKEM768X25519PrivateKey:
        """The composite that HPKE takes."""
        return MLKEM768X25519PrivateKey(self.mlkem, self.x25519)

    @cached_property
    def public_octets(self) -> bytes:
        """1216 octets for the other side."""
        return self.mlkem.public_key().public_bytes_raw() + self.x25519.public_key().public_bytes_raw()


def kem_key_from_parts(mlkem: MLKEM768PrivateKey, x25519: X25519PrivateKey) -> KemKey:
    """Return the key made of two freshly generated parts."""
    return KemKey(mlkem, x25519)


def kem_public_octets(key: KemKey) -> bytes:
    """Return the 1216 public octets of `key`."""
    return key.public_octets


def seal_to(public_octets: bytes, plaintext: bytes, *, info: bytes) -> bytes:
    """Seal `plaintext` to a public key. Raises KemError for a key that is malformed or of low order."""
    if len(public_octets) != KEM_PUBLIC_OCTETS:
        raise KemError("KEM public key has the wrong length")
    try:
        public = MLKEM768X25519PublicKey(
            MLKEM768PublicKey.from_public_bytes(public_octets[:MLKEM_PUBLIC_OCTETS]),
            X25519PublicKey.from_public_bytes(public_octets[MLKEM_PUBLIC_OCTETS:]),
        )
        return _SUITE.encrypt(plaintext, public, info=info)
    except ValueError:
        raise KemError("KEM public key is not usable") from None


def open_with(key: KemKey, sealed: bytes, *, info: bytes) -> bytes:
    """Open what was sealed to `key` under the same `info`. Raises KemError otherwise."""
    try:
        return _SUITE.decrypt(sealed, key.private, info=info)
    except (InvalidTag, ValueError):
        raise KemError("sealed octets do not open") from None
