"""Identities of workloads: who on a device may have which, and what an agent's requests for them get.

    membership (policy + jobs + lease) -> WorkloadsPush to the agent, on every change
    request of an agent -> lease, endpoint of that device, tenant, job -> signature, or a refusal by its code word

`api.agent` brings requests and `fleet` says when something about a device changed; the agent's identity was proven
and its state checked before. Keys of workloads are made on their device: here only public halves are seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_der_public_key

from ztdpu.control.audit import AuditEvent, AuditOutcome
from ztdpu.control.doors.hub import Connection
from ztdpu.control.doors.refusals import Refusals, TokenBucket
from ztdpu.control.fleet import Fleet
from ztdpu.control.meters import Meters
from ztdpu.control.source import Desired
from ztdpu.control.workloads.jobs import Jobs
from ztdpu.control.workloads.push import MembershipView, WorkloadAnswerPush, WorkloadsPush
from ztdpu.control.workloads.signer import WorkloadSigner
from ztdpu.errors import LeaseError, PermissionDeniedError, UnreachableError, UsageError, ZtdpuError
from ztdpu.model.endpoint import Endpoint
from ztdpu.trust.jwt_svid import check_audience
from ztdpu.trust.spiffe_id import SpiffeId

PUBLIC_KEY_LIMIT_OCTETS: Final = 256
REQUEST_BURST: Final = 256.0
REQUEST_RATE_PER_S: Final = 32.0
"""Of one device, for all its endpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignX509:
    """A public key that shall speak for an identity."""

    public_key: bytes
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SignJwt:
    """A token for these audiences."""

    audience: tuple[str, ...]
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinJob:
    """A rank."""

    token: str
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveJob:
    """No rank any more."""

    job: str


Action = SignX509 | SignJwt | JoinJob | LeaveJob
_WORDS: Final = {SignX509: "sign-x509", SignJwt: "sign-jwt", JoinJob: "join-job", LeaveJob: "leave-job"}


class Workloads:
    """One per control process."""

    def __init__(
        self,
        fleet: Fleet,
        jobs: Jobs,
        signer: WorkloadSigner,
        meters: Meters,
        refusals: Refusals,
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet, self._jobs, self._signer = fleet, jobs, signer
        self._meters, self._refusals, self._now_s = meters, refusals, now_s
        self._told: dict[str, tuple[Connection, WorkloadsPush]] = {}
        self._budgets: dict[str, TokenBucket] = {}
        self._bundles = (signer.authorities, signer.jwt_bundle)
        self._indexed: Desired | None = None
        self._by_device: dict[str, list[Endpoint]] = {}
        fleet.on_peers = self.tell
        jobs.on_change = self._tell_each

    # --- what agents are told ---

    def _tell_each(self, devices: Iterable[str]) -> None:
        for device in devices:
            self.tell(device)

    def tell(self, device: str) -> None:
        """Tell one agent, if it is connected and anything changed since it was told on this stream."""
        connection = self._fleet.hub.get(device)
        if connection is None:
            self._told.pop(device, None)
            return
        push = WorkloadsPush(
            trust_domain=self._signer.trust_domain,
            authorities=self._bundles[0],
            jwt_bundle=self._bundles[1],
            memberships=self._memberships(device),
        )
        told = self._told.get(device)
        if told is None or told[0] is not connection or told[1] != push:
            self._told[device] = (connection, push)
            self._fleet.hub.deliver(device, push)

    def sweep(self) -> None:
        """What nobody tells of: tenants that went, a changed bundle."""
        self._jobs.sweep()
        bundles = (self._signer.authorities, self._signer.jwt_bundle)
        if bundles != self._bundles:
            self._bundles = bundles
            self._tell_each(connection.device for connection in self._fleet.hub.list())

    def _endpoints_on(self, device: str) -> Sequence[Endpoint]:
        """Those of the policy in force, by an index that is made once for each policy."""
        desired = self._fleet.desired
        if self._indexed is not desired:
            self._indexed, self._by_device = desired, {}
            for endpoint in desired.cluster.endpoints.values():
                self._by_device.setdefault(endpoint.device, []).append(endpoint)
        return self._by_device.get(device, ())

    def _memberships(self, device: str) -> tuple[MembershipView, ...]:
        """Every identity on a device that holds a lease, of tenants that allow its tier; none on any other."""
        if not self._fleet.is_leased(device):
            return ()
        views: list[MembershipView] = []
        withheld = self._fleet.withheld_on(device)
        for endpoint in self._endpoints_on(device):
            if endpoint.tenant in withheld:
                continue
            views.append(MembershipView(endpoint=endpoint.name, tenant=endpoint.tenant))
            views += [
                MembershipView(
                    endpoint=endpoint.name,
                    tenant=endpoint.tenant,
                    job=job.name,
                    rank=one.rank,
                    world_size=job.world_size,
                    epoch=job.epoch,
                )
                for job, one in self._jobs.memberships(endpoint)
            ]
        return tuple(views)

    # --- what agents ask ---

    def answer(self, device: str, *, number: int, endpoint: str, action: Action | None) -> WorkloadAnswerPush:
        """Answer a request of the agent of `device`; a refusal is counted and, but for too many, audited."""
        word = _WORDS.get(type(action), "unknown") if action is not None else "unknown"
        try:
            if not self._budget(device).take(self._now_s()):
                raise UnreachableError("too many requests of this device", remedy="wait a moment")
            found = self._require(device, endpoint)
            answer = self._carry_out(found, number, action)
        except ZtdpuError as error:
            self._meters.workloads.labels(action=word, result=error.code).inc()
            if not isinstance(error, (UnreachableError, LeaseError)):
                self._refusals.audit(_refusal(device, endpoint, word, error), f"endpoint:{device}:{endpoint[:63]}")
            return WorkloadAnswerPush(number=number, refusal=error.code)
        self._meters.workloads.labels(action=word, result="ok").inc()
        return answer

    def _require(self, device: str, name: str) -> Endpoint:
        """The endpoint, if policy has it on this device now, which holds a lease in a tier that its tenant allows."""
        endpoint = self._fleet.desired.cluster.endpoints.get(name)
        if endpoint is None or endpoint.device != device:
            raise PermissionDeniedError(f"no endpoint {name[:63]!r} on {device}")
        if not self._fleet.is_leased(device):
            raise LeaseError(f"{device} holds no lease")
        if endpoint.tenant in self._fleet.withheld_on(device):
            raise LeaseError(f"{device} is in a tier that {endpoint.tenant} does not allow")
        return endpoint

    def _carry_out(self, endpoint: Endpoint, number: int, action: Action | None) -> WorkloadAnswerPush:
        match action:
            case SignX509():
                spiffe_id = self._identity(endpoint, action.job)
                chain, expires_unix_s = self._signer.sign_x509(spiffe_id, _public_key(action.public_key))
                return WorkloadAnswerPush(
                    number=number, spiffe_id=str(spiffe_id), x509_svid=chain, expires_unix_s=expires_unix_s
                )
            case SignJwt():
                check_audience(action.audience)
                spiffe_id = self._identity(endpoint, action.job)
                token, expires_unix_s = self._signer.sign_jwt(spiffe_id, action.audience)
                return WorkloadAnswerPush(
                    number=number, spiffe_id=str(spiffe_id), jwt_svid=token, expires_unix_s=expires_unix_s
                )
            case JoinJob():
                job = self._jobs.join(endpoint, token=action.token, rank=action.rank)
                return WorkloadAnswerPush(number=number, spiffe_id=str(self._identity(endpoint, job.name)))
            case LeaveJob():
                self._jobs.leave(endpoint, name=action.job)
                return WorkloadAnswerPush(number=number)
            case _:
                raise UsageError("a request without an action")

    def _identity(self, endpoint: Endpoint, job: str) -> SpiffeId:
        """The endpoint's own identity, or that of its rank. PermissionDeniedError when it is not in that job."""
        path = f"/tenant/{endpoint.tenant}/endpoint/{endpoint.name}"
        if job:
            ranks = [one.rank for record, one in self._jobs.memberships(endpoint) if record.name == job]
            if not ranks:
                raise PermissionDeniedError(f"{endpoint.name} is not in a job {job[:63]!r}")
            path = f"/tenant/{endpoint.tenant}/job/{job}/rank/{ranks[0]}"
        return SpiffeId(trust_domain=self._signer.trust_domain, path=path)

    def _budget(self, device: str) -> TokenBucket:
        bucket = self._budgets.get(device)
        if bucket is None:
            bucket = TokenBucket(REQUEST_BURST, REQUEST_RATE_PER_S, REQUEST_BURST, self._now_s())
            self._budgets[device] = bucket
        return bucket


def _public_key(octets: bytes) -> ec.EllipticCurvePublicKey:
    """UsageError for anything but a key on P-256."""
    try:
        key = load_der_public_key(octets) if len(octets) <= PUBLIC_KEY_LIMIT_OCTETS else None
    except Exception as error:
        raise UsageError("not a public key") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
        raise UsageError("the key of an SVID is on P-256")
    return key


def _refusal(device: str, endpoint: str, action: str, error: ZtdpuError) -> AuditEvent:
    return AuditEvent(
        actor=f"endpoint:{endpoint[:63]}",
        role="job",
        action=action,
        subject=device,
        outcome=AuditOutcome.REFUSED,
        reason=error.code,
        detail={"message": error.message[:200]},
    )
