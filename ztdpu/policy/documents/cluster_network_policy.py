"""ClusterNetworkPolicy: what the operator says above (Admin) and below (Baseline) the tenants' own policies.

Semantics of the Kubernetes network-policy-api v1alpha2, with tenants for namespaces and endpoints for pods.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from ztdpu.policy.documents.base import AddressBlock, Document, Part, check_printable
from ztdpu.policy.documents.network_policy import Mode
from ztdpu.policy.documents.traffic import PortRange, Selector

Tier = Literal["Admin", "Baseline"]
Action = Literal["Accept", "Deny", "Pass"]
Ports = Annotated[list[PortRange], Field(min_length=1)]


class EndpointsOfTenants(Part):
    """Endpoints by the labels of their tenant and their own; both must hold."""

    tenant_selector: Selector
    endpoint_selector: Selector


class Subjects(Part):
    """All endpoints of some tenants, or some endpoints of some tenants."""

    tenants: Selector | None = None
    """Labels of Tenant documents; `ztdpu.dev/name` is a tenant's name."""
    endpoints: EndpointsOfTenants | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Subjects:
        if (self.tenants is None) == (self.endpoints is None):
            raise ValueError("exactly one of tenants and endpoints is wanted")
        return self


class ClusterPeer(Part):
    """Whom an egress rule is about. Only whom the subject can reach counts: its own network and its Peerings."""

    tenants: Selector | None = None
    """Labels of Tenant documents; `ztdpu.dev/name` is a tenant's name."""
    endpoints: EndpointsOfTenants | None = None
    networks: Annotated[list[AddressBlock], Field(min_length=1)] | None = None
    """Address blocks; partners in Peerings are in them too."""

    @model_validator(mode="after")
    def _exactly_one(self) -> ClusterPeer:
        if sum(one is not None for one in (self.tenants, self.endpoints, self.networks)) != 1:
            raise ValueError("exactly one of tenants, endpoints and networks is wanted")
        return self


class ClusterIngressRule(Part):
    """What happens to flows that come in; the first rule that matches decides for its tier."""

    name: Annotated[str, Field(max_length=100), AfterValidator(check_printable)] = ""
    """For people."""
    action: Action
    from_: Annotated[list[Subjects], Field(min_length=1)] = Field(alias="from")
    ports: Ports | None = None


class ClusterEgressRule(Part):
    """What happens to flows that go out; the first rule that matches decides for its tier."""

    name: Annotated[str, Field(max_length=100), AfterValidator(check_printable)] = ""
    """For people."""
    action: Action
    to: Annotated[list[ClusterPeer], Field(min_length=1)]
    ports: Ports | None = None


class ClusterNetworkPolicySpec(Part):
    """Admin before the tenants' policies, Baseline where they say nothing."""

    tier: Tier
    priority: Annotated[int, Field(ge=0, le=1000)]
    """Lower is asked first. No two policies of a tier share one: which of them decides must not be chance."""
    subject: Subjects
    mode: Mode = "enforce"
    """`audit`: nothing is opened or closed by it; what it would change is counted as `audit_would_...`."""
    ingress: list[ClusterIngressRule] = Field(default_factory=list)
    egress: list[ClusterEgressRule] = Field(default_factory=list)


class ClusterNetworkPolicy(Document):
    """Semantics of the Kubernetes ClusterNetworkPolicy: Admin, then NetworkPolicy, then Baseline, then deny."""

    KIND = "ClusterNetworkPolicy"
    spec: ClusterNetworkPolicySpec
