"""JWT-SVIDs: issuing, verifying, and the JWK set that verifies them (SPIFFE JWT-SVID, RFC 7638 for key ids).

Control issues with a key that signs nothing else; the sidecar verifies for workloads (ValidateJWTSVID). ES256 and
nothing else. A JWT-SVID is a bearer token: it lives minutes, and names whom it is for.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec
from joserfc import jws, jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey

from ztdpu.errors import SvidError
from ztdpu.trust.spiffe_id import SpiffeId, parse_spiffe_id

JWT_SVID_LIMIT_OCTETS: Final = 8192
JWT_SVID_LIFETIME_LIMIT_S: Final = 300
AUDIENCES_LIMIT: Final = 4
AUDIENCE_LIMIT_CHARACTERS: Final = 255
JWT_KEYS_LIMIT: Final = 8
JWT_BUNDLE_LIMIT_OCTETS: Final = 64 * 1024
CLOCK_SLACK_S: Final = 5
_TIME_LIMIT_S: Final = 1 << 37
"""In the year 6325: no later time is read, since a datetime ends with the year 9999."""
_ALGORITHM: Final = "ES256"
_COORDINATE_OCTETS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtSvid:
    """A verified JWT-SVID."""

    spiffe_id: SpiffeId
    audience: tuple[str, ...]
    expires_at: datetime
    claims: Mapping[str, Any]
    """All of them, as they stood in the token."""


def issue_jwt_svid(
    *, key: ec.EllipticCurvePrivateKey, spiffe_id: SpiffeId, audience: Sequence[str], now: datetime, ttl_s: int
) -> str:
    """Issue one for `spiffe_id`, `ttl_s` seconds long (at most 300).

    Raises:
        SvidError: no audience, too many or malformed ones, an identity without a path.
        ValueError: a key not on P-256, a time without zone, a lifetime out of bounds: the caller's mistakes.

    """
    if now.tzinfo is None or not 1 <= ttl_s <= JWT_SVID_LIFETIME_LIMIT_S:
        raise ValueError("a JWT-SVID needs a time with zone and lives 1 to 300 s")
    check_audience(audience)
    if not spiffe_id.path:
        raise SvidError("a JWT-SVID names a workload")
    issued_at = int(now.timestamp())
    header = {"alg": _ALGORITHM, "kid": key_id(key.public_key()), "typ": "JWT"}
    claims = {"sub": str(spiffe_id), "aud": list(audience), "iat": issued_at, "exp": issued_at + ttl_s}
    return jwt.encode(header, claims, ECKey.import_key(key), algorithms=[_ALGORITHM])


def check_audience(audience: Sequence[str]) -> None:
    """Refuse what no JWT-SVID may be for.

    Raises:
        SvidError: none, more than four, one twice, one that is empty, over 255 characters or not printable.

    """
    if not 1 <= len(audience) <= AUDIENCES_LIMIT or len(set(audience)) != len(audience):
        raise SvidError(f"a JWT-SVID is for 1 to {AUDIENCES_LIMIT} different audiences", remedy="name one")
    if not all(1 <= len(one) <= AUDIENCE_LIMIT_CHARACTERS and one.isprintable() for one in audience):
        raise SvidError(f"an audience has 1 to {AUDIENCE_LIMIT_CHARACTERS} printable characters")


def verify_jwt_svid(
    token: str,
    *,
    keys: Mapping[str, ec.EllipticCurvePublicKey],
    trust_domain: str,
    audience: str,
    now: datetime,
) -> JwtSvid:
    """Verify a token against the keys of one trust domain (JWT-SVID sections 3 and 4), 5 s of slack.

    Raises:
        SvidError: size, header, an unknown key, signature, times, audience, an identity of another domain.

    """
    header = _header(token)
    key = keys.get(str(header["kid"]))
    if key is None:
        raise SvidError("JWT-SVID is signed by no key of the bundle")
    try:
        claims = jwt.decode(token, ECKey.import_key(key), algorithms=[_ALGORITHM], decoder_cls=_StrictDecoder).claims
    except (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SvidError("JWT-SVID does not verify") from error
    subject = claims.get("sub")
    spiffe_id = parse_spiffe_id(subject if isinstance(subject, str) else "")
    if spiffe_id.trust_domain != trust_domain or not spiffe_id.path:
        raise SvidError("JWT-SVID names no workload of this trust domain")
    named = claims.get("aud")
    audiences = [named] if isinstance(named, str) else named
    if not isinstance(audiences, list) or not all(isinstance(one, str) for one in audiences):
        raise SvidError("JWT-SVID has no audience")
    if not audience or audience not in audiences:
        raise SvidError("JWT-SVID is for another audience")
    expires_at = _check_times(claims, now)
    return JwtSvid(spiffe_id=spiffe_id, audience=tuple(audiences), expires_at=expires_at, claims=claims)


def _header(token: str) -> Mapping[str, Any]:
    """Read the header, which may say three things and nothing that could steer the verification."""
    if len(token) > JWT_SVID_LIMIT_OCTETS or not token.isascii():
        raise SvidError(f"JWT-SVID is longer than {JWT_SVID_LIMIT_OCTETS} octets or not ASCII")
    try:
        header = jws.extract_compact(token.encode()).headers()
    except (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SvidError("JWT-SVID cannot be read") from error
    if set(header) - {"alg", "kid", "typ"} or header.get("alg") != _ALGORITHM or not isinstance(header.get("kid"), str):
        raise SvidError("JWT-SVID has another header than ES256, a key id and a type")
    if header.get("typ", "JWT") not in ("JWT", "JOSE"):
        raise SvidError("JWT-SVID is of another type")
    return header


def _check_times(claims: Mapping[str, Any], now: datetime) -> datetime:
    if now.tzinfo is None:
        raise ValueError("`now` needs a time zone")
    numbers = [claims.get("exp"), claims.get("iat", 0), claims.get("nbf", 0)]
    if not all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one < _TIME_LIMIT_S for one in numbers):
        raise SvidError("JWT-SVID has no readable times")
    slack = timedelta(seconds=CLOCK_SLACK_S)
    expires_at = datetime.fromtimestamp(int(numbers[0] or 0), UTC)
    if now >= expires_at + slack:
        raise SvidError("JWT-SVID is over")
    if now < datetime.fromtimestamp(max(int(numbers[1] or 0), int(numbers[2] or 0)), UTC) - slack:
        raise SvidError("JWT-SVID is of the future")
    return expires_at


# --- keys ---


def key_id(key: ec.EllipticCurvePublicKey) -> str:
    """The thumbprint of the key (RFC 7638 with SHA-256)."""
    one = _coordinates(key)
    canonical = json.dumps({"crv": "P-256", "kty": "EC", **one}, separators=(",", ":"), sort_keys=True)
    return _encode(hashlib.sha256(canonical.encode()).digest())


def jwt_bundle(keys: Sequence[ec.EllipticCurvePublicKey]) -> bytes:
    """The JWK set of these keys (SPIFFE Trust Domain and Bundle section 4, JWT-SVID section 6)."""
    entries = [
        {"kty": "EC", "use": "jwt-svid", "crv": "P-256", "kid": key_id(one), **_coordinates(one)} for one in keys
    ]
    return json.dumps({"keys": entries}, separators=(",", ":")).encode()


def read_jwt_bundle(octets: bytes) -> dict[str, ec.EllipticCurvePublicKey]:
    """Keys of JWT-SVIDs in a JWK set, by key id; entries for other uses and of other kinds are left out.

    Raises:
        SvidError: no JWK set, too large, a key of ours without id or that is no point of P-256.

    """
    if len(octets) > JWT_BUNDLE_LIMIT_OCTETS:
        raise SvidError("the bundle of JWT-SVIDs is too large")
    try:
        entries = json.loads(octets, cls=_StrictDecoder)["keys"]
        wanted = [
            one for one in entries if one["use"] == "jwt-svid" and (one["kty"], one.get("crv")) == ("EC", "P-256")
        ]
        keys = {str(one["kid"]): _public_key(one["x"], one["y"]) for one in wanted[:JWT_KEYS_LIMIT]}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SvidError("the bundle of JWT-SVIDs cannot be read") from error
    return keys


def _public_key(x: str, y: str) -> ec.EllipticCurvePublicKey:
    numbers = [int.from_bytes(base64.urlsafe_b64decode(one + "=" * (-len(one) % 4)), "big") for one in (x, y)]
    return ec.EllipticCurvePublicNumbers(numbers[0], numbers[1], ec.SECP256R1()).public_key()


def _coordinates(key: ec.EllipticCurvePublicKey) -> dict[str, str]:
    if key.curve.name != "secp256r1":
        raise ValueError("JWT-SVIDs are signed by a key on P-256")
    numbers = key.public_numbers()
    return {
        name: _encode(one.to_bytes(_COORDINATE_OCTETS, "big")) for name, one in (("x", numbers.x), ("y", numbers.y))
    }


def _encode(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).rstrip(b"=").decode()


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name stands twice in a JSON object")
    return result


class _StrictDecoder(json.JSONDecoder):
    """JSON without repeated names."""

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=_refuse_repeated)
