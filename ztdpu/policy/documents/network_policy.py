"""NetworkPolicy: who may talk to whom inside one tenant's network; and the parts that its relatives share."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from ztdpu.policy.documents.base import AddressBlock, Document, Labels, Name, Part, Port


class LabelRequirement(Part):
    """One row of `matchExpressions`."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _values_fit(self) -> LabelRequirement:
        if (self.operator in ("In", "NotIn")) != bool(self.values):
            raise ValueError(f"operator {self.operator} {'wants' if not self.values else 'takes no'} values")
        return self


class Selector(Part):
    """Labels to match; an empty one matches every endpoint of the tenant."""

    match_labels: Labels = Field(default_factory=dict)
    match_expressions: list[LabelRequirement] = Field(default_factory=list)


class AddressRange(Part):
    """A block of overlay addresses, with holes."""

    cidr: AddressBlock
    except_: list[AddressBlock] = Field(default_factory=list, alias="except")

    @model_validator(mode="after")
    def _holes_inside(self) -> AddressRange:
        for hole in self.except_:
            if hole.version != self.cidr.version or not hole.subnet_of(self.cidr):
                raise ValueError(f"except {hole} does not lie inside {self.cidr}")
        return self


class PeerSelector(Part):
    """Whom a rule is about: endpoints of the same tenant by label, or a block of addresses."""

    endpoint_selector: Selector | None = None
    ip_block: AddressRange | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> PeerSelector:
        if (self.endpoint_selector is None) == (self.ip_block is None):
            raise ValueError("exactly one of endpointSelector and ipBlock is wanted")
        return self


class PortRange(Part):
    """Protocol and destination ports; ICMP stands for both versions of it and takes no port."""

    protocol: Literal["TCP", "UDP", "ICMP"] = "TCP"
    port: Port | None = None
    end_port: Port | None = None

    @model_validator(mode="after")
    def _range_fits(self) -> PortRange:
        if self.protocol == "ICMP" and self.port is not None:
            raise ValueError("ICMP has no ports")
        if self.end_port is not None and (self.port is None or self.end_port < self.port):
            raise ValueError("endPort wants a port that is not larger than it")
        return self


class IngressRule(Part):
    """What may come in; without `from` from anywhere in the network, without `ports` on all of them."""

    from_: list[PeerSelector] | None = Field(default=None, alias="from")
    ports: list[PortRange] | None = None


class EgressRule(Part):
    """What may go out; without `to` to anywhere in the network, without `ports` on all of them."""

    to: list[PeerSelector] | None = None
    ports: list[PortRange] | None = None


class NetworkPolicySpec(Part):
    """Allow only, default deny, in both directions."""

    tenant: Name
    endpoint_selector: Selector
    ingress: list[IngressRule] = Field(default_factory=list)
    egress: list[EgressRule] = Field(default_factory=list)


class NetworkPolicy(Document):
    """Semantics of the Kubernetes NetworkPolicy, inside one tenant's network."""

    KIND = "NetworkPolicy"
    spec: NetworkPolicySpec
