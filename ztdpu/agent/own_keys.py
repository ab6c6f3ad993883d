"""The agent's own keys: TLS and offer key, fresh at every start (and after a revocation), in memory only.

Made and used by `agent.attester`; the TLS key also by `agent.uplink`, the offer key by `agent.exchange_shell`.
KEM keys for lease requests live here too: a push may still be sealed to the one before.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from ztdpu.errors import RefusedError
from ztdpu.keys.epoch import EpochKey, epoch_context, open_epoch_keys
from ztdpu.keys.kem import KemKey, kem_key_from_parts, kem_public_octets
from ztdpu.rpc.possession import hello_octets, lease_request_octets, possession_octets


@dataclass(frozen=True, slots=True)
class OwnKeys:
    """What one KeyBinding binds."""

    tls_key: ec.EllipticCurvePrivateKey
    offer_key: ec.EllipticCurvePrivateKey

    @property
    def tls_spki_sha256(self) -> bytes:
        """Name of the TLS key in the KeyBinding."""
        return hashlib.sha256(_spki(self.tls_key)).digest()

    @property
    def offer_spki(self) -> bytes:
        """SubjectPublicKeyInfo of the offer key, DER."""
        return _spki(self.offer_key)

    @property
    def tls_key_pem(self) -> bytes:
        """PKCS#8 for gRPC's credentials; never written anywhere."""
        return self.tls_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def generate_own_keys() -> OwnKeys:
    """Make two P-256 keys that never leave the process."""
    return OwnKeys(ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1()))


def make_csr(keys: OwnKeys, *, trust_domain: str, device: str) -> bytes:
    """Ask for `spiffe://TD/dpu/NAME`: PKCS#10, DER, empty subject, one URI SAN."""
    spiffe_id = x509.UniformResourceIdentifier(f"spiffe://{trust_domain}/dpu/{device}")
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    request = builder.add_extension(x509.SubjectAlternativeName([spiffe_id]), critical=True)
    return request.sign(keys.tls_key, SHA256()).public_bytes(Encoding.DER)


def prove_possession(
    key: ec.EllipticCurvePrivateKey,
    *,
    nonce: bytes,
    binding_sha256: bytes,
    applied_generation: int,
    kem_public_key: bytes,
) -> bytes:
    """Sign what only the holder of `key` can sign in this stream (attestation.proto, BindingAnswer)."""
    octets = possession_octets(
        nonce=nonce,
        binding_sha256=binding_sha256,
        applied_generation=applied_generation,
        kem_public_key=kem_public_key,
    )
    return key.sign(octets, ec.ECDSA(SHA256()))


def sign_lease_request(
    keys: OwnKeys, *, device: str, binding_sha256: bytes, applied_generation: int, kem_public_key: bytes
) -> bytes:
    """Tie the KEM key of a lease request to the bound offer key."""
    octets = lease_request_octets(
        device=device,
        binding_sha256=binding_sha256,
        applied_generation=applied_generation,
        kem_public_key=kem_public_key,
    )
    return keys.offer_key.sign(octets, ec.ECDSA(SHA256()))


def sign_hello(keys: OwnKeys, *, device: str, binding_sha256: bytes, worker_instance: bytes, number: int) -> bytes:
    """Prove on a stream's first message that its opener holds the bound offer key too."""
    octets = hello_octets(device=device, binding_sha256=binding_sha256, worker_instance=worker_instance, number=number)
    return keys.offer_key.sign(octets, ec.ECDSA(SHA256()))


def generate_kem_key() -> KemKey:
    """Make a KEM key for one request."""
    return kem_key_from_parts(MLKEM768PrivateKey.generate(), X25519PrivateKey.generate())


class LeaseKemKeys:
    """KEM keys of lease requests: the one asked with now and those of the last two grants, newest first."""

    def __init__(self) -> None:
        self._granted: deque[KemKey] = deque(maxlen=2)
        self._asked: KemKey | None = None

    def ask(self) -> KemKey:
        """Make the key for the next lease request."""
        self._asked = generate_kem_key()
        return self._asked

    def granted(self) -> None:
        """The request was granted: its key opens what control pushes from now on."""
        if self._asked is not None:
            self._granted.appendleft(self._asked)
            self._asked = None

    @property
    def candidates(self) -> tuple[KemKey, ...]:
        """Keys to try, newest first; the one asked with counts, since a push may overtake its grant."""
        asked = (self._asked,) if self._asked is not None else ()
        return (*asked, *self._granted)

    def open_epoch_keys(self, sealed: bytes, device: str) -> tuple[EpochKey, ...]:
        """Epoch keys that control sealed to one of these for `device`. Raises the last refusal."""
        refusal: RefusedError = RefusedError("no lease was asked for yet")
        for key in self.candidates:
            try:
                return open_epoch_keys(
                    sealed, kem_private_key=key, context=epoch_context(device, kem_public_octets(key))
                )
            except RefusedError as error:
                refusal = error
        raise refusal


def _spki(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
