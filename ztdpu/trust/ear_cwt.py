"""EAR as CWT: the same claims as the JWT of `ear` under integer keys, in a COSE_Sign1 with ES256 (RFC 9711, RFC 8392).

For relying parties that speak CBOR; peers among each other use the JWT. The registered claims have their registered
keys, those of EAR the ones of draft-ietf-rats-ear-03, ztdpu's two are from the range for private use. Both forms are
read by one judge (`ear_claims`): a CWT is first told in JWT names, and only from integer keys. The octets must be the
deterministic spelling, tag 18 outside, tag 61 around it allowed.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec

from ztdpu.errors import EarError
from ztdpu.model.attestation import Dimension, Tier
from ztdpu.trust import cose, strict_cbor
from ztdpu.trust.appraise import Appraisal
from ztdpu.trust.ear_claims import (
    EAR_LIMIT_OCTETS,
    LEASED_TIERS,
    EarClaims,
    judge_payload,
    make_payload,
    require_p256,
)
from ztdpu.trust.strict_cbor import Tag

CONTENT_TYPE: Final = "application/eat+cwt"
TAG_CWT: Final = 61
KEY_BINDING: Final = -75301
KEY_DEVICE_ID: Final = -75302
_HEADERS: Final = frozenset({cose.HEADER_ALGORITHM, cose.HEADER_CONTENT_TYPE})
_DEPTH: Final = 6

_CLAIMS: Final[Mapping[str, int]] = {
    "iss": 1,
    "exp": 4,
    "iat": 6,
    "eat_nonce": 10,
    "ueid": 256,
    "eat_profile": 265,
    "submods": 266,
    "bootcount": 267,
    "ear_status": 1000,
    "ear_trustworthiness_vector": 1001,
    "ear_appraisal_policy_ids": 1003,
    "ear_verifier_id": 1004,
    "ztdpu_binding_sha256": KEY_BINDING,
    "ztdpu_device_id_sha256": KEY_DEVICE_ID,
}
_NAMES: Final = {key: name for name, key in _CLAIMS.items()}
_OCTETS: Final = frozenset({"eat_nonce", "ueid", "ztdpu_binding_sha256", "ztdpu_device_id_sha256"})
"""Octet strings here, base64url in a JWT."""
_VERIFIER: Final[Mapping[str, int]] = {"developer": 0, "build": 1}
_VECTOR: Final[Mapping[str, int]] = {str(name): key for key, name in enumerate(Dimension)}
"""AR4SI numbers its claims in the order in which it names them (draft-ietf-rats-ar4si, CDDL)."""
_TIERS: Final = {int(tier): tier.word for tier in Tier}


def issue_ear_cwt(
    appraisal: Appraisal,
    *,
    device: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    now: datetime,
    binding_sha256: bytes,
    ttl_s: int,
    components: Mapping[str, Appraisal] = MappingProxyType({}),
) -> bytes:
    """Issue the result of an appraisal for one KeyBinding: arguments and errors are those of `ear.issue_ear`."""
    payload = make_payload(
        appraisal,
        device=device,
        key=key,
        issuer=issuer,
        now=now,
        binding_sha256=binding_sha256,
        ttl_s=ttl_s,
        components=components,
    )
    return sign_payload(payload, key=key)


def sign_payload(payload: Mapping[str, Any], *, key: ec.EllipticCurvePrivateKey) -> bytes:
    """Sign claims that were issued before, named as in a JWT: the same result in its other form, the same times.

    Raises:
        ValueError: a key not on P-256, or a claim that has no integer key.

    """
    require_p256(key.public_key())
    return cose.sign(
        strict_cbor.encode(to_keys(payload)), key=key, header={cose.HEADER_CONTENT_TYPE: CONTENT_TYPE}, unprotected={}
    )


def verify_ear_cwt(
    token: bytes,
    *,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    device: str,
    binding_sha256: bytes,
    allowed_tiers: frozenset[Tier] = LEASED_TIERS,
) -> EarClaims:
    """Verify a result: size, spelling, signature, and then all that `ear.verify_ear` asks, with the same errors."""
    payload = open_ear_cwt(token, key)
    return judge_payload(payload, now=now, device=device, binding_sha256=binding_sha256, allowed_tiers=allowed_tiers)


def open_ear_cwt(token: bytes, key: ec.EllipticCurvePublicKey) -> dict[str, Any]:
    """Claims, in JWT names, of a token whose signature is good.

    Raises:
        EarError: too long, not spelt deterministically, not signed by `key` with ES256, or of wrong types.
        ValueError: the key is not on P-256: the caller's mistake.

    """
    require_p256(key)
    item = strict_cbor.decode(token, refusal=EarError, limit_octets=EAR_LIMIT_OCTETS, depth_limit=_DEPTH)
    if isinstance(item, Tag) and item.number == TAG_CWT:
        item = item.value
    message = cose.take_apart(item, refusal=EarError, limit_octets=EAR_LIMIT_OCTETS)
    if not set(message.header) <= _HEADERS or message.header.get(cose.HEADER_CONTENT_TYPE) != CONTENT_TYPE:
        raise EarError(f"attestation result has another header than its algorithm and {CONTENT_TYPE}")
    if not set(message.unprotected) <= {cose.HEADER_KEY_ID}:
        raise EarError("attestation result has something but a key id outside its signature")
    cose.verify(message, key=key, refusal=EarError)
    found = strict_cbor.decode(message.payload, refusal=EarError, limit_octets=EAR_LIMIT_OCTETS, depth_limit=_DEPTH)
    return to_names(found)


def to_keys(part: Mapping[str, Any]) -> dict[Any, Any]:
    """Claims under integer keys; ValueError for one that has none."""
    unknown = sorted(part.keys() - _CLAIMS.keys())
    if unknown:
        raise ValueError(f"no integer key is known for {', '.join(unknown)}")
    return {_CLAIMS[name]: _to_cbor(name, value) for name, value in part.items()}


def _to_cbor(name: str, value: Any) -> Any:
    if name in _OCTETS:
        return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
    if name == "ear_status":
        return next(number for number, word in _TIERS.items() if word == value)
    if name == "ear_trustworthiness_vector":
        return {_VECTOR[dimension]: claim for dimension, claim in value.items()}
    if name == "ear_verifier_id":
        return {_VERIFIER[field]: text for field, text in value.items()}
    if name == "submods":
        return {submodule: to_keys(claims) for submodule, claims in value.items()}
    return value


def to_names(part: Any) -> dict[str, Any]:
    """Claims under JWT names; those of unknown keys are left out.

    Raises:
        EarError: a claim of a type that it cannot have here.

    """
    if not isinstance(part, dict):
        raise EarError("attestation result has claims that are no map")
    return {_NAMES[key]: _to_json(_NAMES[key], value) for key, value in part.items() if key in _NAMES}


def _to_json(name: str, value: Any) -> Any:
    if name in _OCTETS:
        if not isinstance(value, bytes):
            raise EarError(f"attestation result lacks {name} or has it malformed")
        return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
    if name == "ear_status":
        return _word(_TIERS, value, name)
    if name == "ear_trustworthiness_vector":
        names = {key: dimension for dimension, key in _VECTOR.items()}
        return {_word(names, key, name): claim for key, claim in _map(value, name).items()}
    if name == "ear_verifier_id":
        names = {key: field for field, key in _VERIFIER.items()}
        return {_word(names, key, name): text for key, text in _map(value, name).items()}
    if name == "submods":
        return {_submodule(key): to_names(claims) for key, claims in _map(value, name).items()}
    return value


def _map(value: Any, name: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise EarError(f"attestation result lacks {name} or has it malformed")
    return value


def _word(words: Mapping[int, str], value: Any, name: str) -> str:
    """A name for a number; a number without one is refused: it could be the one that contraindicates."""
    if isinstance(value, bool) or not isinstance(value, int) or value not in words:
        raise EarError(f"attestation result has something in {name} that is not known")
    return words[value]


def _submodule(key: Any) -> str:
    if not isinstance(key, str):
        raise EarError("attestation result has a submodule without a name")
    return key
