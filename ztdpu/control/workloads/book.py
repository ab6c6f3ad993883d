"""Jobs and ranks in memory, by token, endpoint and device: what `jobs` looks up and `workloads` asks all the time.

Follows the store: `put` after the commit that changed a job. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ztdpu.control.devices.record import JobRankRecord, JobRecord
from ztdpu.model.endpoint import Endpoint

Key = tuple[str, str]
"""Tenant and name of a job."""


class JobBook:
    """All jobs that are kept."""

    def __init__(self, jobs: Iterable[JobRecord], ranks: Iterable[JobRankRecord]) -> None:
        self.jobs: dict[Key, JobRecord] = {}
        self._ranks: dict[Key, tuple[JobRankRecord, ...]] = {}
        self._by_token: dict[bytes, Key] = {}
        self._by_endpoint: dict[str, dict[Key, JobRankRecord]] = {}
        taken: dict[Key, list[JobRankRecord]] = {}
        for rank in ranks:
            taken.setdefault((rank.tenant, rank.job), []).append(rank)
        for job in jobs:
            self.put(job, taken.get((job.tenant, job.name), ()))

    def put(self, job: JobRecord, ranks: Sequence[JobRankRecord]) -> set[str]:
        """Replace a job and its ranks; returns the devices that this concerns."""
        key = (job.tenant, job.name)
        before = self.forget(job.tenant, job.name)
        self.jobs[key], self._ranks[key] = job, tuple(sorted(ranks, key=lambda one: one.rank))
        self._by_token[job.token_sha256] = key
        for one in ranks:
            self._by_endpoint.setdefault(one.endpoint, {})[key] = one
        return before | {one.device for one in ranks}

    def forget(self, tenant: str, name: str) -> set[str]:
        """Drop a job; returns the devices that had ranks of it."""
        key = (tenant, name)
        job, ranks = self.jobs.pop(key, None), self._ranks.pop(key, ())
        if job is not None:
            self._by_token.pop(job.token_sha256, None)
        for one in ranks:
            own = self._by_endpoint.get(one.endpoint, {})
            own.pop(key, None)
            if not own:
                self._by_endpoint.pop(one.endpoint, None)
        return {one.device for one in ranks}

    def ranks(self, job: JobRecord) -> tuple[JobRankRecord, ...]:
        """Ranks that are taken, in order."""
        return self._ranks.get((job.tenant, job.name), ())

    def find(self, token_sha256: bytes) -> JobRecord | None:
        """The job of a token. What is looked up is a hash, so that time tells nothing about tokens."""
        key = self._by_token.get(token_sha256)
        return self.jobs[key] if key is not None else None

    def memberships(self, endpoint: Endpoint) -> tuple[tuple[JobRecord, JobRankRecord], ...]:
        """Jobs that have not ended and that the endpoint, as policy has it now, is in; the newest membership first."""
        found = [
            (self.jobs[key], one)
            for key, one in self._by_endpoint.get(endpoint.name, {}).items()
            if (one.tenant, one.device) == (endpoint.tenant, endpoint.device) and not self.jobs[key].ended_unix_ms
        ]
        return tuple(sorted(found, key=lambda pair: (-pair[1].joined_unix_ms, pair[0].name)))

    def ranks_on(self, device: str) -> tuple[str, ...]:
        """`tenant/job` of each rank of a job that has not ended, on a device."""
        return tuple(
            f"{tenant}/{name}"
            for (tenant, name), job in sorted(self.jobs.items())
            if not job.ended_unix_ms
            for rank in self.ranks(job)
            if rank.device == device
        )
