"""KeyBinding: the statement, signed by the Alias key, that ties the agent's keys to the device (protocols.md 1).

The root of trust makes it behind its second door; control and peers open it. Opening verifies the
signature over the received octets first and decodes afterwards. Whether a well-made binding is also
*wanted* (domain, nonce, boot, sequence) is decided by `acceptance.check_binding`, not here.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import load_der_public_key

from ztdpu.errors import BindingError
from ztdpu.trust import canonical

BINDING_LABEL: Final = "key-binding"
SIGNED_LABEL: Final = b"ztdpu/v1/key-binding\0"
BINDING_LIMIT_OCTETS: Final = 2048
TTL_LIMIT_S: Final = 3600
AGENT_ROLE: Final = "agent"
NONCE_OCTETS: Final = 32
UEID_OCTETS: Final = 33
_U64: Final = 1 << 64
_NAME_LIMIT: Final = 255
_SPKI_LIMIT_OCTETS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class BindRequest:
    """What the agent asks its root of trust to bind."""

    trust_domain: str
    nonce: bytes
    """32 octets from control, different from the SPDM nonce."""
    tls_spki_sha256: bytes
    offer_spki: bytes
    """SubjectPublicKeyInfo, DER, P-256."""
    ttl_s: int
    agent_digest: bytes
    """SHA-256 of the agent's build, for the auditor."""
    role: str = AGENT_ROLE


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBinding:
    """Fields of the signed body, in order (protocols.md 1)."""

    trust_domain: str
    ueid: bytes
    """0x01 and SHA-256 of the DeviceID's SubjectPublicKeyInfo."""
    role: str
    nonce: bytes
    boot_counter: int
    boot_nonce: bytes
    """16 octets."""
    sequence: int
    """Rises with every binding of one boot."""
    tls_spki_sha256: bytes
    offer_spki: bytes
    """SubjectPublicKeyInfo, DER, P-256."""
    ttl_s: int
    agent_digest: bytes

    @property
    def offer_public_key(self) -> ec.EllipticCurvePublicKey:
        """The bound offer key, ready to verify with."""
        return _load_offer_key(self.offer_spki)


def encode_body(binding: KeyBinding) -> bytes:
    """Give the octets that are signed (after the label).

    Raises:
        BindingError: a field is out of its bounds.

    """
    _check(binding)
    return canonical.encode(
        [
            BINDING_LABEL,
            binding.trust_domain,
            binding.ueid,
            binding.role,
            binding.nonce,
            [binding.boot_counter, binding.boot_nonce],
            binding.sequence,
            [binding.tls_spki_sha256, binding.offer_spki],
            binding.ttl_s,
            binding.agent_digest,
        ]
    )


def sign(body: bytes, alias_key: ec.EllipticCurvePrivateKey) -> bytes:
    """Sign an encoded body with the Alias key and give the envelope."""
    signature = alias_key.sign(SIGNED_LABEL + body, ec.ECDSA(SHA384()))
    return canonical.encode([BINDING_LABEL, body, signature])


def open_envelope(envelope: bytes, alias_public_key: ec.EllipticCurvePublicKey) -> KeyBinding:
    """Verify an envelope with the Alias key, then read it.

    Raises:
        BindingError: too long, malformed, not signed by that key, not canonical, or a field out of bounds.

    """
    body, signature = _split(envelope)
    try:
        alias_public_key.verify(signature, SIGNED_LABEL + body, ec.ECDSA(SHA384()))
    except InvalidSignature as error:
        raise BindingError("key binding is not signed by the device's Alias key") from error
    binding = _decode_body(body)
    if encode_body(binding) != body:
        raise BindingError("key binding is not spelt canonically")
    return binding


def binding_sha256(envelope: bytes) -> bytes:
    """Name of a binding everywhere: SHA-256 of its body (the signature does not count, ECDSA is malleable).

    Raises:
        BindingError: malformed envelope. The signature is *not* verified here.

    """
    return hashlib.sha256(_split(envelope)[0]).digest()


def _split(envelope: bytes) -> tuple[bytes, bytes]:
    match canonical.decode(envelope, refusal=BindingError, limit_octets=BINDING_LIMIT_OCTETS):
        case [label, bytes(body), bytes(signature)] if label == BINDING_LABEL:
            return body, signature
    raise BindingError("key binding is not of the known format")


def _decode_body(body: bytes) -> KeyBinding:
    match canonical.decode(body, refusal=BindingError, limit_octets=BINDING_LIMIT_OCTETS):
        case [
            label,
            str(trust_domain),
            bytes(ueid),
            str(role),
            bytes(nonce),
            [int(boot_counter), bytes(boot_nonce)],
            int(sequence),
            [bytes(tls_spki_sha256), bytes(offer_spki)],
            int(ttl_s),
            bytes(agent_digest),
        ] if label == BINDING_LABEL:
            return KeyBinding(
                trust_domain=trust_domain,
                ueid=ueid,
                role=role,
                nonce=nonce,
                boot_counter=boot_counter,
                boot_nonce=boot_nonce,
                sequence=sequence,
                tls_spki_sha256=tls_spki_sha256,
                offer_spki=offer_spki,
                ttl_s=ttl_s,
                agent_digest=agent_digest,
            )
    raise BindingError("key binding has other fields than version 1")


def _check(binding: KeyBinding) -> None:
    numbers = (binding.boot_counter, binding.sequence, binding.ttl_s)
    if any(isinstance(number, bool) or not 0 <= number < _U64 for number in numbers):
        raise BindingError("key binding has a number out of bounds")
    if not 1 <= binding.ttl_s <= TTL_LIMIT_S:
        raise BindingError(f"key binding lives {binding.ttl_s} s, allowed are 1 to {TTL_LIMIT_S}")
    if not (1 <= len(binding.trust_domain) <= _NAME_LIMIT and 1 <= len(binding.role) <= _NAME_LIMIT):
        raise BindingError("key binding has an empty or overlong name")
    sizes = (
        (binding.ueid, UEID_OCTETS),
        (binding.nonce, NONCE_OCTETS),
        (binding.boot_nonce, 16),
        (binding.tls_spki_sha256, 32),
        (binding.agent_digest, 32),
    )
    if any(len(octets) != size for octets, size in sizes) or binding.ueid[0] != 1:
        raise BindingError("key binding has a field of the wrong size")
    _load_offer_key(binding.offer_spki)


def _load_offer_key(spki: bytes) -> ec.EllipticCurvePublicKey:
    if len(spki) > _SPKI_LIMIT_OCTETS:
        raise BindingError("offer key is too long for a P-256 key")
    try:
        key = load_der_public_key(spki)
    except Exception as error:  # the library raises several types for hostile DER; all mean no
        raise BindingError("offer key cannot be read") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise BindingError("offer key is not on P-256")
    return key
