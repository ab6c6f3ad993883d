"""RoleBinding: who may do what."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ztdpu.policy.documents.base import Document, Name, Part


class RoleBindingSpec(Part):
    """Who may do what."""

    spiffe_id: Annotated[str, Field(pattern=r"^spiffe://[a-z0-9._-]+/[A-Za-z0-9._/-]+$", max_length=2048)]
    role: Literal["operator", "auditor", "tenant-admin"]
    tenant: Name | None = None

    @model_validator(mode="after")
    def _tenant_fits(self) -> RoleBindingSpec:
        if (self.role == "tenant-admin") != (self.tenant is not None):
            raise ValueError("role tenant-admin names a tenant, and no other role does")
        return self


class RoleBinding(Document):
    """Gives an identity a role."""

    KIND = "RoleBinding"
    spec: RoleBindingSpec
