"""Endpoint: one tenant's virtual function on one device."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from ztdpu.policy.documents.base import Address, Document, Name, Part
from ztdpu.policy.documents.traffic import NamedPort, check_port_names


class EndpointSpec(Part):
    """One tenant's virtual function on one device."""

    tenant: Name
    device: Name
    addresses: Annotated[list[Address], Field(min_length=1, max_length=8)]
    ports: Annotated[list[NamedPort], AfterValidator(check_port_names)] = Field(default_factory=list)
    """Names of ports that policies may write instead of numbers."""


class Endpoint(Document):
    """One tenant's virtual function on one device."""

    KIND = "Endpoint"
    spec: EndpointSpec
