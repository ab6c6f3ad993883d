"""Rows of jobs and their ranks. The half of `sql.SqlTransaction` that knows these two tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.exc import IntegrityError

from ztdpu.control.devices.record import JobRankRecord, JobRecord
from ztdpu.control.store import schema
from ztdpu.errors import ConflictError


class JobRows:
    """See the interface for what each method promises."""

    def __init__(self, connection: Connection) -> None:
        self._sql = connection

    def list_jobs(self) -> Sequence[JobRecord]:
        """By tenant and name."""
        table = schema.jobs
        rows = self._sql.execute(select(table).order_by(table.c.tenant, table.c.name)).mappings()
        return [JobRecord(**dict(row)) for row in rows]

    def put_job(self, job: JobRecord) -> None:
        """Insert or replace."""
        values = dataclasses.asdict(job)
        statement = upsert(schema.jobs).values(values)
        self._sql.execute(statement.on_conflict_do_update(index_elements=["tenant", "name"], set_=values))

    def delete_job(self, tenant: str, name: str) -> None:
        """With its ranks."""
        self.delete_job_ranks(tenant, name)
        table = schema.jobs
        self._sql.execute(delete(table).where(table.c.tenant == tenant, table.c.name == name))

    def list_job_ranks(self) -> Sequence[JobRankRecord]:
        """By tenant, job and rank."""
        table = schema.job_ranks
        rows = self._sql.execute(select(table).order_by(table.c.tenant, table.c.job, table.c.rank)).mappings()
        return [JobRankRecord(**dict(row)) for row in rows]

    def put_job_rank(self, rank: JobRankRecord) -> None:
        """Insert; the primary key is the last word on who has a rank."""
        try:
            self._sql.execute(insert(schema.job_ranks).values(dataclasses.asdict(rank)))
        except IntegrityError as error:
            raise ConflictError(f"rank {rank.rank} of {rank.job} is taken", remedy="each rank joins once") from error

    def delete_job_ranks(self, tenant: str, job: str, *, endpoint: str = "") -> None:
        """Of one endpoint, or all."""
        table = schema.job_ranks
        wanted = [table.c.tenant == tenant, table.c.job == job]
        if endpoint:
            wanted.append(table.c.endpoint == endpoint)
        self._sql.execute(delete(table).where(*wanted))
