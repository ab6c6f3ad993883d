"""Tenant: an owner of endpoints."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ztdpu.keys.lease import LEASE_S_MAX, LEASE_S_MIN
from ztdpu.policy.documents.base import Document, Name, Part
from ztdpu.policy.documents.traffic import NamedPort, check_port_names


class TenantSpec(Part):
    """What a tenant may use."""

    suite: Literal["AES-GCM-128", "AES-GCM-256"] = "AES-GCM-256"
    flow_quota: Annotated[int, Field(ge=16, le=1_000_000)] = 65_536
    """Most live flows on one device."""
    lease_s: Annotated[int, Field(ge=LEASE_S_MIN, le=LEASE_S_MAX)] | None = None
    """The tenant's own bound on revocation while cut off; control's default when absent."""
    appraisal_policy: Name | None = None
    peerings: list[Name] = Field(default_factory=list)
    """Peerings that the tenant agrees to; one that only the other side names is refused."""
    ports: Annotated[list[NamedPort], AfterValidator(check_port_names)] = Field(default_factory=list)
    """Names of ports, for all its endpoints; an Endpoint's own come first."""


class Tenant(Document):
    """An owner of endpoints."""

    KIND = "Tenant"
    spec: TenantSpec = Field(default_factory=TenantSpec)
