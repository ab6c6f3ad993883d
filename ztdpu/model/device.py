"""Devices, their states and how they stand (protocols.md 3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class DeviceState(StrEnum):
    """States of a device at control; the table in docs/states.md says what each allows."""

    PENDING = "pending"
    AFFIRMING = "affirming"
    WARNING = "warning"
    CONTRAINDICATED = "contraindicated"
    STALE = "stale"
    QUARANTINED = "quarantined"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One thing that must be so before a device is ready."""

    name: str
    """`enrolled`, `attested`, `bound`, `identity`, `leased`, `connected`, `policy`, `keys`, `ready`."""
    met: bool
    since_unix_ms: int = 0
    """Since when it is so, or is not; 0: not known."""
    reason: str = ""
    """Why, in one phrase."""
    deadline_unix_ms: int = 0
    """When it ends, or is due, if nobody does anything; 0: nothing happens by itself."""
    next: str = ""
    """What happens then, or who must act."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStatus:
    """One device as admins see it."""

    name: str
    state: DeviceState
    since_unix_ms: int
    reason: str
    """Why it is in this state, in one phrase."""
    ready: bool
    """Leased, wanted tables applied, SAs with every live peer installed."""
    tier: str
    """AR4SI tier of the last appraisal: none, affirming, warning, contraindicated."""
    lease_s: float
    """Seconds until the lease ends at control; 0 when there is none."""
    generation_wanted: int
    generation_applied: int
    key_epochs: dict[str, int]
    """Tenant -> current epoch of its key."""
    underlay_address: str
    profile: str
    device_id_sha256: str
    boot_counter: int
    version: int
    """Rises with every change; pass it back as the expected version."""
    connected: bool = False
    """Whether its agent has an open stream to control."""
    waiting_for: str = ""
    """What the agent says it still waits for, or that it is late with its next evidence."""
    revision_wanted: str = ""
    """SHA-256 of the tables that it should enforce, hexadecimal."""
    revision_applied: str = ""
    binding_sha256: str = ""
    """Name of the live key binding, hexadecimal; empty without one."""
    tenants: tuple[str, ...] = ()
    appraised_unix_ms: int = 0
    """When control appraised it last; 0: never."""
    packets_by_reason: dict[str, int] = field(default_factory=dict)
    sealed_packets: int = 0
    opened_packets: int = 0
    deadline_unix_ms: int = 0
    """When `next` happens; 0: nothing happens by itself."""
    next: str = ""
    """What becomes of the state if nobody does anything, or who must act."""
    conditions: tuple[Condition, ...] = ()
    """In the order in which a device meets them."""
