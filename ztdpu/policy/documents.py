"""The kinds of policy documents, one pydantic model each (`apiVersion: ztdpu.dev/v1`).

Values only: that names exist and do not contradict each other is `policy.cluster`'s business. Unknown
fields are refused everywhere. Field names are written in camelCase in files, as in Kubernetes.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from ztdpu.keys.lease import LEASE_S_MAX, LEASE_S_MIN
from ztdpu.trust.reference import parse_version

API_VERSION = "ztdpu.dev/v1"

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LABEL_KEY = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")


def _check_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError("a name has lower-case letters, digits and '-', at most 63 of them, no '-' at either end")
    return value


def _check_hex_32(value: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", value):
        raise ValueError("64 lower-case hexadecimal digits (SHA-256) are wanted")
    return value


def _check_digest(value: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}|[0-9a-f]{96}|[0-9a-f]{128}", value):
        raise ValueError("64, 96 or 128 lower-case hexadecimal digits are wanted")
    return value


def _check_version(value: str) -> str:
    parse_version(value)
    return value


def _check_labels(value: dict[str, str]) -> dict[str, str]:
    for key, word in value.items():
        if not _LABEL_KEY.fullmatch(key):
            raise ValueError(f"{key!r} is not a label key")
        if not _LABEL_VALUE.fullmatch(word):
            raise ValueError(f"{word!r} is not a label value")
    return value


def _read_address(value: Any) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    if not isinstance(value, str):
        raise ValueError("an address is wanted, as text")  # noqa: TRY004 (pydantic wants ValueError)
    address = ipaddress.ip_address(value)
    if address.is_multicast or address.is_unspecified or address.is_loopback or address.is_link_local:
        raise ValueError(f"{value} is not a usable host address")
    if isinstance(address, ipaddress.IPv6Address) and (address.scope_id or address.ipv4_mapped):
        raise ValueError(f"{value} is not a plain IPv6 address")
    return address


def _read_network(value: Any) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    if not isinstance(value, str):
        raise ValueError("a block such as 10.1.0.0/16 is wanted, as text")  # noqa: TRY004
    return ipaddress.ip_network(value, strict=True)


Name = Annotated[str, AfterValidator(_check_name)]
Sha256Hex = Annotated[str, AfterValidator(_check_hex_32)]
DigestHex = Annotated[str, AfterValidator(_check_digest)]
VersionText = Annotated[str, AfterValidator(_check_version)]
Labels = Annotated[dict[str, str], AfterValidator(_check_labels)]
Address = Annotated[Any, BeforeValidator(_read_address)]
AddressBlock = Annotated[Any, BeforeValidator(_read_network)]
Port = Annotated[int, Field(ge=1, le=65535)]


class Part(BaseModel):
    """Base of everything inside a document: strict, frozen, unknown fields refused, camelCase in files."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, alias_generator=to_camel, populate_by_name=False
    )


class Metadata(Part):
    """Name and labels."""

    name: Name
    labels: Labels = Field(default_factory=dict)


class Document(Part):
    """Base of all kinds."""

    KIND: ClassVar[str]

    api_version: Literal["ztdpu.dev/v1"]
    kind: str
    metadata: Metadata

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self.metadata.name


# --- devices, tenants, endpoints --------------------------------------------------------------


class Underlay(Part):
    """Where a device stands on the network between devices."""

    address: Address


class DeviceSpec(Part):
    """A DPU."""

    profile: Name
    underlay: Underlay
    device_id_sha256: Sha256Hex | None = Field(default=None, alias="deviceIdSha256")
    """Pins the DeviceID key; without it the device enrols once with a join token."""


class Device(Document):
    """One DPU."""

    KIND = "Device"
    spec: DeviceSpec


class TenantSpec(Part):
    """What a tenant may use."""

    suite: Literal["AES-GCM-128", "AES-GCM-256"] = "AES-GCM-256"
    flow_quota: Annotated[int, Field(ge=16, le=1_000_000)] = 65_536
    """Most live flows on one device."""
    lease_s: Annotated[int, Field(ge=LEASE_S_MIN, le=LEASE_S_MAX)] | None = None
    """The tenant's own bound on revocation while cut off; control's default when absent."""
    appraisal_policy: Name | None = None


class Tenant(Document):
    """An owner of endpoints."""

    KIND = "Tenant"
    spec: TenantSpec = Field(default_factory=TenantSpec)


class EndpointSpec(Part):
    """One tenant's virtual function on one device."""

    tenant: Name
    device: Name
    addresses: Annotated[list[Address], Field(min_length=1, max_length=8)]


class Endpoint(Document):
    """One tenant's virtual function on one device."""

    KIND = "Endpoint"
    spec: EndpointSpec


# --- network policy ---------------------------------------------------------------------------


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


# --- attestation ------------------------------------------------------------------------------


class ReferenceMeasurement(Part):
    """What one measurement index may show."""

    index: Annotated[int, Field(ge=1, le=254)]
    component: Name
    digests: Annotated[list[DigestHex], Field(min_length=1, max_length=64)]
    vulnerable_digests: Annotated[list[DigestHex], Field(max_length=64)] = Field(default_factory=list)
    """Good once, with known vulnerabilities since: the warning tier."""


class ReferenceFwid(Part):
    """What one firmware identifier of the certificate chain may be."""

    level: Annotated[int, Field(ge=0, le=15)]
    component: Name
    digests: Annotated[list[DigestHex], Field(min_length=1, max_length=64)]
    vulnerable_digests: Annotated[list[DigestHex], Field(max_length=64)] = Field(default_factory=list)
    """Good once, with known vulnerabilities since: the warning tier."""


class MinimumVersion(Part):
    """The oldest version of a component that is still good."""

    component: Name
    version: VersionText


class ReferenceValuesSpec(Part):
    """Known good values for one profile."""

    profile: Name
    measurements: list[ReferenceMeasurement] = Field(default_factory=list)
    fwids: list[ReferenceFwid] = Field(default_factory=list)
    minimum_versions: list[MinimumVersion] = Field(default_factory=list)


class ReferenceValues(Document):
    """Known good values for one profile, from whoever built the firmware."""

    KIND = "ReferenceValues"
    spec: ReferenceValuesSpec


class AppraisalPolicySpec(Part):
    """What is asked of evidence beyond the reference values."""

    allow_debug: bool = False
    allowed_tiers: Annotated[list[Literal["affirming", "warning"]], Field(min_length=1)] = ["affirming"]
    maximum_evidence_age_s: Annotated[int, Field(ge=2, le=3600)] = 60


class AppraisalPolicy(Document):
    """Appraisal policy for evidence (RFC 9334)."""

    KIND = "AppraisalPolicy"
    spec: AppraisalPolicySpec


# --- people -----------------------------------------------------------------------------------


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


KINDS: dict[str, type[Document]] = {
    model.KIND: model
    for model in (Device, Tenant, Endpoint, NetworkPolicy, ReferenceValues, AppraisalPolicy, RoleBinding)
}
"""Kinds that are enforced. A kind that is not here is refused: what cannot be enforced is not ignored."""
