"""Endpoint: one tenant's virtual function on one device."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ztdpu.policy.documents.base import Address, Document, Name, Part


class EndpointSpec(Part):
    """One tenant's virtual function on one device."""

    tenant: Name
    device: Name
    addresses: Annotated[list[Address], Field(min_length=1, max_length=8)]


class Endpoint(Document):
    """One tenant's virtual function on one device."""

    KIND = "Endpoint"
    spec: EndpointSpec
