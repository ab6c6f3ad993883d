"""Reading X.509 certificates that strangers sent: sizes first, every library exception turned into one refusal.

Called by `chain` (device certificates) and `svid` (identities), which say what a certificate must be. This module
decides nothing about trust beyond "this issuer signed that certificate".
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from datetime import datetime
from typing import Final, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ztdpu.errors import CertificateError, RefusedError

CERTIFICATE_LIMIT_OCTETS: Final = 8192
_EXTENSION_LIMIT: Final = 32
_HASHES: Final = frozenset({"sha256", "sha384", "sha512"})
_UNREADABLE: Final = (
    ValueError,
    TypeError,
    OverflowError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)

_Extension = TypeVar("_Extension", bound=x509.ExtensionType)


def load_certificate(der: bytes, *, refusal: type[RefusedError]) -> x509.Certificate:
    """Read one DER certificate and see that all of it can be read.

    Raises:
        refusal: too long, malformed, trailing octets, an extension twice, or an extension that cannot be read.

    """
    if not 1 <= len(der) <= CERTIFICATE_LIMIT_OCTETS:
        raise refusal(f"certificate of {len(der)} octets, 1 to {CERTIFICATE_LIMIT_OCTETS} are read")
    try:
        certificate = x509.load_der_x509_certificate(der)
        readable = (
            certificate.version is x509.Version.v3
            and certificate.serial_number > 0
            and len(certificate.extensions) <= _EXTENSION_LIMIT
            and certificate.not_valid_before_utc <= certificate.not_valid_after_utc
            and certificate.subject is not None
            and certificate.issuer is not None
        )
        # The one octet outside the signature that the library lets vary: unused bits of the signature's BIT STRING.
        whole = der.endswith(b"\x00" + certificate.signature)
    except _UNREADABLE as error:
        raise refusal("certificate cannot be read") from error
    if not readable:
        raise refusal("certificate is not of version 3, or has a serial number or dates that cannot be")
    if not whole:
        raise refusal("certificate's signature is not a whole number of octets")
    return certificate


def load_anchors(pem: bytes) -> tuple[x509.Certificate, ...]:
    """Read a PEM bundle of roots and see that all of each can be read: they are looked at whenever a peer shows up.

    Raises ValueError when there is none, or one that cannot be read to the end; its text is fit for people.
    """
    try:
        return tuple(check_anchor(one) for one in x509.load_pem_x509_certificates(pem))
    except (CertificateError, *_UNREADABLE) as error:
        raise ValueError(error.message if isinstance(error, CertificateError) else "no PEM certificates") from error


def check_anchor(certificate: x509.Certificate) -> x509.Certificate:
    """Give a root back whose parts can all be read, its key among them. Raises CertificateError."""
    try:
        certificate.public_key()
    except _UNREADABLE as error:
        raise CertificateError("the key of a root cannot be read") from error
    return load_certificate(certificate.public_bytes(Encoding.DER), refusal=CertificateError)


def find_extension(certificate: x509.Certificate, kind: type[_Extension]) -> x509.Extension[_Extension] | None:
    """Give that extension, or None where there is none."""
    try:
        return certificate.extensions.get_extension_for_class(kind)
    except x509.ExtensionNotFound:
        return None


def refuse_unknown_critical(
    certificate: x509.Certificate,
    *,
    known: Collection[x509.ObjectIdentifier],
    refusal: type[RefusedError],
) -> None:
    """Refuse a critical extension that the caller does not process (RFC 5280 section 4.2)."""
    for extension in certificate.extensions:
        if extension.critical and extension.oid not in known:
            raise refusal(f"certificate has a critical extension {extension.oid.dotted_string} that is not known")


def ec_public_key(
    certificate: x509.Certificate, *, curves: Collection[str], refusal: type[RefusedError]
) -> ec.EllipticCurvePublicKey:
    """Give the subject key, which must be on one of `curves` (`secp256r1`, `secp384r1`)."""
    try:
        key = certificate.public_key()
    except _UNREADABLE as error:
        raise refusal("the key of a certificate cannot be read") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in curves:
        raise refusal(f"the key of a certificate is not on {' or '.join(sorted(curves))}")
    return key


def check_issued_by(certificate: x509.Certificate, issuer: x509.Certificate, *, refusal: type[RefusedError]) -> None:
    """Refuse unless `issuer` names and signed `certificate`, by ECDSA with SHA-2 of 256 bits or more.

    Says nothing about whether `issuer` may sign certificates.
    """
    try:
        algorithm = certificate.signature_hash_algorithm
        if algorithm is None or algorithm.name not in _HASHES:
            raise refusal("certificate is signed over a weak or unknown hash")
        if not certificate.signature_algorithm_oid.dotted_string.startswith("1.2.840.10045.4.3."):
            raise refusal("certificate is not signed by ECDSA")
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, *_UNREADABLE) as error:
        raise refusal("certificate was not signed by its issuer") from error


def check_validity(certificate: x509.Certificate, now: datetime, *, what: str, refusal: type[RefusedError]) -> None:
    """Refuse outside notBefore..notAfter, both included (RFC 5280 section 4.1.2.5); no slack."""
    if now.tzinfo is None:
        raise ValueError("`now` needs a time zone")
    if now < certificate.not_valid_before_utc:
        raise refusal(f"{what} is not valid before {certificate.not_valid_before_utc.isoformat()}")
    if now > certificate.not_valid_after_utc:
        raise refusal(f"{what} expired at {certificate.not_valid_after_utc.isoformat()}")


def spki_der(key: ec.EllipticCurvePublicKey) -> bytes:
    """SubjectPublicKeyInfo: keys are compared by this, never by certificate octets (ECDSA is malleable)."""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def spki_sha256(key: ec.EllipticCurvePublicKey) -> bytes:
    """Name of a key: SHA-256 of its SubjectPublicKeyInfo."""
    return hashlib.sha256(spki_der(key)).digest()
