"""EAR: the attestation result as a signed JWT, in the claim names of draft-ietf-rats-ear-03 and ztdpu's own profile.

Control issues one with every appraisal; agents show them to peers, who verify them here. A result speaks for one
device and one KeyBinding. Verifying is strict: ES256 and nothing else, every claim that ztdpu needs must be there and
be well formed, claims that it does not know are ignored (RFC 9711 section 7.2.1).

    {eat_profile, iss, iat, exp, eat_nonce, ear_status, ear_verifier_id,
     submods: {DEVICE: {ear_status, ear_trustworthiness_vector, ear_appraisal_policy_ids, ueid, bootcount,
                        ztdpu_binding_sha256, ztdpu_device_id_sha256}}}
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey

import ztdpu
from ztdpu.errors import EarError
from ztdpu.model.attestation import Dimension, Tier
from ztdpu.trust import claims
from ztdpu.trust.appraise import Appraisal

EAR_PROFILE: Final = "tag:ztdpu.dev,2026:ear/1"
EAR_LIMIT_OCTETS: Final = 8192
EAR_LIFETIME_LIMIT_S: Final = 3600
CLOCK_SLACK_S: Final = 30
"""For iat and exp, and documented nowhere else: X.509 validity has none."""
_ALGORITHM: Final = "ES256"
_HEADER: Final = {"alg": _ALGORITHM, "typ": "JWT"}
_DEVELOPER: Final = "https://ztdpu.dev"
_DIGEST_OCTETS: Final = 32
_UEID_OCTETS: Final = 33
_TEXT_LIMIT: Final = 255
_TIERS: Final = {tier.word: tier for tier in Tier}
_LEASED: Final = frozenset({Tier.AFFIRMING, Tier.WARNING})


@dataclass(frozen=True, slots=True, kw_only=True)
class EarClaims:
    """A verified attestation result."""

    device: str
    issuer: str
    status: Tier
    vector: Mapping[Dimension, int]
    issued_at: datetime
    expires_at: datetime
    nonce: bytes
    """Of the evidence behind it."""
    policies: tuple[str, ...]
    """Appraisal policies, in the order in which they were applied."""
    binding_sha256: bytes
    device_id_sha256: bytes
    ueid: bytes
    boot_counter: int


def issue_ear(
    appraisal: Appraisal,
    *,
    device: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    now: datetime,
    binding_sha256: bytes,
    ttl_s: int,
) -> str:
    """Issue the result of an appraisal for one KeyBinding, `ttl_s` seconds long (at most 3600).

    Raises:
        ValueError: a key not on P-256, a time without zone, or an argument out of its bounds.

    """
    _require_p256(key.public_key())
    if not 1 <= ttl_s <= EAR_LIFETIME_LIMIT_S or len(binding_sha256) != _DIGEST_OCTETS or not device:
        raise ValueError("an attestation result is for a named device and a binding, and lives 1 to 3600 s")
    issued_at = _unix(now)
    status = appraisal.tier.word
    submodule = {
        "ear_status": status,
        "ear_trustworthiness_vector": {str(name): claim for name, claim in appraisal.vector.items()},
        "ear_appraisal_policy_ids": [appraisal.policy],
        "ueid": _encode(appraisal.ueid),
        "bootcount": appraisal.boot_counter,
        "ztdpu_binding_sha256": _encode(binding_sha256),
        "ztdpu_device_id_sha256": _encode(appraisal.device_id_sha256),
    }
    payload = {
        "eat_profile": EAR_PROFILE,
        "iss": issuer,
        "iat": issued_at,
        "exp": issued_at + ttl_s,
        "eat_nonce": _encode(appraisal.nonce),
        "ear_status": status,
        "ear_verifier_id": {"developer": _DEVELOPER, "build": f"ztdpu {ztdpu.__version__}"},
        "submods": {device: submodule},
    }
    return jwt.encode(dict(_HEADER), payload, ECKey.import_key(key), algorithms=[_ALGORITHM])


def verify_ear(
    token: str,
    *,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    device: str,
    binding_sha256: bytes,
    allowed_tiers: frozenset[Tier] = _LEASED,
) -> EarClaims:
    """Verify a result: size, signature (ES256), profile, times (30 s slack), device, binding, tier.

    `allowed_tiers` are those that the caller deals with; pass all of `Tier` to read a result only.

    Raises:
        EarError: any of these, or a status better than its own vector.
        ValueError: `now` has no time zone or the key is not on P-256: the caller's mistakes.

    """
    _require_p256(key)
    payload = _open(token, key)
    if payload.get("eat_profile") != EAR_PROFILE:
        raise EarError("attestation result is of another profile")
    result = _read(payload)
    _check_times(result, now)
    if result.device != device:
        raise EarError("attestation result is for another device")
    if result.binding_sha256 != binding_sha256:
        raise EarError("attestation result is for another key binding")
    if result.status not in allowed_tiers:
        raise EarError(f"attestation result says {result.status.word}")
    return result


def _open(token: str, key: ec.EllipticCurvePublicKey) -> dict[str, Any]:
    """Verify the signature; the header may say nothing that could steer it."""
    if len(token) > EAR_LIMIT_OCTETS or not token.isascii():
        raise EarError(f"attestation result is longer than {EAR_LIMIT_OCTETS} octets or not ASCII")
    try:
        verified = jwt.decode(token, ECKey.import_key(key), algorithms=[_ALGORITHM], decoder_cls=_StrictDecoder)
    except (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise EarError("attestation result does not verify") from error
    if verified.header != _HEADER:
        raise EarError("attestation result has another header than ES256 and JWT")
    return verified.claims


def _read(payload: dict[str, Any]) -> EarClaims:
    submods = payload.get("submods")
    if not isinstance(submods, dict) or len(submods) != 1:
        raise EarError("attestation result is not about exactly one device")
    ((device, submodule),) = submods.items()
    verifier = payload.get("ear_verifier_id")
    if not isinstance(submodule, dict) or not isinstance(verifier, dict):
        raise EarError("attestation result lacks its verifier or its appraisal")
    for name in ("developer", "build"):
        _text(verifier, name)
    vector = _vector(submodule.get("ear_trustworthiness_vector"))
    status = _status(submodule)
    overall = _status(payload)
    worst = claims.rank_of_tier(claims.tier_of_vector(vector))
    if claims.rank_of_tier(status) < worst or claims.rank_of_tier(overall) < claims.rank_of_tier(status):
        raise EarError("attestation result claims a better status than its trustworthiness vector")
    return EarClaims(
        device=device,
        issuer=_text(payload, "iss"),
        status=overall,
        vector=vector,
        issued_at=_time(payload, "iat"),
        expires_at=_time(payload, "exp"),
        nonce=_octets(payload, "eat_nonce", _DIGEST_OCTETS),
        policies=_texts(submodule, "ear_appraisal_policy_ids"),
        binding_sha256=_octets(submodule, "ztdpu_binding_sha256", _DIGEST_OCTETS),
        device_id_sha256=_octets(submodule, "ztdpu_device_id_sha256", _DIGEST_OCTETS),
        ueid=_octets(submodule, "ueid", _UEID_OCTETS),
        boot_counter=_number(submodule, "bootcount"),
    )


def _check_times(result: EarClaims, now: datetime) -> None:
    _unix(now)
    slack = timedelta(seconds=CLOCK_SLACK_S)
    if not result.issued_at < result.expires_at <= result.issued_at + timedelta(seconds=EAR_LIFETIME_LIMIT_S):
        raise EarError("attestation result has contradictory times")
    if now < result.issued_at - slack:
        raise EarError("attestation result was issued in the future")
    if now > result.expires_at + slack:
        raise EarError("attestation result is no longer fresh")


def _vector(value: Any) -> dict[Dimension, int]:
    if not isinstance(value, dict) or not value:
        raise EarError("attestation result has no trustworthiness vector")
    vector: dict[Dimension, int] = {}
    for name, claim in value.items():
        # A dimension that is not known could be the one that contraindicates: no guess.
        if name not in set(Dimension) or isinstance(claim, bool) or not isinstance(claim, int):
            raise EarError("attestation result has a trustworthiness claim that is not known")
        if not claims.CLAIM_LOWEST <= claim <= claims.CLAIM_HIGHEST:
            raise EarError("attestation result has a trustworthiness claim out of bounds")
        vector[Dimension(name)] = claim
    return vector


def _status(part: dict[str, Any]) -> Tier:
    tier = _TIERS.get(_text(part, "ear_status"))
    if tier is None:
        raise EarError("attestation result has an unknown status")
    return tier


def _text(part: dict[str, Any], name: str) -> str:
    value = part.get(name)
    if not isinstance(value, str) or not 1 <= len(value) <= _TEXT_LIMIT:
        raise EarError(f"attestation result lacks {name} or has it malformed")
    return value


def _texts(part: dict[str, Any], name: str) -> tuple[str, ...]:
    value = part.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise EarError(f"attestation result lacks {name} or has it malformed")
    return tuple(value)


def _number(part: dict[str, Any], name: str) -> int:
    value = part.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise EarError(f"attestation result lacks {name} or has it malformed")
    return value


def _time(part: dict[str, Any], name: str) -> datetime:
    try:
        return datetime.fromtimestamp(_number(part, name), tz=UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise EarError(f"attestation result has {name} out of bounds") from error


def _octets(part: dict[str, Any], name: str, size: int) -> bytes:
    text = _text(part, name)
    try:
        octets = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise EarError(f"attestation result has {name} malformed") from error
    if len(octets) != size or _encode(octets) != text:
        raise EarError(f"attestation result has {name} of another size or spelling")
    return octets


def _encode(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).rstrip(b"=").decode()


def _unix(now: datetime) -> int:
    if now.tzinfo is None:
        raise ValueError("`now` needs a time zone")
    return int(now.timestamp())


def _require_p256(key: ec.EllipticCurvePublicKey) -> None:
    if key.curve.name != "secp256r1":
        raise ValueError("attestation results are signed by a key on P-256")


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name stands twice in a JSON object")
    return result


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


class _StrictDecoder(json.JSONDecoder):
    """JSON without repeated names and without NaN."""

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=_refuse_repeated, parse_constant=_refuse_constant)
