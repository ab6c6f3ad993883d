"""What control remembers about a device, its bindings and its tokens: values that the store keeps.

Changed only through `dataclasses.replace` by the rules in `leases`; no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

from ztdpu.model.device import DeviceState


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecord:
    """One device. `version` rises with every change that an admin can see, except renewed leases."""

    name: str
    state: DeviceState
    since_unix_ms: int
    reason: str
    version: int = 1
    tier: str = "none"
    profile: str = ""
    device_id_sha256: bytes = b""
    """Pinned DeviceID; empty before the device has enrolled."""
    boot_counter: int = 0
    """Highest that evidence of the pinned device ever showed, whatever came of it."""
    boot_floor: int = 0
    """Lowest boot that is still accepted; revoke puts it above the present one."""
    allow_rollback: bool = False
    """An operator restored the device with leave to go below the highest versions seen; spent by the next grant."""
    binding_sha256: bytes = b""
    """The live binding; exactly one, or none."""
    lease_boot_id: str = ""
    """The machine boot in which the deadline below counts."""
    lease_deadline_ns: int = 0
    """CLOCK_BOOTTIME of the machine that runs control; 0 without a lease."""
    appraised_unix_ms: int = 0
    ear: str = ""
    svid_expires_unix_s: int = 0
    worker_instance: bytes = b""
    """Of the last worker that said hello; peers address it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBinding:
    """A KeyBinding that was accepted once. Retired ones stay, so that they never return."""

    binding_sha256: bytes
    device: str
    envelope: bytes
    chain: tuple[bytes, ...]
    """DER, root first, as the device sent it."""
    alias_spki_sha256: bytes
    boot_counter: int
    boot_nonce: bytes
    sequence: int
    tls_spki: bytes
    """DER."""
    tls_spki_sha256: bytes
    offer_spki: bytes
    """DER."""
    offer_spki_sha256: bytes
    ttl_s: int
    expires_unix_s: int
    live: bool = True
    denied: bool = False
    """Its keys were the device's when it was revoked: never again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvidence:
    """Evidence of the last appraisal of a device, to appraise again when references change."""

    device: str
    profile: str
    nonce: bytes
    evidence: bytes
    findings: str
    """JSON: findings, the table and what the appraisal went by (`appraisal.outcome`)."""
    appraised_unix_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinTokenRecord:
    """A token by its hash; the token itself is told once and kept nowhere."""

    token_sha256: bytes
    device: str
    expires_unix_ms: int
    used_unix_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job of a tenant in its newest epoch; the token by its hash."""

    tenant: str
    name: str
    epoch: int
    world_size: int
    token_sha256: bytes
    created_unix_ms: int
    token_expires_unix_ms: int
    ended_unix_ms: int = 0
    """0 until it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRankRecord:
    """Who took a rank of a job's newest epoch."""

    tenant: str
    job: str
    rank: int
    endpoint: str
    device: str
    joined_unix_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One leaf as stored."""

    index: int
    leaf: bytes
    leaf_hash: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredRequest:
    """An answer that was given to a request id; the same request gets it again."""

    request_id: str
    actor: str
    method: str
    request_sha256: bytes
    answer: bytes
