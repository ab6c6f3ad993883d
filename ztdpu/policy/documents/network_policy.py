"""NetworkPolicy: who may talk to whom inside one tenant's network, and with the partners of its Peerings."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import Field, model_validator

from ztdpu.policy.documents.base import Document, Name, Part
from ztdpu.policy.documents.traffic import AddressRange, PortRange, Selector

Mode = Literal["enforce", "audit"]
PolicyType = Literal["Ingress", "Egress"]


_Item = TypeVar("_Item")


NotEmpty = Annotated[list[_Item], Field(min_length=1)]
"""To Kubernetes an empty list is everything, to most readers nothing: it is refused."""


class PeerSelector(Part):
    """Whom a rule is about: endpoints by label (of the same tenant, or of the other side of a Peering), or a block."""

    endpoint_selector: Selector | None = None
    ip_block: AddressRange | None = None
    peering: Name | None = None
    """The other tenant's members of this Peering. Without it a rule never reaches past the tenant's own network."""

    @model_validator(mode="after")
    def _one_kind(self) -> PeerSelector:
        if self.peering is not None:
            if self.ip_block is not None:
                raise ValueError("peering goes with endpointSelector or alone; ipBlock is about the own network")
        elif (self.endpoint_selector is None) == (self.ip_block is None):
            raise ValueError("exactly one of endpointSelector and ipBlock is wanted, or peering")
        return self


class IngressRule(Part):
    """What may come in; without `from` from anywhere in the network, without `ports` on all of them."""

    from_: NotEmpty[PeerSelector] | None = Field(default=None, alias="from")
    ports: NotEmpty[PortRange] | None = None


class EgressRule(Part):
    """What may go out; without `to` to anywhere in the network, without `ports` on all of them."""

    to: NotEmpty[PeerSelector] | None = None
    ports: NotEmpty[PortRange] | None = None


class NetworkPolicySpec(Part):
    """Allow only, default deny, in both directions."""

    tenant: Name
    endpoint_selector: Selector
    policy_types: Annotated[list[PolicyType], Field(min_length=1, max_length=2)] | None = None
    """Directions in which the policy has the last word over what it selects: there the Baseline tier is not asked any
    more. Without it `Ingress`, and `Egress` when there are egress rules, as in Kubernetes."""
    mode: Mode = "enforce"
    """`audit`: nothing is opened or closed by it; what it would change is counted as `audit_would_...`."""
    ingress: list[IngressRule] = Field(default_factory=list)
    egress: list[EgressRule] = Field(default_factory=list)

    @model_validator(mode="after")
    def _types_fit(self) -> NetworkPolicySpec:
        for word, rules in (("Ingress", self.ingress), ("Egress", self.egress)):
            if rules and self.policy_types is not None and word not in self.policy_types:
                raise ValueError(f"{word.lower()} rules without {word} in policyTypes would never be asked")
        return self

    @property
    def decides(self) -> frozenset[str]:
        """`ingress`, `egress`: directions in which it has the last word."""
        types = self.policy_types or (["Ingress", "Egress"] if self.egress else ["Ingress"])
        return frozenset(word.lower() for word in types)


class NetworkPolicy(Document):
    """Semantics of the Kubernetes NetworkPolicy, inside one tenant's network and its Peerings."""

    KIND = "NetworkPolicy"
    spec: NetworkPolicySpec
