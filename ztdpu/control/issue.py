"""What control signs with: its authority, its own certificate, SVIDs of devices, the key of attestation results.

Files in the state directory (0700): `authority.key`, `authority.pem`, `ear.key`, `ear.pem`. The lab calls
`ensure_authority` before agents start, so that they can be given the bundle. Issues nothing on its own.
"""

from __future__ import annotations

import os
import secrets
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from ztdpu.control.clock import Clock, SystemClock, as_datetime
from ztdpu.errors import ConfigurationError, Location
from ztdpu.trust.svid import (
    BACKDATING,
    Authority,
    Bundle,
    create_authority,
    issue_control_certificate,
    issue_svid,
)

CONTROL_CERTIFICATE_LIFETIME: Final = timedelta(hours=24)
CONTROL_CERTIFICATE_RENEWAL: Final = timedelta(hours=12)
AUTHORITY_KEY: Final = "authority.key"
AUTHORITY_CERTIFICATE: Final = "authority.pem"


def ensure_authority(state_dir: Path, trust_domain: str, *, clock: Clock | None = None) -> Authority:
    """Load control's authority, or make it when there is none.

    Raises:
        ConfigurationError: files that are damaged, half there, or of another trust domain.

    """
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    key_file, certificate_file = state_dir / AUTHORITY_KEY, state_dir / AUTHORITY_CERTIFICATE
    if key_file.exists() != certificate_file.exists() and not certificate_file.exists():
        key_file.unlink()  # written before its certificate: a first start that was cut short
    if not certificate_file.exists():
        key = ec.generate_private_key(ec.SECP384R1())
        now = as_datetime((clock or SystemClock()).now())
        made = create_authority(trust_domain, now, key, _serial())
        _write(key_file, _private_pem(key))
        _write(certificate_file, made.certificate.public_bytes(Encoding.PEM))
    key = _load_key(key_file)
    certificate = _load_certificate(certificate_file)
    if certificate.public_key() != key.public_key():
        raise ConfigurationError(
            "authority.key and authority.pem do not belong together",
            remedy="restore both from one backup",
            where=Location(file=str(key_file), line=0),
        )
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if names.get_values_for_type(x509.UniformResourceIdentifier) != [f"spiffe://{trust_domain}"]:
        raise ConfigurationError(
            f"the authority is not that of trust domain {trust_domain}",
            remedy="mend trustDomain, or use another stateDir",
            where=Location(file=str(certificate_file), line=0),
        )
    return Authority(trust_domain=trust_domain, key=key, certificate=certificate)


def ensure_ear_key(state_dir: Path) -> ec.EllipticCurvePrivateKey:
    """Load the P-256 key that signs attestation results, or make it; its public half stands in `ear.pem`."""
    key_file = state_dir / "ear.key"
    if not key_file.exists():
        _write(key_file, _private_pem(ec.generate_private_key(ec.SECP256R1())))
    key = _load_key(key_file)
    _write(state_dir / "ear.pem", key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return key


class Issuer:
    """Signs for control. One per process."""

    def __init__(self, authority: Authority, ear_key: ec.EllipticCurvePrivateKey, clock: Clock) -> None:
        self.authority = authority
        self.ear_key = ear_key
        self._clock = clock
        self._own: tuple[datetime, bytes, bytes] | None = None

    @property
    def trust_domain(self) -> str:
        """Whose identities these are."""
        return self.authority.trust_domain

    @property
    def bundle(self) -> Bundle:
        """Whom control itself believes."""
        return Bundle(trust_domain=self.trust_domain, authorities=(self.authority.certificate,))

    @property
    def bundle_pem(self) -> bytes:
        """The same for TLS libraries."""
        return self.authority.certificate.public_bytes(Encoding.PEM)

    @property
    def ear_public_key(self) -> bytes:
        """SubjectPublicKeyInfo, DER."""
        return self.ear_key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    def control_credentials(self) -> tuple[bytes, bytes]:
        """(private key, chain) in PEM for control's own server; renewed, with a new key, after half its life."""
        now = as_datetime(self._clock.now())
        if self._own is None or not self._own[0] <= now < self._own[0] + CONTROL_CERTIFICATE_RENEWAL:
            key = ec.generate_private_key(ec.SECP256R1())
            chain = issue_control_certificate(
                self.authority,
                public_key=key.public_key(),
                not_before=now - BACKDATING,
                not_after=now + CONTROL_CERTIFICATE_LIFETIME,
                serial=_serial(),
            )
            self._own = (now, _private_pem(key), pem_chain(chain))
        return self._own[1], self._own[2]

    def issue_device_svid(self, device: str, public_key: ec.EllipticCurvePublicKey, *, ttl_s: int) -> tuple[bytes, ...]:
        """SVID `spiffe://TD/dpu/NAME` for a bound TLS key, DER, leaf first."""
        now = as_datetime(self._clock.now())
        return issue_svid(
            self.authority,
            trust_domain=self.trust_domain,
            path=f"/dpu/{device}",
            public_key=public_key,
            not_before=now - BACKDATING,
            not_after=now + timedelta(seconds=ttl_s),
            serial=_serial(),
        )


def pem_chain(chain: tuple[bytes, ...]) -> bytes:
    """DER certificates as one PEM text."""
    return b"".join(x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM) for der in chain)


def _serial() -> int:
    return secrets.randbits(127) | 1


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all, 0600, durable."""
    partial = path.with_name(path.name + ".part")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    partial.rename(path)


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"no usable key: {error}", remedy="restore it from a backup", where=Location(file=str(path), line=0)
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigurationError("not an elliptic curve key", where=Location(file=str(path), line=0))
    return key


def _load_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"no usable certificate: {error}", remedy="restore it from a backup", where=Location(file=str(path), line=0)
        ) from error
