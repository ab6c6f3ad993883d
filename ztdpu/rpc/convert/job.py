"""Jobs, to and from messages."""

from __future__ import annotations

from ztdpu.model.job import JobRank, JobState, JobStatus, JobToken
from ztdpu.v1 import job_pb2


def job_to_message(job: JobStatus) -> job_pb2.Job:
    """Message for a job."""
    return job_pb2.Job(
        tenant=job.tenant,
        name=job.name,
        epoch=job.epoch,
        world_size=job.world_size,
        state=str(job.state),
        created_unix_ms=job.created_unix_ms,
        token_expires_unix_ms=job.token_expires_unix_ms,
        ended_unix_ms=job.ended_unix_ms,
        ranks=[
            job_pb2.JobRank(rank=one.rank, endpoint=one.endpoint, device=one.device, joined_unix_ms=one.joined_unix_ms)
            for one in job.ranks
        ],
    )


def job_from_message(message: job_pb2.Job) -> JobStatus:
    """The job that a message tells of."""
    return JobStatus(
        tenant=message.tenant,
        name=message.name,
        epoch=message.epoch,
        world_size=message.world_size,
        state=JobState(message.state),
        created_unix_ms=message.created_unix_ms,
        token_expires_unix_ms=message.token_expires_unix_ms,
        ended_unix_ms=message.ended_unix_ms,
        ranks=tuple(
            JobRank(rank=one.rank, endpoint=one.endpoint, device=one.device, joined_unix_ms=one.joined_unix_ms)
            for one in message.ranks
        ),
    )


def job_token_to_message(token: JobToken) -> job_pb2.JobToken:
    """Message for a token."""
    return job_pb2.JobToken(
        tenant=token.tenant,
        job=token.job,
        token=token.token,
        epoch=token.epoch,
        world_size=token.world_size,
        expires_unix_ms=token.expires_unix_ms,
    )


def job_token_from_message(message: job_pb2.JobToken) -> JobToken:
    """The token that a message carries."""
    return JobToken(
        tenant=message.tenant,
        job=message.job,
        token=message.token,
        epoch=message.epoch,
        world_size=message.world_size,
        expires_unix_ms=message.expires_unix_ms,
    )
