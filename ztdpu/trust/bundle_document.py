"""A trust domain's bundle as a document: a JWK set with a sequence (SPIFFE Trust Domain and Bundle, section 4).

Made by control from its authorities, read by agents, which follow it to a new authority. Fetches and keeps nothing;
whether a document may replace another is `check_successor`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from ztdpu.errors import SvidError
from ztdpu.trust import certificate as reading
from ztdpu.trust.svid import BUNDLE_LIMIT, Bundle, check_signing_certificate

DOCUMENT_LIMIT_OCTETS: Final = 64 * 1024
SEQUENCE_LIMIT: Final = 1 << 63
REFRESH_HINT_LIMIT_S: Final = 86_400
_CURVES: Final = {"secp256r1": "P-256", "secp384r1": "P-384"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleDocument:
    """What verifies identities of one trust domain, at one moment."""

    trust_domain: str
    """The document itself does not name it (section 4.1): whoever reads one knows where it came from."""
    sequence: int
    """Rises with every change of content."""
    refresh_hint_s: int
    authorities: tuple[x509.Certificate, ...]
    """For X.509-SVIDs. Empty: all of them are void."""
    jwt_keys: Mapping[str, ec.EllipticCurvePublicKey]
    """For JWT-SVIDs, by key id."""

    @property
    def bundle(self) -> Bundle:
        """What `verify_svid` takes."""
        return Bundle(trust_domain=self.trust_domain, authorities=self.authorities)

    @property
    def pem(self) -> bytes:
        """What TLS libraries take."""
        return b"".join(one.public_bytes(Encoding.PEM) for one in self.authorities)


def encode_bundle_document(document: BundleDocument) -> bytes:
    """Write it: `x509-svid` entries have no key id, `jwt-svid` entries have one (X509-SVID 6.1, JWT-SVID 6.2.2)."""
    certificates = [
        {
            "use": "x509-svid",
            **_jwk(reading.ec_public_key(one, curves=frozenset(_CURVES), refusal=SvidError)),
            "x5c": [base64.b64encode(one.public_bytes(Encoding.DER)).decode()],
        }
        for one in document.authorities
    ]
    keys = [{"use": "jwt-svid", "kid": name, **_jwk(key)} for name, key in sorted(document.jwt_keys.items())]
    fields = {
        "keys": [*certificates, *keys],
        "spiffe_sequence": document.sequence,
        "spiffe_refresh_hint": document.refresh_hint_s,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def read_bundle_document(octets: bytes, *, trust_domain: str) -> BundleDocument:
    """Read one that came from `trust_domain`; entries of other uses and kinds are left out, as section 4.2 says.

    Raises:
        SvidError: no JSON, a name twice, no sequence, no keys, an entry of ours that is malformed, too many of them.

    """
    if len(octets) > DOCUMENT_LIMIT_OCTETS:
        raise SvidError(f"a bundle has at most {DOCUMENT_LIMIT_OCTETS} octets")
    try:
        fields = json.loads(octets, object_pairs_hook=_refuse_repeated)
        sequence, hint = _number(fields["spiffe_sequence"]), _number(fields.get("spiffe_refresh_hint", 300))
        entries = [one for one in fields["keys"] if one["kty"] == "EC"]
        authorities = tuple(_certificate(one, trust_domain) for one in entries if one["use"] == "x509-svid")
        keys = {str(one["kid"]): _public_key(one) for one in entries if one["use"] == "jwt-svid"}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SvidError("the bundle cannot be read") from error
    if max(len(authorities), len(keys)) > BUNDLE_LIMIT:
        raise SvidError(f"a bundle has at most {BUNDLE_LIMIT} authorities and as many keys of JWT-SVIDs")
    return BundleDocument(
        trust_domain=trust_domain,
        sequence=sequence,
        refresh_hint_s=min(hint, REFRESH_HINT_LIMIT_S),
        authorities=authorities,
        jwt_keys=keys,
    )


def check_successor(document: BundleDocument, *, sequence: int) -> None:
    """Whether a document may come after one of `sequence`.

    Raises:
        SvidError: it is older, or believes nobody: an agent that took it could never speak to control again.

    """
    if document.sequence < sequence:
        raise SvidError(f"bundle {document.sequence} is older than {sequence}")
    if not document.authorities:
        raise SvidError("a bundle without authorities would end all trust")


def _jwk(key: ec.EllipticCurvePublicKey) -> dict[str, str]:
    numbers, size = key.public_numbers(), (key.curve.key_size + 7) // 8
    x, y = (base64.urlsafe_b64encode(one.to_bytes(size, "big")).rstrip(b"=").decode() for one in (numbers.x, numbers.y))
    return {"kty": "EC", "crv": _CURVES[key.curve.name], "x": x, "y": y}


def _certificate(entry: Mapping[str, Any], trust_domain: str) -> x509.Certificate:
    (encoded,) = entry["x5c"]
    certificate = reading.load_certificate(base64.b64decode(encoded, validate=True), refusal=SvidError)
    key = check_signing_certificate(certificate, trust_domain=trust_domain)
    if "kid" in entry or any(entry[name] != value for name, value in _jwk(key).items()):
        raise ValueError("an entry names another key than its certificate, or has a key id")
    return certificate


def _public_key(entry: Mapping[str, Any]) -> ec.EllipticCurvePublicKey:
    curve = {"P-256": ec.SECP256R1, "P-384": ec.SECP384R1}[entry["crv"]]
    x, y = (
        int.from_bytes(base64.urlsafe_b64decode(entry[name] + "=" * (-len(entry[name]) % 4)), "big") for name in "xy"
    )
    return ec.EllipticCurvePublicNumbers(x, y, curve()).public_key()


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < SEQUENCE_LIMIT:
        raise ValueError("not a number of a bundle")
    return value


def _refuse_repeated(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name stands twice")
    return result
