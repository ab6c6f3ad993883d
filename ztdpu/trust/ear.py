"""EAR: the attestation result as a signed JWT, in the claim names of draft-ietf-rats-ear-03 and ztdpu's own profile.

Control issues one with every appraisal; agents show them to peers, who verify them here. A result speaks for one
device and one KeyBinding. Verifying is strict: ES256 and nothing else, every claim that ztdpu needs must be there and
be well formed, claims that it does not know are ignored (RFC 9711 section 7.2.1).

    {eat_profile, iss, iat, exp, eat_nonce, ear_status, ear_verifier_id,
     submods: {DEVICE: {ear_status, ear_trustworthiness_vector, ear_appraisal_policy_ids, ueid, bootcount,
                        ztdpu_binding_sha256, ztdpu_device_id_sha256},
               DEVICE/COMPONENT: {the same without a binding, and eat_nonce of its own}, ...}}

A device with several roots of trust (a DPU and the external root beside it) is one device with a submodule for each;
the status on top is never better than the worst of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey

from ztdpu.errors import EarError
from ztdpu.model.attestation import Tier
from ztdpu.trust.appraise import Appraisal
from ztdpu.trust.ear_claims import (
    EAR_LIMIT_OCTETS,
    LEASED_TIERS,
    EarClaims,
    judge_payload,
    make_payload,
    require_p256,
)

_ALGORITHM: Final = "ES256"
_HEADER: Final = {"alg": _ALGORITHM, "typ": "JWT"}


def issue_ear(
    appraisal: Appraisal,
    *,
    device: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    now: datetime,
    binding_sha256: bytes,
    ttl_s: int,
    components: Mapping[str, Appraisal] = MappingProxyType({}),
) -> str:
    """Issue the result of an appraisal for one KeyBinding, `ttl_s` seconds long (at most 3600).

    `components` are appraisals of further roots of trust in the same device, by name.

    Raises:
        ValueError: a key not on P-256, a time without zone, or an argument out of its bounds.

    """
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
    return jwt.encode(dict(_HEADER), payload, ECKey.import_key(key), algorithms=[_ALGORITHM])


def verify_ear(
    token: str,
    *,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    device: str,
    binding_sha256: bytes,
    allowed_tiers: frozenset[Tier] = LEASED_TIERS,
) -> EarClaims:
    """Verify a result: size, signature (ES256), profile, times (30 s slack), device, binding, tier.

    `allowed_tiers` are those that the caller deals with; pass all of `Tier` to read a result only.

    Raises:
        EarError: any of these, or a status better than its own vector.
        ValueError: `now` has no time zone or the key is not on P-256: the caller's mistakes.

    """
    require_p256(key)
    payload = open_ear(token, key)
    return judge_payload(payload, now=now, device=device, binding_sha256=binding_sha256, allowed_tiers=allowed_tiers)


def open_ear(token: str, key: ec.EllipticCurvePublicKey) -> dict[str, Any]:
    """Claims of a token whose signature is good; the header may say nothing that could steer it.

    Raises:
        EarError: too long, not signed by `key` with ES256, or JSON that can be read in two ways.

    """
    if len(token) > EAR_LIMIT_OCTETS or not token.isascii():
        raise EarError(f"attestation result is longer than {EAR_LIMIT_OCTETS} octets or not ASCII")
    try:
        verified = jwt.decode(token, ECKey.import_key(key), algorithms=[_ALGORITHM], decoder_cls=_StrictDecoder)
    except (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise EarError("attestation result does not verify") from error
    if verified.header != _HEADER:
        raise EarError("attestation result has another header than ES256 and JWT")
    return verified.claims


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
