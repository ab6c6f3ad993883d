"""Identities as admins see them: what control issued, and what rotating its authority answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class IdentityKind(StrEnum):
    """What an identity is of."""

    AUTHORITY = "authority"
    CONTROL = "control"
    DEVICE = "device"


class Expiry(StrEnum):
    """How near an end is."""

    OK = "ok"
    SOON = "soon"
    """Under a quarter of its life is left (authorities: a fifth): whoever renews it by itself is late."""
    NOW = "now"
    """Under a twentieth is left."""
    OVER = "over"


class RotationStep(StrEnum):
    """One step of replacing the authority."""

    PREPARE = "prepare"
    ACTIVATE = "activate"
    RETIRE = "retire"


SOON_PART: Final = {IdentityKind.AUTHORITY: 0.2, IdentityKind.CONTROL: 0.25, IdentityKind.DEVICE: 0.25}
NOW_PART: Final = 0.05
BACKDATED_S: Final = 30
"""Every certificate begins so long before it was made (`trust.authority.BACKDATING`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityStatus:
    """One identity."""

    kind: IdentityKind
    spiffe_id: str
    state: str
    """An authority's: prepared, active or replaced; a device's: its state; control's: empty."""
    serial: str
    """Hexadecimal."""
    spki_sha256: str
    """Hexadecimal."""
    not_before_unix_s: int
    not_after_unix_s: int
    authority: str
    """Name of the authority that signed it; an authority's own."""
    bundle_sequence: int = 0
    """Device: of the bundle that it said it believes; 0 when it never said so."""
    expiry: Expiry = Expiry.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Identities:
    """Everything that control issued and that still counts."""

    trust_domain: str
    bundle_sequence: int
    identities: Sequence[IdentityStatus]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustBundle:
    """The bundle as a document."""

    trust_domain: str
    sequence: int
    document: bytes
    """A JWK set (SPIFFE Trust Domain and Bundle)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityRotation:
    """What one step of a rotation answered."""

    authority: str
    state: str
    bundle_sequence: int
    devices_behind: tuple[str, ...] = ()
    """Those that were not waited for, or have yet to follow."""


def judge_expiry(kind: IdentityKind, *, not_before_unix_s: int, not_after_unix_s: int, now_unix_s: float) -> Expiry:
    """How near its end something is, by the part of its life that is left."""
    left_s, life_s = not_after_unix_s - now_unix_s, not_after_unix_s - not_before_unix_s - BACKDATED_S
    if left_s <= 0:
        return Expiry.OVER
    if left_s < life_s * NOW_PART:
        return Expiry.NOW
    return Expiry.SOON if left_s < life_s * SOON_PART[kind] else Expiry.OK
