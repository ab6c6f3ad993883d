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
    PortName,
    Sha256Hex,
    VersionText,
)
from ztdpu.policy.documents.cluster_network_policy import (
    ClusterEgressRule,
    ClusterIngressRule,
    ClusterNetworkPolicy,
    ClusterNetworkPolicySpec,
    ClusterPeer,
    EndpointsOfTenants,
    Subjects,
)
from ztdpu.policy.documents.device import Device, DeviceSpec, Underlay
from ztdpu.policy.documents.endpoint import Endpoint, EndpointSpec
from ztdpu.policy.documents.network_policy import (
    EgressRule,
    IngressRule,
    NetworkPolicy,
    NetworkPolicySpec,
    PeerSelector,
)
from ztdpu.policy.documents.peering import Peering, PeeringMember, PeeringSpec
from ztdpu.policy.documents.policy_test import PolicyTest, PolicyTestSpec, PortsText, TestFlow, TestGroup, TestPairs
from ztdpu.policy.documents.role_binding import RoleBinding, RoleBindingSpec
from ztdpu.policy.documents.tenant import Tenant, TenantSpec
from ztdpu.policy.documents.traffic import (
    COLLECTIVE,
    COLLECTIVE_PORT,
    AddressRange,
    LabelRequirement,
    NamedPort,
    PortOrName,
    PortRange,
    Selector,
)

KINDS: dict[str, type[Document]] = {
    model.KIND: model
    for model in (
        Device, Tenant, Endpoint, Peering, NetworkPolicy, ClusterNetworkPolicy, PolicyTest, ReferenceValues,
        AppraisalPolicy, RoleBinding,
    )
}  # fmt: skip
"""Kinds that are enforced. A kind that is not here is refused: what cannot be enforced is not ignored."""

__all__ = [
    "API_VERSION",
    "COLLECTIVE",
    "COLLECTIVE_PORT",
    "KINDS",
    "Address",
    "AddressBlock",
    "AddressRange",
    "AppraisalPolicy",
    "AppraisalPolicySpec",
    "ClusterEgressRule",
    "ClusterIngressRule",
    "ClusterNetworkPolicy",
    "ClusterNetworkPolicySpec",
    "ClusterPeer",
    "Device",
    "DeviceSpec",
    "DigestHex",
    "Document",
    "EgressRule",
    "Endpoint",
    "EndpointSpec",
    "EndpointsOfTenants",
    "IngressRule",
    "LabelRequirement",
    "Labels",
    "Metadata",
    "MinimumVersion",
    "Name",
    "NamedPort",
    "NetworkPolicy",
    "NetworkPolicySpec",
    "Part",
    "PeerSelector",
    "Peering",
    "PeeringMember",
    "PeeringSpec",
    "PolicyTest",
    "PolicyTestSpec",
    "Port",
    "PortName",
    "PortOrName",
    "PortRange",
    "PortsText",
    "ReferenceFwid",
    "ReferenceMeasurement",
    "ReferenceValues",
    "ReferenceValuesSpec",
    "RoleBinding",
    "RoleBindingSpec",
    "Selector",
    "Sha256Hex",
    "Subjects",
    "Tenant",
    "TenantSpec",
    "TestFlow",
    "TestGroup",
    "TestPairs",
    "Underlay",
    "VersionText",
]
