"""Claims of an attestation result, whichever envelope carries them: made of an appraisal, read and judged strictly.

Under their JWT names (draft-ietf-rats-ear-03): `ear` signs them as JWT, `ear_cwt` under integer keys as CWT. Claims
that are not known are ignored (RFC 9711 section 7.2.1), but for those of a trustworthiness vector. Verifies no
signature.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec

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
_DEVELOPER: Final = "https://ztdpu.dev"
_DIGEST_OCTETS: Final = 32
_UEID_OCTETS: Final = 33
_TEXT_LIMIT: Final = 255
COMPONENTS_LIMIT: Final = 4
"""Most further roots of trust in one device."""
_COMPONENT: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
TIERS: Final[Mapping[str, Tier]] = {tier.word: tier for tier in Tier}
LEASED_TIERS: Final = frozenset({Tier.AFFIRMING, Tier.WARNING})


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentClaims:
    """A further root of trust inside the same device, as verified."""

    status: Tier
    vector: Mapping[Dimension, int]
    nonce: bytes
    """Of this component's own evidence."""
    policies: tuple[str, ...]
    device_id_sha256: bytes
    ueid: bytes
    boot_counter: int


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
    components: Mapping[str, ComponentClaims] = field(default_factory=dict)
    """By name, without the device's: `erot`. Empty for a device with one root of trust."""


def make_payload(
    appraisal: Appraisal,
    *,
    device: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    now: datetime,
    binding_sha256: bytes,
    ttl_s: int,
    components: Mapping[str, Appraisal] = MappingProxyType({}),
) -> dict[str, Any]:
    """The claims of a result under their JWT names; `issue_ear` says what the arguments are.

    Raises:
        ValueError: a key not on P-256, a time without zone, or an argument out of its bounds.

    """
    require_p256(key.public_key())
    if not 1 <= ttl_s <= EAR_LIFETIME_LIMIT_S or len(binding_sha256) != _DIGEST_OCTETS or not device:
        raise ValueError("an attestation result is for a named device and a binding, and lives 1 to 3600 s")
    if len(components) > COMPONENTS_LIMIT or not all(map(_COMPONENT.fullmatch, components)):
        raise ValueError(f"at most {COMPONENTS_LIMIT} components, each with a name of lower-case letters and digits")
    issued_at = _unix(now)
    tiers = [appraisal.tier, *(one.tier for one in components.values())]
    submods = {device: _submodule(appraisal) | {"ztdpu_binding_sha256": _encode(binding_sha256)}}
    for name, one in components.items():
        submods[f"{device}/{name}"] = _submodule(one) | {"eat_nonce": _encode(one.nonce)}
    return {
        "eat_profile": EAR_PROFILE,
        "iss": issuer,
        "iat": issued_at,
        "exp": issued_at + ttl_s,
        "eat_nonce": _encode(appraisal.nonce),
        "ear_status": max(tiers, key=claims.rank_of_tier).word,
        "ear_verifier_id": {"developer": _DEVELOPER, "build": f"ztdpu {ztdpu.__version__}"},
        "submods": submods,
    }


def _submodule(appraisal: Appraisal) -> dict[str, Any]:
    return {
        "ear_status": appraisal.tier.word,
        "ear_trustworthiness_vector": {str(name): claim for name, claim in appraisal.vector.items()},
        "ear_appraisal_policy_ids": [appraisal.policy],
        "ueid": _encode(appraisal.ueid),
        "bootcount": appraisal.boot_counter,
        "ztdpu_device_id_sha256": _encode(appraisal.device_id_sha256),
    }


def judge_payload(
    payload: Mapping[str, Any],
    *,
    now: datetime,
    device: str,
    binding_sha256: bytes,
    allowed_tiers: frozenset[Tier] = LEASED_TIERS,
) -> EarClaims:
    """Judge claims whose signature is good: profile, times, device, binding, tier.

    Raises:
        EarError: any of these, or a status better than its own vector.
        ValueError: `now` has no time zone.

    """
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


def _read(payload: Mapping[str, Any]) -> EarClaims:
    submods, verifier = payload.get("submods"), payload.get("ear_verifier_id")
    if not isinstance(submods, dict) or not isinstance(verifier, dict):
        raise EarError("attestation result lacks its verifier or its appraisals")
    for name in ("developer", "build"):
        _text(verifier, name)
    devices = [name for name in submods if "/" not in name]
    if len(devices) != 1 or len(submods) > COMPONENTS_LIMIT + 1:
        raise EarError("attestation result is not about exactly one device")
    device, nonce = devices[0], _octets(payload, "eat_nonce", _DIGEST_OCTETS)
    own = _read_submodule(submods[device], nonce)
    components = {
        _component_name(name, device): _read_submodule(one, _octets(one, "eat_nonce", _DIGEST_OCTETS))
        for name, one in submods.items()
        if name != device and _require_object(one)
    }
    overall = _status(payload)
    worst = max(claims.rank_of_tier(one.status) for one in (own, *components.values()))
    if claims.rank_of_tier(overall) < worst:
        raise EarError("attestation result claims a better status than the worst of its submodules")
    return EarClaims(
        device=device,
        issuer=_text(payload, "iss"),
        status=overall,
        vector=own.vector,
        issued_at=_time(payload, "iat"),
        expires_at=_time(payload, "exp"),
        nonce=nonce,
        policies=own.policies,
        binding_sha256=_octets(submods[device], "ztdpu_binding_sha256", _DIGEST_OCTETS),
        device_id_sha256=own.device_id_sha256,
        ueid=own.ueid,
        boot_counter=own.boot_counter,
        components=components,
    )


def _read_submodule(part: Any, nonce: bytes) -> ComponentClaims:
    _require_object(part)
    vector, status = _vector(part.get("ear_trustworthiness_vector")), _status(part)
    if claims.rank_of_tier(status) < claims.rank_of_tier(claims.tier_of_vector(vector)):
        raise EarError("attestation result claims a better status than its trustworthiness vector")
    return ComponentClaims(
        status=status,
        vector=vector,
        nonce=nonce,
        policies=_texts(part, "ear_appraisal_policy_ids"),
        device_id_sha256=_octets(part, "ztdpu_device_id_sha256", _DIGEST_OCTETS),
        ueid=_octets(part, "ueid", _UEID_OCTETS),
        boot_counter=_number(part, "bootcount"),
    )


def _require_object(part: Any) -> bool:
    if not isinstance(part, dict):
        raise EarError("attestation result lacks its verifier or its appraisal")
    return True


def _component_name(name: str, device: str) -> str:
    owner, _, component = name.partition("/")
    if owner != device or not _COMPONENT.fullmatch(component):
        raise EarError("attestation result has a submodule of something else than its device")
    return component


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


def _status(part: Mapping[str, Any]) -> Tier:
    tier = TIERS.get(_text(part, "ear_status"))
    if tier is None:
        raise EarError("attestation result has an unknown status")
    return tier


def _text(part: Mapping[str, Any], name: str) -> str:
    value = part.get(name)
    if not isinstance(value, str) or not 1 <= len(value) <= _TEXT_LIMIT:
        raise EarError(f"attestation result lacks {name} or has it malformed")
    return value


def _texts(part: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = part.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise EarError(f"attestation result lacks {name} or has it malformed")
    return tuple(value)


def _number(part: Mapping[str, Any], name: str) -> int:
    value = part.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise EarError(f"attestation result lacks {name} or has it malformed")
    return value


def _time(part: Mapping[str, Any], name: str) -> datetime:
    try:
        return datetime.fromtimestamp(_number(part, name), tz=UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise EarError(f"attestation result has {name} out of bounds") from error


def _octets(part: Mapping[str, Any], name: str, size: int) -> bytes:
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


def require_p256(key: ec.EllipticCurvePublicKey) -> None:
    """Raise ValueError for a key of another curve."""
    if key.curve.name != "secp256r1":
        raise ValueError("attestation results are signed by a key on P-256")
