"""AR4SI arithmetic: from claims to tiers, from findings to a vector (draft-ietf-rats-ar4si section 2.3).

Called by `appraise`, which makes vectors, and `ear`, which refuses a status better than its vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ztdpu.model.attestation import Dimension, Finding, Tier

CLAIM_LOWEST: Final = -128
CLAIM_HIGHEST: Final = 127
_RANKS: Final = {Tier.AFFIRMING: 0, Tier.NONE: 1, Tier.WARNING: 2, Tier.CONTRAINDICATED: 3}


_WORDS: Final[Mapping[tuple[Dimension, int], str]] = {
    (Dimension.INSTANCE_IDENTITY, 2): "known device",
    (Dimension.INSTANCE_IDENTITY, 96): "known, and not trusted",
    (Dimension.INSTANCE_IDENTITY, 97): "not known to be itself now",
    (Dimension.CONFIGURATION, 2): "approved",
    (Dimension.CONFIGURATION, 3): "no known vulnerabilities",
    (Dimension.CONFIGURATION, 32): "known vulnerabilities",
    (Dimension.CONFIGURATION, 36): "not shown",
    (Dimension.CONFIGURATION, 96): "not acceptable",
    (Dimension.EXECUTABLES, 2): "approved at boot and run time",
    (Dimension.EXECUTABLES, 3): "approved at boot",
    (Dimension.EXECUTABLES, 32): "known vulnerabilities",
    (Dimension.EXECUTABLES, 33): "not recognized",
    (Dimension.EXECUTABLES, 96): "not acceptable",
    (Dimension.HARDWARE, 2): "genuine",
    (Dimension.HARDWARE, 32): "known vulnerabilities",
    (Dimension.HARDWARE, 96): "not acceptable",
    (Dimension.HARDWARE, 97): "not recognized",
}


def word_of_claim(dimension: Dimension, claim: int) -> str:
    """What a claim says, for people (AR4SI section 2.3.4); the tier where there is no nearer word."""
    return _WORDS.get((dimension, claim), tier_of_claim(claim).word)


def tier_of_claim(claim: int) -> Tier:
    """Tier of one claim value, -128..127; ValueError outside."""
    if not CLAIM_LOWEST <= claim <= CLAIM_HIGHEST:
        raise ValueError(f"a claim of a trustworthiness vector lies between -128 and 127, not at {claim}")
    if -1 <= claim <= 1:
        return Tier.NONE
    if -32 <= claim <= 31:
        return Tier.AFFIRMING
    return Tier.WARNING if -96 <= claim <= 95 else Tier.CONTRAINDICATED


def rank_of_tier(tier: Tier) -> int:
    """How bad a tier is, 0 best. "None" says nothing, which is less than a good word and better than a bad one."""
    return _RANKS[tier]


def worse_claim(one: int, other: int) -> int:
    """The worse of two claims for the same dimension."""
    return max(one, other, key=lambda claim: (_RANKS[tier_of_claim(claim)], abs(claim)))


def make_vector(base: Mapping[Dimension, int], findings: Iterable[Finding]) -> dict[Dimension, int]:
    """Lower the claims of `base` by every finding."""
    vector = dict(base)
    for finding in findings:
        vector[finding.dimension] = worse_claim(vector.get(finding.dimension, 0), finding.claim)
    return vector


def tier_of_vector(vector: Mapping[Dimension, int]) -> Tier:
    """Worst tier of a vector; a claim of 0 is the same as an absent one, and a vector without claims says nothing."""
    tiers = [tier_of_claim(claim) for claim in vector.values() if claim != 0]
    return max(tiers, key=rank_of_tier) if tiers else Tier.NONE
