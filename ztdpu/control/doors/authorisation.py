"""Who may call what: one table, role x RPC x scope. An RPC that is not in it is refused, and fails a test.

The interceptor of each server asks `authorise` before any servicer runs. Scope is then the servicer's to apply
with the methods of `Access`; `ALL` needs nothing, `TENANT` and `DEVICE` see and touch their own only.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ztdpu.errors import NotFoundError, PermissionDeniedError


class Role(StrEnum):
    """Roles that a caller can have; exactly one per call."""

    ANYONE = "anyone"
    """Enrolment port: no identity yet."""
    OPERATOR = "operator"
    AUDITOR = "auditor"
    TENANT_ADMIN = "tenant-admin"
    AGENT = "agent"
    JOB = "job"


class Scope(StrEnum):
    """On what."""

    ALL = "all"
    TENANT = "tenant"
    """The caller's own tenant."""
    DEVICE = "device"
    """The caller's own device."""


_ADMINS: Final[Mapping[Role, Scope]] = {Role.OPERATOR: Scope.ALL}
_READERS: Final[Mapping[Role, Scope]] = {Role.OPERATOR: Scope.ALL, Role.AUDITOR: Scope.ALL}
_TENANTS: Final[Mapping[Role, Scope]] = {**_READERS, Role.TENANT_ADMIN: Scope.TENANT}
_EVERYBODY: Final[Mapping[Role, Scope]] = {role: Scope.ALL for role in Role if role is not Role.ANYONE}

TABLE: Final[Mapping[str, Mapping[Role, Scope]]] = {
    "/ztdpu.v1.AttestationService/Attest": {Role.ANYONE: Scope.ALL},
    "/ztdpu.v1.AttestationService/GetAttestation": _READERS,
    "/ztdpu.v1.AttestationService/ExportAttestation": _READERS,
    "/ztdpu.v1.AgentService/Connect": {Role.AGENT: Scope.DEVICE},
    "/ztdpu.v1.DeviceService/ListDevices": _TENANTS,
    "/ztdpu.v1.DeviceService/GetDevice": _TENANTS,
    "/ztdpu.v1.DeviceService/CreateJoinToken": _ADMINS,
    "/ztdpu.v1.DeviceService/RevokeDevice": _ADMINS,
    "/ztdpu.v1.DeviceService/QuarantineDevice": _ADMINS,
    "/ztdpu.v1.DeviceService/RestoreDevice": _ADMINS,
    "/ztdpu.v1.TenantService/ListTenants": _TENANTS,
    "/ztdpu.v1.TenantService/GetTenant": _TENANTS,
    "/ztdpu.v1.EndpointService/ListEndpoints": _TENANTS,
    "/ztdpu.v1.EndpointService/GetEndpoint": _TENANTS,
    "/ztdpu.v1.PolicyService/SyncPolicy": _ADMINS,
    "/ztdpu.v1.PolicyService/HoldPolicy": _ADMINS,
    "/ztdpu.v1.PolicyService/ResumePolicy": _ADMINS,
    "/ztdpu.v1.PolicyService/GetPolicyStatus": _READERS,
    "/ztdpu.v1.KeyService/ListKeys": _TENANTS,
    "/ztdpu.v1.KeyService/RotateKeys": {Role.OPERATOR: Scope.ALL, Role.TENANT_ADMIN: Scope.TENANT},
    "/ztdpu.v1.JobService/CreateJobToken": {Role.OPERATOR: Scope.ALL, Role.TENANT_ADMIN: Scope.TENANT},
    "/ztdpu.v1.JobService/ListJobs": _TENANTS,
    "/ztdpu.v1.JobService/GetJob": _TENANTS,
    "/ztdpu.v1.JobService/EndJob": {Role.OPERATOR: Scope.ALL, Role.TENANT_ADMIN: Scope.TENANT},
    "/ztdpu.v1.AuditService/ListAudit": _READERS,
    "/ztdpu.v1.AuditService/GetAudit": _READERS,
    "/ztdpu.v1.ControlService/GetStatus": _READERS,
    "/ztdpu.v1.IdentityService/ListIdentities": _READERS,
    "/ztdpu.v1.IdentityService/GetBundle": _EVERYBODY,
    "/ztdpu.v1.IdentityService/RotateAuthority": _ADMINS,
    "/grpc.health.v1.Health/Check": _EVERYBODY,
    "/grpc.health.v1.Health/List": _EVERYBODY,
    "/grpc.health.v1.Health/Watch": _EVERYBODY,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _READERS,
}
"""Full method name -> role -> scope."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who is calling, as the transport proved it."""

    role: Role
    name: str
    """For the audit log: a SPIFFE ID, `operator:admin-socket`, or `unidentified`."""
    device: str = ""
    """Role agent: the device."""
    tenants: frozenset[str] = frozenset()
    """Role tenant-admin: the tenants."""
    tls_spki_sha256: bytes = b""
    """SHA-256 of the client certificate's key; empty without one."""
    certificate_expires_unix_s: int = 0
    certificate_serial: str = ""
    """Of the client certificate, hexadecimal."""
    authority: str = ""
    """Name of the authority that signed the client certificate."""
    is_local: bool = False
    """On the admin socket: errors come with message and remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """A call that was let in, and how far it reaches."""

    caller: Caller
    scope: Scope = field(default=Scope.ALL)

    def sees_tenant(self, tenant: str) -> bool:
        """Whether things of this tenant are in reach."""
        return self.scope is Scope.ALL or (self.scope is Scope.TENANT and tenant in self.caller.tenants)

    def require_tenant(self, tenant: str, what: str) -> None:
        """NotFoundError out of reach: that something exists is nobody else's business."""
        if not self.sees_tenant(tenant):
            raise NotFoundError(f"no {what}")

    def sees_device(self, device: str, tenants: tuple[str, ...]) -> bool:
        """Whether a device is in reach: all, one's own, or one that hosts an own tenant."""
        if self.scope is Scope.DEVICE:
            return device == self.caller.device
        return self.scope is Scope.ALL or bool(self.caller.tenants & set(tenants))


ACCESS: Final[ContextVar[Access]] = ContextVar("access")
"""Set by the interceptor for the call that runs; servicers read it."""


def authorise(caller: Caller, method: str) -> Access:
    """Let a call in.

    Raises:
        PermissionDeniedError: the table does not say that this role may.

    """
    scope = TABLE.get(method, {}).get(caller.role)
    if scope is None:
        raise PermissionDeniedError(
            f"role {caller.role} may not call {method.rpartition('/')[2]}", remedy="ask an operator"
        )
    return Access(caller=caller, scope=scope)
