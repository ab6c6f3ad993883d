"""What an agent is told about the workloads of its device: values, made by `workloads`, sent by the hub."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipView:
    """One identity that an endpoint of the device has."""

    endpoint: str
    tenant: str
    job: str = ""
    """Empty: the endpoint itself."""
    rank: int = 0
    world_size: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadsPush:
    """All identities of a device and what verifies them; replaces the one before it."""

    trust_domain: str
    authorities: tuple[bytes, ...]
    """DER."""
    jwt_bundle: bytes
    memberships: tuple[MembershipView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadAnswerPush:
    """The answer to one request of an agent."""

    number: int
    refusal: str = ""
    """Code word; empty when it was granted."""
    spiffe_id: str = ""
    x509_svid: tuple[bytes, ...] = ()
    jwt_svid: str = ""
    expires_unix_s: int = 0
