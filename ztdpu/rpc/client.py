"""ControlClient: what the command line and the lab use. Speaks gRPC, gives and takes model objects only.

Every method raises a ZtdpuError: UnreachableError when control does not answer, else what control said.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import grpc

from ztdpu.errors import UsageError
from ztdpu.model.administration import (
    AttestationReport,
    AuditEntry,
    ControlStatus,
    DeviceChange,
    EndpointStatus,
    JoinToken,
    KeyRotation,
    PolicyStatus,
    PolicySync,
    TenantKey,
    TenantStatus,
)
from ztdpu.model.device import DeviceStatus
from ztdpu.model.identity import AuthorityRotation, Identities, TrustBundle
from ztdpu.model.job import JobStatus, JobToken
from ztdpu.rpc.channel import TlsFiles, open_channel
from ztdpu.rpc.convert import attestation, audit, control, device, identity, job, key, policy, tenant
from ztdpu.rpc.interceptors import error_from
from ztdpu.rpc.places import ADMIN_SOCKET_OF_LAB, LAB_STATE
from ztdpu.v1 import (
    attestation_pb2,
    attestation_pb2_grpc,
    audit_pb2,
    audit_pb2_grpc,
    control_pb2,
    control_pb2_grpc,
    device_pb2,
    device_pb2_grpc,
    endpoint_pb2,
    endpoint_pb2_grpc,
    identity_pb2,
    identity_pb2_grpc,
    job_pb2,
    job_pb2_grpc,
    key_pb2,
    key_pb2_grpc,
    policy_pb2,
    policy_pb2_grpc,
    tenant_pb2,
    tenant_pb2_grpc,
)

CALL_LIMIT_S: Final = 15.0
READ_LIMIT_S: Final = 5.0
"""Calls that only read answer in milliseconds, or not at all."""
SLOW_S: Final = 1.0

Answer = TypeVar("Answer")


def default_server() -> str:
    """ZTDPU_SERVER, or the admin socket of the lab in ZTDPU_STATE, or that of the lab in its usual directory."""
    return os.environ.get("ZTDPU_SERVER") or str(
        Path(os.environ.get("ZTDPU_STATE") or LAB_STATE).absolute() / ADMIN_SOCKET_OF_LAB
    )


def _tls_from_environment() -> TlsFiles | None:
    folder, domain = os.environ.get("ZTDPU_TLS_DIR"), os.environ.get("ZTDPU_TRUST_DOMAIN")
    if not folder or not domain:
        return None
    base = Path(folder)
    return TlsFiles(
        trust_domain=domain, bundle=base / "bundle.pem", certificate=base / "svid.pem", key=base / "svid.key"
    )


class ControlClient:
    """One connection to control; close it, or use it in a `with`."""

    def __init__(self, channel: grpc.Channel, server: str, *, call_limit_s: float = CALL_LIMIT_S) -> None:
        self._channel = channel
        self._server = server
        self._limit_s = call_limit_s
        self.on_slow: Callable[[], None] | None = None
        """Called, in a thread of its own, when an answer takes longer than SLOW_S."""
        self._devices = device_pb2_grpc.DeviceServiceStub(channel)
        self._tenants = tenant_pb2_grpc.TenantServiceStub(channel)
        self._endpoints = endpoint_pb2_grpc.EndpointServiceStub(channel)
        self._policy = policy_pb2_grpc.PolicyServiceStub(channel)
        self._jobs = job_pb2_grpc.JobServiceStub(channel)
        self._keys = key_pb2_grpc.KeyServiceStub(channel)
        self._audit = audit_pb2_grpc.AuditServiceStub(channel)
        self._identity = identity_pb2_grpc.IdentityServiceStub(channel)
        self._control = control_pb2_grpc.ControlServiceStub(channel)
        self._attestation = attestation_pb2_grpc.AttestationServiceStub(channel)

    @classmethod
    def connect(cls, server: str | None = None, *, tls: TlsFiles | None = None) -> Self:
        """Open a channel to `server` (default: `default_server`); it connects at the first call."""
        target = server or default_server()
        return cls(open_channel(target, tls=tls or _tls_from_environment()), target)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _call(
        self,
        method: Callable[..., Any],
        request: Any,
        convert: Callable[[Any], Answer],
        *,
        limit_s: float | None = None,
    ) -> Answer:
        timer = threading.Timer(SLOW_S, self.on_slow) if self.on_slow is not None else None
        if timer is not None:
            timer.daemon = True
            timer.start()
        try:
            return convert(method(request, timeout=limit_s or self._limit_s))
        except grpc.RpcError as failure:
            raise error_from(failure, self._server) from failure
        finally:
            if timer is not None:
                timer.cancel()

    def _read(self, method: Callable[..., Any], request: Any, convert: Callable[[Any], Answer]) -> Answer:
        return self._call(method, request, convert, limit_s=min(READ_LIMIT_S, self._limit_s))

    # --- devices ---

    def list_devices(self) -> list[DeviceStatus]:
        """All devices of the policy in force, by name."""
        return self._read(
            self._devices.ListDevices,
            device_pb2.ListDevicesRequest(),
            lambda answer: [device.device_from_message(one) for one in answer.devices],
        )

    def get_device(self, name: str) -> DeviceStatus:
        """One device. Raises NotFoundError."""
        return self._read(self._devices.GetDevice, device_pb2.GetDeviceRequest(name=name), device.device_from_message)

    def create_join_token(self, name: str, *, ttl_s: int = 0, reason: str = "enrolment") -> JoinToken:
        """A single-use token for a device whose DeviceID is not pinned."""
        request = device_pb2.CreateJoinTokenRequest(name=name, ttl_s=ttl_s, reason=reason)
        return self._call(self._devices.CreateJoinToken, request, device.token_from_message)

    def revoke_device(
        self,
        name: str,
        *,
        reason: str,
        expected_version: int | None = None,
        request_id: str | None = None,
        dry_run: bool = False,
    ) -> DeviceChange:
        """Revoke: durable, then pushed; answers when connected peers applied it or after 1 s."""
        request = _change(name, reason, expected_version, request_id, dry_run=dry_run)
        return self._call(self._devices.RevokeDevice, request, device.change_from_message)

    def quarantine_device(
        self,
        name: str,
        *,
        reason: str,
        expected_version: int | None = None,
        request_id: str | None = None,
        dry_run: bool = False,
    ) -> DeviceChange:
        """Quarantine: no lease, still manageable."""
        request = _change(name, reason, expected_version, request_id, dry_run=dry_run)
        return self._call(self._devices.QuarantineDevice, request, device.change_from_message)

    def restore_device(
        self,
        name: str,
        *,
        reason: str,
        expected_version: int | None = None,
        request_id: str | None = None,
        dry_run: bool = False,
        allow_rollback: bool = False,
    ) -> DeviceChange:
        """Back to pending: the device must attest anew."""
        request = _change(name, reason, expected_version, request_id, dry_run=dry_run)
        request.allow_rollback = allow_rollback
        return self._call(self._devices.RestoreDevice, request, device.change_from_message)

    # --- tenants, endpoints ---

    def list_tenants(self) -> list[TenantStatus]:
        """All tenants that the caller may see."""
        return self._read(
            self._tenants.ListTenants,
            tenant_pb2.ListTenantsRequest(),
            lambda answer: [tenant.tenant_from_message(one) for one in answer.tenants],
        )

    def get_tenant(self, name: str) -> TenantStatus:
        """One tenant. Raises NotFoundError."""
        return self._read(self._tenants.GetTenant, tenant_pb2.GetTenantRequest(name=name), tenant.tenant_from_message)

    def list_endpoints(self, *, tenant_name: str = "") -> list[EndpointStatus]:
        """Endpoints, of one tenant or of all."""
        return self._read(
            self._endpoints.ListEndpoints,
            endpoint_pb2.ListEndpointsRequest(tenant=tenant_name),
            lambda answer: [tenant.endpoint_from_message(one) for one in answer.endpoints],
        )

    def get_endpoint(self, name: str) -> EndpointStatus:
        """One endpoint. Raises NotFoundError."""
        return self._read(
            self._endpoints.GetEndpoint, endpoint_pb2.GetEndpointRequest(name=name), tenant.endpoint_from_message
        )

    # --- policy, keys ---

    def policy_status(self) -> PolicyStatus:
        """The policy in force and who enforces it."""
        return self._read(self._policy.GetPolicyStatus, policy_pb2.GetPolicyStatusRequest(), policy.status_from_message)

    def sync_policy(self, *, reason: str = "sync", request_id: str | None = None) -> PolicySync:
        """Read policy files again. With faults in the answer nothing was applied."""
        request = policy_pb2.SyncPolicyRequest(reason=reason, request_id=request_id or "")
        return self._call(self._policy.SyncPolicy, request, policy.sync_from_message)

    def hold_policy(self, commit: str = "", *, reason: str, request_id: str | None = None) -> PolicySync:
        """Go back to a commit that was in force, and stay there. Empty: the one in force now."""
        request = policy_pb2.HoldPolicyRequest(commit=commit, reason=reason, request_id=request_id or "")
        return self._call(self._policy.HoldPolicy, request, policy.sync_from_message)

    def resume_policy(self, *, reason: str, request_id: str | None = None) -> PolicySync:
        """End a hold. With faults in the answer it goes on."""
        request = policy_pb2.ResumePolicyRequest(reason=reason, request_id=request_id or "")
        return self._call(self._policy.ResumePolicy, request, policy.sync_from_message)

    def list_keys(self) -> list[TenantKey]:
        """Epochs of the networks that the caller may see."""
        return self._read(
            self._keys.ListKeys,
            key_pb2.ListKeysRequest(),
            lambda answer: [key.key_from_message(one) for one in answer.keys],
        )

    def rotate_keys(
        self,
        *,
        tenant: str | None = None,
        device: str | None = None,
        force: bool = False,
        reason: str = "rotation",
        request_id: str | None = None,
    ) -> KeyRotation:
        """A new epoch for a tenant, or a new master key on a device; name exactly one."""
        if (tenant is None) == (device is None):
            raise UsageError("name a tenant or a device", remedy="--tenant NAME or --device NAME")
        request = key_pb2.RotateKeysRequest(force=force, reason=reason, request_id=request_id or "")
        if tenant is not None:
            request.tenant = tenant
        else:
            request.device = device or ""
        return self._call(self._keys.RotateKeys, request, key.rotation_from_message)

    # --- jobs ---

    def create_job_token(
        self, tenant: str, name: str, *, world_size: int, ttl_s: int, reason: str, replace: bool = False
    ) -> JobToken:
        """Open a job; its token is told once."""
        request = job_pb2.CreateJobTokenRequest(
            tenant=tenant, job=name, world_size=max(world_size, 0), ttl_s=ttl_s, replace=replace, reason=reason
        )
        return self._call(self._jobs.CreateJobToken, request, job.job_token_from_message)

    def list_jobs(self, tenant: str = "") -> list[JobStatus]:
        """Jobs, of one tenant or all, by tenant and name."""
        return self._read(
            self._jobs.ListJobs,
            job_pb2.ListJobsRequest(tenant=tenant),
            lambda answer: [job.job_from_message(one) for one in answer.jobs],
        )

    def get_job(self, tenant: str, name: str) -> JobStatus:
        """One job."""
        return self._read(self._jobs.GetJob, job_pb2.GetJobRequest(tenant=tenant, job=name), job.job_from_message)

    def end_job(self, tenant: str, name: str, *, reason: str) -> JobStatus:
        """End a job."""
        request = job_pb2.EndJobRequest(tenant=tenant, job=name, reason=reason)
        return self._call(self._jobs.EndJob, request, job.job_from_message)

    # --- identities ---

    def list_identities(self) -> Identities:
        """Authorities, control's own certificate, SVIDs of devices."""
        return self._read(
            self._identity.ListIdentities, identity_pb2.ListIdentitiesRequest(), identity.identities_from_message
        )

    def get_bundle(self) -> TrustBundle:
        """Whom to believe."""
        return self._read(self._identity.GetBundle, identity_pb2.GetBundleRequest(), identity.bundle_from_message)

    def rotate_authority(
        self, step: str, *, reason: str, force: bool = False, request_id: str | None = None
    ) -> AuthorityRotation:
        """One step of replacing the authority: prepare, activate or retire. StateError when devices lag."""
        request = identity_pb2.RotateAuthorityRequest(
            step=step, force=force, reason=reason, request_id=request_id or ""
        )
        return self._call(self._identity.RotateAuthority, request, identity.rotation_from_message)

    # --- audit, attestation, status ---

    def list_audit(self, *, first: int | None = None, limit: int = 100) -> list[AuditEntry]:
        """Leaves from index `first`, or the newest `limit` ones; oldest first."""
        request = audit_pb2.ListAuditRequest(first=first or 0, limit=limit, newest=first is None)
        return self._read(
            self._audit.ListAudit, request, lambda answer: [audit.entry_from_message(one) for one in answer.entries]
        )

    def get_audit(self, index: int) -> AuditEntry:
        """One leaf. Raises NotFoundError."""
        return self._read(self._audit.GetAudit, audit_pb2.GetAuditRequest(index=index), audit.entry_from_message)

    def get_attestation(self, name: str) -> AttestationReport:
        """What the last appraisal of a device found. Raises NotFoundError, and StateError when there was none yet."""
        request = attestation_pb2.GetAttestationRequest(device=name)
        return self._read(self._attestation.GetAttestation, request, attestation.report_from_message)

    def export_attestation(self, name: str) -> bytes:
        """The last appraisal of a device as one signed file. Raises NotFoundError, and StateError without one."""
        request = attestation_pb2.ExportAttestationRequest(device=name)
        return self._read(self._attestation.ExportAttestation, request, lambda answer: bytes(answer.content))

    def status(self) -> ControlStatus:
        """How control and the cluster stand."""
        return self._read(self._control.GetStatus, control_pb2.GetStatusRequest(), control.status_from_message)


def _change(
    name: str, reason: str, expected_version: int | None, request_id: str | None, *, dry_run: bool
) -> device_pb2.ChangeDeviceRequest:
    return device_pb2.ChangeDeviceRequest(
        name=name,
        reason=reason,
        expected_version=expected_version or 0,
        request_id=request_id or "",
        dry_run=dry_run,
    )
