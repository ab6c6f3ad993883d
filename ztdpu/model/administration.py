"""What admins see of a running cluster and what their changes answered; spoken by `rpc.client` and control."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ztdpu.errors import Location
from ztdpu.model.attestation import Check, Finding
from ztdpu.model.device import DeviceStatus
from ztdpu.model.policy_source import PolicySource, PolicyTestReport


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAcknowledgement:
    """How one connected peer took a revocation."""

    device: str
    applied: bool
    """False: no answer within the time that the call waits."""
    duration_ms: float
    """From the commit to the peer's answer (or to the end of the wait)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlastRadius:
    """Who loses something when a device goes dark."""

    endpoints: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    """Devices that share a network with it."""
    jobs: tuple[str, ...] = ()
    """Running jobs with a rank on it, `tenant/job`."""
    ranks: int = 0
    """Ranks of these jobs that run on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChange:
    """The answer to revoke, quarantine and restore."""

    device: DeviceStatus
    generation: int
    """0 after a dry run."""
    acknowledged_unix_ns: int
    """CLOCK_REALTIME when the change was durable; 0 after a dry run."""
    peers: tuple[PeerAcknowledgement, ...] = ()
    blast_radius: BlastRadius = field(default_factory=BlastRadius)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinToken:
    """A single-use token; this is the only time it is told."""

    device: str
    token: str = field(repr=False)
    expires_unix_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantStatus:
    """One tenant with its network."""

    name: str
    network_id: str
    """Hexadecimal."""
    network_generation: int
    key_epoch: int
    endpoints: tuple[str, ...]
    devices: tuple[str, ...]
    withheld: tuple[str, ...] = ()
    """Leased devices that may not use the network, and why; a phrase each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointStatus:
    """One endpoint and how its device stands."""

    name: str
    tenant: str
    device: str
    addresses: tuple[str, ...]
    labels: Mapping[str, str]
    device_state: str
    endpoint_id: bytes
    ready: bool = False
    """Whether its device is: leased, policy applied, virtual functions made, keys there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFaultPlace:
    """One fault of a refused policy."""

    message: str
    where: Location


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePolicy:
    """What a device should enforce and what it does enforce."""

    device: str
    revision_wanted: str
    revision_applied: str
    generation_wanted: int
    generation_applied: int
    failed: str = ""
    """Why it does not enforce what is wanted, when that lasts; empty while all is well or on its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStatus:
    """The policy in force."""

    directory: str
    loaded_unix_ms: int
    generation: int
    devices: tuple[DevicePolicy, ...]
    faults: tuple[PolicyFaultPlace, ...] = ()
    """Of the last attempt, when it was refused."""
    source: PolicySource
    tests: PolicyTestReport = field(default_factory=PolicyTestReport)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySync:
    """The answer to `policy sync`, `policy hold` and `policy resume`."""

    status: PolicyStatus
    changed_devices: tuple[str, ...]
    faults: tuple[PolicyFaultPlace, ...] = ()
    """Not empty: nothing was applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantKey:
    """The current epoch key of a tenant's network; never the key itself."""

    tenant: str
    network_id: str
    network_generation: int
    epoch: int
    created_unix_ms: int
    cause: str
    devices_current: tuple[str, ...] = ()
    devices_behind: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRotation:
    """The answer to `key rotate`."""

    generation: int
    devices: tuple[str, ...]
    """Devices that were told."""
    epoch: int
    """New epoch of a tenant; 0 when a device's master key was rotated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One leaf of the audit log."""

    index: int
    leaf: bytes
    """The bytes that were hashed (JSON)."""
    leaf_hash: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestationReport:
    """What control found at the last appraisal of a device."""

    device: str
    state: str
    tier: str
    ear: str
    findings: tuple[Finding, ...]
    appraised_unix_ms: int
    profile: str
    device_id_sha256: str
    evidence: bytes
    checks: tuple[Check, ...] = ()
    """Every measurement and firmware identity, good ones too."""
    policy: str = ""
    """Name of the AppraisalPolicy document."""
    references: str = ""
    """Name of the ReferenceValues document."""
    ear_cwt: bytes = b""
    """`ear` as CWT: the same claims and times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlStatus:
    """How control and the cluster stand."""

    version: str
    trust_domain: str
    generation: int
    started_unix_ms: int
    devices: int
    devices_leased: int
    devices_ready: int
    devices_connected: int
    tenants: int
    endpoints: int
    policy_faults: int
    roster_serial: int
    audit_size: int
    attestation_interval_ms: int
    lease_ms: int
