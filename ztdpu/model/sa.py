"""Security associations as everybody above psp speaks of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final

SOFT_LIMIT_PACKETS: Final = 1 << 31
SOFT_LIMIT_OCTETS: Final = 1 << 38
SOFT_LIMIT_S: Final = 3600
"""Past any of these a sender asks for a successor and goes on meanwhile (protocols.md 5.1)."""
HARD_LIMIT_PACKETS: Final = 1 << 40
HARD_LIMIT_OCTETS: Final = 1 << 40
"""Past either of these nothing is sealed any more."""
OFFER_TTL_S: Final = 30.0
"""How long an offer that nobody confirmed or used opens packets, and its confirmation is taken."""
DRAIN_S: Final = 5.0
"""How long an SA opens packets after its successor came into use."""
RETIRE_LEAST_S: Final = 60.0
"""An old master key lives at least this long while somebody still uses it, or the rest of the lease."""


class SaUse(IntEnum):
    """Datagram and stream SAs are never shared (protocols.md 6)."""

    DATAGRAM = 0
    STREAM = 1


class PspVersion(IntEnum):
    """PSP header versions that carry confidentiality; 2 and 3 (GMAC) are refused."""

    AES_GCM_128 = 0
    AES_GCM_256 = 1


class SaEnd(StrEnum):
    """Why a receiving SA is no more."""

    OFFER_UNANSWERED = "offer-unanswered"
    DRAINED = "drained"
    PEER_REMOVED = "peer-removed"
    NETWORK_GONE = "network-gone"
    MASTER_KEY_RETIRED = "master-key-retired"
    LEASE_ENDED = "lease-ended"
    CLOCK_DOUBT = "clock-doubt"


@dataclass(frozen=True, slots=True, kw_only=True)
class SaWant:
    """What a sender asks of a receiver."""

    network_id: bytes
    network_generation: int
    key_epoch: int
    use: SaUse = SaUse.DATAGRAM
    lane: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SaGrant:
    """What a receiver hands out: everything a sender needs to seal. Secret."""

    network_id: bytes
    use: SaUse
    lane: int
    psp_version: PspVersion
    spi: int
    key: bytes = field(repr=False)
    """16 or 32 octets by version."""
    ttl_s: int
    soft_limit_octets: int
