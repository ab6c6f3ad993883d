"""Verifying X.509-SVIDs (SPIFFE X509-SVID, SPIFFE-ID); the issuing half is `authority` and can be imported from here.

TLS servers and clients on both sides call `verify_svid`, on every handshake and again when a bundle changes. It
never fetches anything, and it never searches for a path: the order presented is the path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtensionOID, NameOID

from ztdpu.errors import SvidError
from ztdpu.trust import certificate as reading
from ztdpu.trust.authority import (
    AUTHORITY_CURVES,
    BACKDATING,
    SVID_CURVES,
    TLS_PURPOSES,
    Authority,
    create_authority,
    issue_control_certificate,
    issue_svid,
)
from ztdpu.trust.spiffe_id import CONTROL_PATH, SpiffeId, check_trust_domain, control_dns_name, parse_spiffe_id

__all__ = [
    "BACKDATING",
    "CONTROL_PATH",
    "Authority",
    "Bundle",
    "SpiffeId",
    "check_leaf",
    "check_signing_certificate",
    "check_trust_domain",
    "control_dns_name",
    "create_authority",
    "issue_control_certificate",
    "issue_svid",
    "parse_spiffe_id",
    "verify_path",
    "verify_svid",
]

CHAIN_LIMIT: Final = 3
"""Certificates presented, leaf first; with an authority out of the bundle at most that many in all."""
BUNDLE_LIMIT: Final = 8

_CRITICAL_KNOWN: Final = frozenset(
    {
        ExtensionOID.BASIC_CONSTRAINTS,
        ExtensionOID.KEY_USAGE,
        ExtensionOID.EXTENDED_KEY_USAGE,
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The authorities of one trust domain; bundles of several domains are never merged."""

    trust_domain: str
    authorities: tuple[x509.Certificate, ...]
    """One, or two and more while an authority is replaced. Empty: nobody is believed."""


def verify_svid(chain: Sequence[bytes], bundle: Bundle, now: datetime) -> SpiffeId:
    """Verify a presented chain (DER, leaf first) against the bundle of *its own* trust domain.

    Refuses in this order: sizes, unreadable, the rules for leaves (`check_leaf`), foreign domain, each issuer's rules
    (`check_signing_certificate`), path length, signatures up to an authority of the bundle, validity (no slack).

    Raises:
        SvidError: any of these.

    """
    return verify_path(chain, bundle, now)[0]


def verify_path(chain: Sequence[bytes], bundle: Bundle, now: datetime) -> tuple[SpiffeId, x509.Certificate]:
    """As `verify_svid`; gives the authority of the bundle that the chain ends in as well."""
    if not 1 <= len(chain) <= CHAIN_LIMIT:
        raise SvidError(f"chain of {len(chain)} certificates, 1 to {CHAIN_LIMIT} are read")
    certificates = [reading.load_certificate(der, refusal=SvidError) for der in chain]
    spiffe_id = check_leaf(certificates[0])
    if spiffe_id.trust_domain != bundle.trust_domain:
        raise SvidError(f"{spiffe_id} is not of the trust domain {bundle.trust_domain}")
    reading.ec_public_key(certificates[0], curves=SVID_CURVES, refusal=SvidError)
    path = _build_path(certificates, bundle)
    for below, issuer in enumerate(path[1:]):
        check_signing_certificate(issuer, trust_domain=bundle.trust_domain, issuers_below=below)
    for one, issuer in pairwise(certificates):  # the last one's issuer was found by its signature
        reading.check_issued_by(one, issuer, refusal=SvidError)
    for one in path:
        reading.check_validity(one, now, what="SVID" if one is path[0] else "an authority", refusal=SvidError)
    return spiffe_id, path[-1]


def _build_path(certificates: list[x509.Certificate], bundle: Bundle) -> list[x509.Certificate]:
    """Give leaf .. authority of the bundle; no search, the order presented is the path."""
    anchors = bundle.authorities[:BUNDLE_LIMIT]
    last = certificates[-1]
    if len(certificates) > 1 and last in anchors:
        return certificates
    if len(certificates) == CHAIN_LIMIT:
        raise SvidError("chain does not end in an authority of the bundle")
    for anchor in anchors:
        if anchor.subject != last.issuer:
            continue
        try:
            reading.check_issued_by(last, anchor, refusal=SvidError)
        except SvidError:
            continue  # while an authority is replaced two of them may share a name
        return [*certificates, anchor]
    raise SvidError(f"no authority of {bundle.trust_domain} issued this chain")


def check_leaf(certificate: x509.Certificate) -> SpiffeId:
    """Check the rules for leaves and give the identity (X509-SVID sections 2, 4 and 5.2).

    Beyond the standard: a DNS name is for control alone and must be its own, and a Subject has no common name.

    Raises:
        SvidError: not exactly one URI name, no SPIFFE ID, no path, CA, key usage missing or wrong, one TLS purpose.

    """
    reading.refuse_unknown_critical(certificate, known=_CRITICAL_KNOWN, refusal=SvidError)
    constraints = reading.find_extension(certificate, x509.BasicConstraints)
    if constraints is not None and constraints.value.ca:
        raise SvidError("a signing certificate cannot authenticate")
    usage = reading.find_extension(certificate, x509.KeyUsage)
    if usage is None or not usage.critical or not usage.value.digital_signature:
        raise SvidError("SVID lacks the critical key usage digitalSignature")
    if usage.value.key_cert_sign or usage.value.crl_sign:
        raise SvidError("SVID may sign certificates or revocation lists")
    purposes = reading.find_extension(certificate, x509.ExtendedKeyUsage)
    if purposes is not None and not set(TLS_PURPOSES) <= set(purposes.value):
        raise SvidError("SVID is limited to one side of TLS")
    spiffe_id = _identity(certificate)
    if not spiffe_id.path:
        raise SvidError("SVID names a trust domain and no workload")
    _check_fallback_names(certificate, spiffe_id)
    return spiffe_id


def _identity(certificate: x509.Certificate) -> SpiffeId:
    names = reading.find_extension(certificate, x509.SubjectAlternativeName)
    uris = names.value.get_values_for_type(x509.UniformResourceIdentifier) if names is not None else []
    if names is None or len(uris) != 1:
        raise SvidError(f"certificate has {len(uris)} URI names instead of one")
    if not names.critical and not list(certificate.subject):
        raise SvidError("subject alternative name must be critical where the Subject is empty")
    return parse_spiffe_id(uris[0])


def _check_fallback_names(certificate: x509.Certificate, spiffe_id: SpiffeId) -> None:
    if certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME):
        raise SvidError("SVID has a common name that TLS clients could fall back to")
    names = reading.find_extension(certificate, x509.SubjectAlternativeName)
    dns = names.value.get_values_for_type(x509.DNSName) if names is not None else []
    allowed = [control_dns_name(spiffe_id.trust_domain)] if spiffe_id.path == CONTROL_PATH else []
    if any(name not in allowed for name in dns):
        raise SvidError("SVID has a DNS name that is not its own")


def check_signing_certificate(
    certificate: x509.Certificate, *, trust_domain: str, issuers_below: int = 0
) -> ec.EllipticCurvePublicKey:
    """Check the rules for signing certificates and give the key (X509-SVID sections 3 and 4).

    `issuers_below` counts signing certificates between this one and the leaf, for the path length.

    Raises:
        SvidError: no CA, no critical keyCertSign, a path too long, a SPIFFE ID with a path or of another domain.

    """
    reading.refuse_unknown_critical(certificate, known=_CRITICAL_KNOWN, refusal=SvidError)
    constraints = reading.find_extension(certificate, x509.BasicConstraints)
    if constraints is None or not constraints.value.ca:
        raise SvidError("the issuer of an SVID is no certificate authority")
    if constraints.value.path_length is not None and constraints.value.path_length < issuers_below:
        raise SvidError("chain is longer than its authority allows")
    usage = reading.find_extension(certificate, x509.KeyUsage)
    if usage is None or not usage.critical or not usage.value.key_cert_sign:
        raise SvidError("the issuer of an SVID lacks the critical key usage keyCertSign")
    names = reading.find_extension(certificate, x509.SubjectAlternativeName)
    if names is not None and names.value.get_values_for_type(x509.UniformResourceIdentifier):
        spiffe_id = _identity(certificate)
        if spiffe_id.path or spiffe_id.trust_domain != trust_domain:
            raise SvidError(f"the issuer of an SVID carries the identity {spiffe_id}")
    return reading.ec_public_key(certificate, curves=AUTHORITY_CURVES, refusal=SvidError)
