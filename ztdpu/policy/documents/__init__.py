"""The kinds of policy documents, one pydantic model each (`apiVersion: ztdpu.dev/v1`), a file per noun.

Values only: that names exist and do not contradict each other is `policy.cluster`'s business. Unknown
fields are refused everywhere. Field names are written in camelCase in files, as in Kubernetes.
"""

from __future__ import annotations

from ztdpu.policy.documents.attestation import (
    AppraisalPolicy,
    AppraisalPolicySpec,
    MinimumVersion,
    ReferenceFwid,
    ReferenceMeasurement,
    ReferenceValues,
    ReferenceValuesSpec,
)
from ztdpu.policy.documents.base import (
    API_VERSION,
    Address,
    AddressBlock,
    DigestHex,
    Document,
    Labels,
    Metadata,
    Name,
    Part,
    Port,
    Sha256Hex,
    VersionText,
)
from ztdpu.policy.documents.device import (
    Device,
    DeviceSpec,
    Underlay,
)
from ztdpu.policy.documents.endpoint import (
    Endpoint,
    EndpointSpec,
)
from ztdpu.policy.documents.network_policy import (
    AddressRange,
    EgressRule,
    IngressRule,
    LabelRequirement,
    NetworkPolicy,
    NetworkPolicySpec,
    PeerSelector,
    PortRange,
    Selector,
)
from ztdpu.policy.documents.role_binding import (
    RoleBinding,
    RoleBindingSpec,
)
from ztdpu.policy.documents.tenant import (
    Tenant,
    TenantSpec,
)

KINDS: dict[str, type[Document]] = {
    model.KIND: model
    for model in (Device, Tenant, Endpoint, NetworkPolicy, ReferenceValues, AppraisalPolicy, RoleBinding)
}
"""Kinds that are enforced. A kind that is not here is refused: what cannot be enforced is not ignored."""

__all__ = [
    "API_VERSION",
    "KINDS",
    "Address",
    "AddressBlock",
    "AddressRange",
    "AppraisalPolicy",
    "AppraisalPolicySpec",
    "Device",
    "DeviceSpec",
    "DigestHex",
    "Document",
    "EgressRule",
    "Endpoint",
    "EndpointSpec",
    "IngressRule",
    "LabelRequirement",
    "Labels",
    "Metadata",
    "MinimumVersion",
    "Name",
    "NetworkPolicy",
    "NetworkPolicySpec",
    "Part",
    "PeerSelector",
    "Port",
    "PortRange",
    "ReferenceFwid",
    "ReferenceMeasurement",
    "ReferenceValues",
    "ReferenceValuesSpec",
    "RoleBinding",
    "RoleBindingSpec",
    "Selector",
    "Sha256Hex",
    "Tenant",
    "TenantSpec",
    "Underlay",
    "VersionText",
]
