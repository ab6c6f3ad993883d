"""DICE derivations: from a secret and a measurement to the next secret, a key and an id.

Open Profile for DICE 2.6 with SHA-512, HKDF-SHA512 and ECDSA. Called by `manufacture` (DeviceID) and
`root` (keys of a boot); verifiers never need it. Knows no certificates and keeps no secret: what a
layer must forget is the caller's to forget.

    UDS ── key pair ──> DeviceID                       the same at every boot
     └─ inputs of the layer ──> CDI ── key pair ──> layer key
                                 └─ inputs of the alias ──> CDI ── key pair ──> Alias
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

UDS_OCTETS: Final = 32
CDI_OCTETS: Final = 32
ID_OCTETS: Final = 20
INPUT_OCTETS: Final = 64

CURVES: Final[dict[str, ec.EllipticCurve]] = {"secp256r1": ec.SECP256R1(), "secp384r1": ec.SECP384R1()}
_ASYM_SALT: Final = bytes.fromhex(
    "63b6a04d2c077fc10f639f21da793844356cc2b0b441b3a77124035c03f8e1be"
    "6035d31f282821a7450a02222ab1b3cff1679b05ab1ca5d1affb789ccd2b0b3b"
)
_ID_SALT: Final = bytes.fromhex(
    "dbdbaebc8020da9ff0dd5a24c83aa5a54286dfc263031e329b4da148430659fe"
    "62cdb5b7e1e00fc680306711eb444af77209359496fcff1db9520ba51c7b29ea"
)


class DiceMode(IntEnum):
    """Mode of an environment, one octet of the input values."""

    NOT_CONFIGURED = 0
    NORMAL = 1
    DEBUG = 2
    RECOVERY = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class InputValues:
    """What is measured into the next CDI; each hash has 64 octets."""

    code: bytes
    configuration: bytes
    authority: bytes = bytes(INPUT_OCTETS)
    mode: DiceMode = DiceMode.NORMAL
    hidden: bytes = bytes(INPUT_OCTETS)

    def __post_init__(self) -> None:
        """Refuse hashes of another size: two inputs must never run into one another."""
        for octets in (self.code, self.configuration, self.authority, self.hidden):
            if len(octets) != INPUT_OCTETS:
                raise ValueError(f"a DICE input has {INPUT_OCTETS} octets, not {len(octets)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cdi:
    """Compound device identifiers of one environment. Secret."""

    attest: bytes
    """Changes with anything measured."""
    seal: bytes
    """Survives an update of code by the same authority."""

    def __repr__(self) -> str:
        return "Cdi(secret)"


def derive_cdi(current: Cdi, inputs: InputValues) -> Cdi:
    """Derive the next environment's CDIs; for the first one `current` is the UDS, twice."""
    mode = bytes((inputs.mode,))
    everything = hashlib.sha512(
        b"".join((inputs.code, inputs.configuration, inputs.authority, mode, inputs.hidden))
    ).digest()
    lasting = hashlib.sha512(b"".join((inputs.authority, mode, inputs.hidden))).digest()
    return Cdi(
        attest=_hkdf(current.attest, salt=everything, info=b"CDI_Attest", octets=CDI_OCTETS),
        seal=_hkdf(current.seal, salt=lasting, info=b"CDI_Seal", octets=CDI_OCTETS),
    )


def derive_key_seed(secret: bytes) -> bytes:
    """Derive the seed of an environment's key pair from its UDS or CDI_Attest."""
    return _hkdf(secret, salt=_ASYM_SALT, info=b"Key Pair", octets=32)


def derive_ec_key(seed: bytes, curve: ec.EllipticCurve) -> ec.EllipticCurvePrivateKey:
    """Derive an ECDSA key from a seed by the profile's HMAC-SHA512 generator (after RFC 6979, 3.2)."""
    octets = (curve.key_size + 7) // 8
    order = curve.group_order
    key = hmac.digest(bytes(64), b"\x01" * 64 + b"\x00" + seed, "sha512")
    state = hmac.digest(key, b"\x01" * 64, "sha512")
    key = hmac.digest(key, state + b"\x01" + seed, "sha512")
    state = hmac.digest(key, state, "sha512")
    while True:
        state = hmac.digest(key, state, "sha512")
        candidate = int.from_bytes(state[:octets], "big")
        if 0 < candidate < order:
            return ec.derive_private_key(candidate, curve)
        key = hmac.digest(key, state + b"\x00", "sha512")
        state = hmac.digest(key, state, "sha512")


def derive_key(secret: bytes, curve_name: str = "secp384r1") -> ec.EllipticCurvePrivateKey:
    """Derive the key pair of an environment from its UDS or CDI_Attest, on `secp384r1` or `secp256r1`."""
    return derive_ec_key(derive_key_seed(secret), CURVES[curve_name])


def derive_id(raw_public_key: bytes) -> bytes:
    """Derive the 20 octets that name a public key; raw is X || Y for an elliptic curve, no prefix octet."""
    identity = _hkdf(raw_public_key, salt=_ID_SALT, info=b"ID", octets=ID_OCTETS)
    return bytes((identity[0] & 0x7F,)) + identity[1:]


def derive_key_id(public_key: ec.EllipticCurvePublicKey) -> bytes:
    """`derive_id` of an elliptic-curve key."""
    return derive_id(public_key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)[1:])


def encode_spki(public_key: ec.EllipticCurvePublicKey) -> bytes:
    """Give the key's SubjectPublicKeyInfo in DER, the form in which keys are compared everywhere."""
    return public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def make_ueid(device_id_spki: bytes) -> bytes:
    """Give the UEID of a device: 0x01 and SHA-256 of its DeviceID key (RFC 9711, 4.2.1)."""
    return b"\x01" + hashlib.sha256(device_id_spki).digest()


def _hkdf(secret: bytes, *, salt: bytes, info: bytes, octets: int) -> bytes:
    return HKDF(algorithm=SHA512(), length=octets, salt=salt, info=info).derive(secret)
