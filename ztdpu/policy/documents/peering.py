"""Peering: a network of its own between some endpoints of two tenants."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ztdpu.policy.documents.base import Document, Name, Part
from ztdpu.policy.documents.traffic import Selector


class PeeringMember(Part):
    """One side."""

    tenant: Name
    endpoint_selector: Selector
    """Which of its endpoints the other side may see; `{}` is all of them."""


class PeeringSpec(Part):
    """Who can be reached. What may flow is still said by policies of both tenants."""

    suite: Literal["AES-GCM-128", "AES-GCM-256"] = "AES-GCM-256"
    members: Annotated[list[PeeringMember], Field(min_length=2, max_length=2)]

    @model_validator(mode="after")
    def _two_tenants(self) -> PeeringSpec:
        if self.members[0].tenant == self.members[1].tenant:
            raise ValueError("two different tenants are wanted")
        return self


class Peering(Document):
    """A network between two tenants. Both name it in `spec.peerings`, and a signed roster lists it."""

    KIND = "Peering"
    spec: PeeringSpec
