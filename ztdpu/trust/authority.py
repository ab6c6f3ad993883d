"""The issuing half of X.509-SVIDs: control's authority and what it signs (SPIFFE X509-SVID).

`control.authority` calls it with keys, serials and time. It refuses to make what `svid.verify_svid` would refuse. Only
control's own certificate carries a DNS name; all others have an empty Subject and no DNS name, because a stock gRPC
client ignores URI names and would fall back to either.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ztdpu.errors import SvidError
from ztdpu.trust import certificate as reading
from ztdpu.trust.spiffe_id import CONTROL_PATH, SpiffeId, check_trust_domain, control_dns_name, parse_spiffe_id

SVID_LIFETIME_LIMIT: Final = timedelta(hours=24, minutes=1)
"""Control's own lives longest: a day and its backdating."""
BACKDATING: Final = timedelta(seconds=30)
"""For clocks that lag: callers set not_before = now - BACKDATING."""
AUTHORITY_LIFETIME: Final = timedelta(days=365)

SVID_CURVES: Final = frozenset({"secp256r1"})
AUTHORITY_CURVES: Final = frozenset({"secp256r1", "secp384r1"})
TLS_PURPOSES: Final = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """Control's signing key and its certificate. Secret."""

    trust_domain: str
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def create_authority(
    trust_domain: str,
    now: datetime,
    key: ec.EllipticCurvePrivateKey,
    serial: int,
    *,
    lifetime: timedelta = AUTHORITY_LIFETIME,
) -> Authority:
    """Make a self-signed authority (X509-SVID section 3 and 4: CA, keyCertSign, trust-domain ID without path).

    Raises:
        SvidError: not a trust domain, or a key on neither P-256 nor P-384.

    """
    check_trust_domain(trust_domain)
    if key.curve.name not in AUTHORITY_CURVES:
        raise SvidError("an authority's key is on P-256 or P-384")
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, "ztdpu authority"),
            x509.NameAttribute(NameOID.SERIAL_NUMBER, f"{serial:x}"),
        ]
    )
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"spiffe://{trust_domain}")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - BACKDATING)
        .not_valid_after(now + lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(names, critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Authority(trust_domain=trust_domain, key=key, certificate=builder.sign(key, _signing_hash(key)))


def issue_svid(
    authority: Authority,
    *,
    trust_domain: str,
    path: str,
    public_key: ec.EllipticCurvePublicKey,
    not_before: datetime,
    not_after: datetime,
    serial: int,
) -> tuple[bytes, ...]:
    """Issue an SVID `spiffe://trust_domain/path`: empty Subject, one URI name, critical; no DNS name.

    `path` has its leading slash. Returns the DER chain to present, leaf first; the authority is in the bundle.

    Raises:
        SvidError: anything that the SPIFFE rules forbid, a foreign domain, control's own path, a key not on P-256,
            the authority's own key, dates that contradict each other, leave the authority's or last over a day.

    """
    if path == CONTROL_PATH or path.startswith(f"{CONTROL_PATH}/"):
        raise SvidError("control's identity is issued to control alone")
    return _issue(
        authority,
        spiffe_id=parse_spiffe_id(f"spiffe://{trust_domain}{path}"),
        dns_names=(),
        public_key=public_key,
        not_before=not_before,
        not_after=not_after,
        serial=serial,
    )


def issue_control_certificate(
    authority: Authority,
    *,
    public_key: ec.EllipticCurvePublicKey,
    not_before: datetime,
    not_after: datetime,
    serial: int,
) -> tuple[bytes, ...]:
    """Issue control's own SVID, the only one with a DNS name (`control.TRUSTDOMAIN`).

    Raises:
        SvidError: as `issue_svid`.

    """
    return _issue(
        authority,
        spiffe_id=SpiffeId(trust_domain=authority.trust_domain, path=CONTROL_PATH),
        dns_names=(control_dns_name(authority.trust_domain),),
        public_key=public_key,
        not_before=not_before,
        not_after=not_after,
        serial=serial,
    )


def _issue(
    authority: Authority,
    *,
    spiffe_id: SpiffeId,
    dns_names: tuple[str, ...],
    public_key: ec.EllipticCurvePublicKey,
    not_before: datetime,
    not_after: datetime,
    serial: int,
) -> tuple[bytes, ...]:
    _check_request(authority, spiffe_id, public_key, not_before, not_after)
    uri = x509.UniformResourceIdentifier(str(spiffe_id))
    names = x509.SubjectAlternativeName([uri, *map(x509.DNSName, dns_names)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(authority.certificate.subject)
        .public_key(public_key)
        .serial_number(serial)
        .not_valid_before(not_before)
        .not_valid_after(not_after)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(TLS_PURPOSES), critical=False)
        # Critical, because the Subject is empty (RFC 5280 section 4.2.1.6).
        .add_extension(names, critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
    )
    leaf = builder.sign(authority.key, _signing_hash(authority.key))
    return (leaf.public_bytes(Encoding.DER),)


def _check_request(
    authority: Authority,
    spiffe_id: SpiffeId,
    public_key: ec.EllipticCurvePublicKey,
    not_before: datetime,
    not_after: datetime,
) -> None:
    if spiffe_id.trust_domain != authority.trust_domain:
        raise SvidError(f"this authority issues for {authority.trust_domain} alone")
    if not spiffe_id.path:
        raise SvidError("an SVID of a workload has a path")
    if not isinstance(public_key, ec.EllipticCurvePublicKey) or public_key.curve.name not in SVID_CURVES:
        raise SvidError("the key of an SVID is on P-256")
    if reading.spki_der(public_key) == reading.spki_der(authority.key.public_key()):
        raise SvidError("the authority's own key never authenticates")
    if not not_before < not_after <= not_before + SVID_LIFETIME_LIMIT:
        raise SvidError("an SVID lives longer than nothing and at most a day")
    if not_before < authority.certificate.not_valid_before_utc or not_after > authority.certificate.not_valid_after_utc:
        raise SvidError(
            "an SVID cannot outlive its authority", remedy="replace the authority: its certificate is about to end"
        )


def _signing_hash(key: ec.EllipticCurvePrivateKey) -> hashes.SHA256 | hashes.SHA384:
    return hashes.SHA384() if key.curve.name == "secp384r1" else hashes.SHA256()


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
