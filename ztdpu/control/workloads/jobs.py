"""Jobs: their tokens, who took which rank, and their end.

A token is a secret of one job epoch of one tenant; control keeps its hash. Each rank is taken once, by an endpoint of
that tenant; the same endpoint may repeat it. A new epoch, or the end of the job, ends every rank's identity. Called by
JobService (admins) and by `workloads` (devices). Signs nothing.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from ztdpu.control.audit import AuditEvent, AuditOutcome
from ztdpu.control.change_steps import ChangeRequest, ChangeSteps
from ztdpu.control.devices.record import JobRankRecord, JobRecord
from ztdpu.control.fleet import Fleet
from ztdpu.control.workloads.book import JobBook
from ztdpu.errors import ConflictError, NotFoundError, PermissionDeniedError, StateError, UsageError
from ztdpu.model.endpoint import Endpoint
from ztdpu.model.job import JOB_NAME, WORLD_SIZE_LIMIT, JobRank, JobState, JobStatus, JobToken

TOKEN_TTL_S: Final = 3600
TOKEN_TTL_LIMIT_S: Final = 86_400
TOKEN_LIMIT_CHARACTERS: Final = 128
TOKEN_PREFIX: Final = "ztj-"  # noqa: S105
"""Says what the token is for, a job, and that it never begins like an option."""
JOBS_LIMIT: Final = 512
"""Jobs of one tenant that are kept; ended ones go first."""
MEMBERSHIPS_LIMIT: Final = 8
"""Jobs that one endpoint may be in at the same time."""


class Jobs(ChangeSteps):
    """One per control process; reads the store once, and follows every change of its own."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        with fleet.transaction() as transaction:
            self._book = JobBook(transaction.list_jobs(), transaction.list_job_ranks())
        self.on_change: Callable[[Iterable[str]], None] = lambda _devices: None
        """Called with the devices that a change of who is in which job concerns."""
        fleet.ranks_on = self._book.ranks_on

    # --- reading ---

    def list_all(self) -> tuple[JobStatus, ...]:
        """All, by tenant and name."""
        return tuple(self._status(one) for _, one in sorted(self._book.jobs.items()))

    def get(self, tenant: str, name: str) -> JobStatus:
        """One; NotFoundError."""
        return self._status(self._record(tenant, name))

    def memberships(self, endpoint: Endpoint) -> tuple[tuple[JobRecord, JobRankRecord], ...]:
        """Open jobs that the endpoint, as policy has it now, is in; the newest membership first."""
        return self._book.memberships(endpoint)

    def _record(self, tenant: str, name: str) -> JobRecord:
        record = self._book.jobs.get((tenant, name))
        if record is None:
            raise NotFoundError(f"no job {name!r} of tenant {tenant!r}", remedy="`ztdpu job list`")
        return record

    def _status(self, job: JobRecord) -> JobStatus:
        ranks = self._book.ranks(job)
        return JobStatus(
            tenant=job.tenant,
            name=job.name,
            epoch=job.epoch,
            world_size=job.world_size,
            state=self._state(job, len(ranks)),
            created_unix_ms=job.created_unix_ms,
            token_expires_unix_ms=job.token_expires_unix_ms,
            ended_unix_ms=job.ended_unix_ms,
            ranks=tuple(
                JobRank(rank=one.rank, endpoint=one.endpoint, device=one.device, joined_unix_ms=one.joined_unix_ms)
                for one in ranks
            ),
        )

    def _state(self, job: JobRecord, ranks: int) -> JobState:
        if job.ended_unix_ms:
            return JobState.ENDED
        if ranks == job.world_size:
            return JobState.COMPLETE
        return JobState.OPEN if self._fleet.now().unix_ms < job.token_expires_unix_ms else JobState.CLOSED

    # --- what admins do ---

    def create_token(
        self, request: ChangeRequest, *, tenant: str, name: str, world_size: int, ttl_s: int, replace_open: bool
    ) -> JobToken:
        """Open a job and tell its token, once.

        Raises:
            NotFoundError, UsageError: no such tenant, a bad name, size or time.
            ConflictError: the job is open and is not to be replaced, or this request was answered before.
            StateError: the tenant has too many jobs that have not ended.

        """
        fleet, ttl_s = self._fleet, ttl_s or TOKEN_TTL_S
        with self.audited(request):
            self._check(request, dry_run=False, is_device=False)
            _check_job(name, world_size, ttl_s)
            if tenant not in fleet.desired.cluster.tenants:
                raise NotFoundError(f"no tenant {tenant!r}", remedy="`ztdpu tenant list`")
            before, now_ms = self._book.jobs.get((tenant, name)), fleet.now().unix_ms
            token = f"{TOKEN_PREFIX}{secrets.token_urlsafe(32)}"
            if before is not None and not before.ended_unix_ms and not replace_open:
                raise ConflictError(
                    f"job {name} of {tenant} is {self._status(before).state}",
                    remedy="end it with `ztdpu job end`, or begin a new epoch with --replace: its ranks end then",
                )
            job = JobRecord(
                tenant=tenant,
                name=name,
                # Never a number again, even when the job was forgotten in between.
                epoch=max(before.epoch + 1 if before else 1, now_ms),
                world_size=world_size,
                token_sha256=_hash(token),
                created_unix_ms=now_ms,
                token_expires_unix_ms=now_ms + ttl_s * 1000,
            )
            with fleet.transaction() as transaction:
                if self._earlier(transaction, request) is not None:
                    raise ConflictError("this request was answered before; a token is told once", remedy="ask anew")
                surplus = self._too_many(tenant, name)
                for forgotten in surplus:
                    transaction.delete_job(tenant, forgotten)
                transaction.delete_job_ranks(tenant, name)
                transaction.put_job(job)
                digest = job.token_sha256.hex()
                leaf = request.event(ttl_s=ttl_s, token_sha256=digest, world_size=world_size, epoch=job.epoch)
                fleet.write_leaf(transaction, leaf)
                self._remember(transaction, request, {})
        for forgotten in surplus:
            self._book.forget(tenant, forgotten)
        self.on_change(self._book.put(job, ()))
        return JobToken(
            tenant=tenant,
            job=name,
            token=token,
            epoch=job.epoch,
            world_size=world_size,
            expires_unix_ms=job.token_expires_unix_ms,
        )

    def _too_many(self, tenant: str, name: str) -> list[str]:
        kept = [one for one in self._book.jobs.values() if one.tenant == tenant and one.name != name]
        excess = len(kept) + 1 - JOBS_LIMIT
        ended = sorted((one for one in kept if one.ended_unix_ms), key=lambda one: one.ended_unix_ms)
        if excess > len(ended):
            raise StateError(f"{tenant} has {len(kept)} jobs that have not ended", remedy="end some: `ztdpu job end`")
        return [one.name for one in ended[: max(excess, 0)]]

    def end(self, request: ChangeRequest, *, tenant: str, name: str) -> JobStatus:
        """End a job; ending it twice is no mistake."""
        with self.audited(request):
            self._check(request, dry_run=False, is_device=False)
            job = self._record(tenant, name)
            if not job.ended_unix_ms:
                self._end(job, request.event(epoch=job.epoch))
        return self.get(tenant, name)

    def _end(self, job: JobRecord, event: AuditEvent) -> None:
        ended = replace(job, ended_unix_ms=self._fleet.now().unix_ms)
        with self._fleet.transaction() as transaction:
            transaction.put_job(ended)
            self._fleet.write_leaf(transaction, event)
        self.on_change(self._book.put(ended, self._book.ranks(ended)))

    def sweep(self) -> None:
        """Jobs of a tenant that policy does not have any more end: one of the same name does not inherit them."""
        tenants = self._fleet.desired.cluster.tenants
        for job in [one for one in self._book.jobs.values() if not one.ended_unix_ms and one.tenant not in tenants]:
            subject = f"{job.tenant}/{job.name}"
            event = AuditEvent(
                actor="control", role="control", action="end-job", subject=subject,
                outcome=AuditOutcome.DONE, reason="the tenant is not in the policy in force",
            )  # fmt: skip
            self._end(job, event)

    # --- what endpoints do ---

    def join(self, endpoint: Endpoint, *, token: str, rank: int) -> JobRecord:
        """Let an endpoint take a rank.

        Raises:
            PermissionDeniedError: no token of an open job of the endpoint's tenant (its message says what it is
                instead, for the audit log alone).
            UsageError, ConflictError, StateError: a rank out of range or taken, too many jobs.

        """
        job, now_ms = self._find(token), self._fleet.now().unix_ms
        if job is None:
            raise PermissionDeniedError("unknown token, or one of an epoch that is over")
        if job.tenant != endpoint.tenant:
            raise PermissionDeniedError(f"a token of tenant {job.tenant}")
        if job.ended_unix_ms:
            raise PermissionDeniedError(f"the token of {job.name}, which has ended")
        taken = self._book.ranks(job)
        own = [one for one in taken if (one.endpoint, one.device) == (endpoint.name, endpoint.device)]
        if any(one.rank == rank for one in own):
            return job
        if now_ms >= job.token_expires_unix_ms:
            raise PermissionDeniedError(f"the token of {job.name}, which is over")
        if not 0 <= rank < job.world_size:
            raise UsageError(f"{job.name} has ranks 0 to {job.world_size - 1}")
        if own:
            raise ConflictError(f"{endpoint.name} is rank {own[0].rank} of {job.name}")
        if len(self.memberships(endpoint)) >= MEMBERSHIPS_LIMIT:
            raise StateError(f"{endpoint.name} is in {MEMBERSHIPS_LIMIT} jobs")
        record = JobRankRecord(
            tenant=job.tenant,
            job=job.name,
            rank=rank,
            endpoint=endpoint.name,
            device=endpoint.device,
            joined_unix_ms=now_ms,
        )
        with self._fleet.transaction() as transaction:
            transaction.put_job_rank(record)
            self._fleet.write_leaf(transaction, _workload_event("join-job", endpoint, job, rank=rank))
        self.on_change(self._book.put(job, (*taken, record)))
        return job

    def leave(self, endpoint: Endpoint, *, name: str) -> None:
        """Give back the endpoint's rank. NotFoundError when it is not in that job."""
        job = next((job for job, _ in self.memberships(endpoint) if job.name == name), None)
        if job is None:
            raise NotFoundError(f"{endpoint.name} is not in a job {name!r}")
        with self._fleet.transaction() as transaction:
            transaction.delete_job_ranks(job.tenant, job.name, endpoint=endpoint.name)
            self._fleet.write_leaf(transaction, _workload_event("leave-job", endpoint, job))
        self.on_change(self._book.put(job, [one for one in self._book.ranks(job) if one.endpoint != endpoint.name]))

    def _find(self, token: str) -> JobRecord | None:
        if not 1 <= len(token) <= TOKEN_LIMIT_CHARACTERS:
            return None
        return self._book.find(_hash(token))


def _check_job(name: str, world_size: int, ttl_s: int) -> None:
    if not JOB_NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name of a job", remedy="lower-case letters, digits and dashes, at most 63")
    if not 1 <= world_size <= WORLD_SIZE_LIMIT:
        raise UsageError(f"a job has 1 to {WORLD_SIZE_LIMIT} ranks, not {world_size}")
    if not 1 <= ttl_s <= TOKEN_TTL_LIMIT_S:
        raise UsageError("a job token lives at most a day", remedy="ask for a shorter time; ranks that joined stay")


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _workload_event(action: str, endpoint: Endpoint, job: JobRecord, **detail: int) -> AuditEvent:
    return AuditEvent(
        actor=f"endpoint:{endpoint.name}",
        role="job",
        action=action,
        subject=f"{job.tenant}/{job.name}",
        outcome=AuditOutcome.DONE,
        reason="",
        detail={"device": endpoint.device, "epoch": job.epoch, **detail},
    )
