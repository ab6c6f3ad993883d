"""JobService: jobs of tenants as admins see and change them."""

# ruff: noqa: N802 - gRPC fixes the names of methods
from __future__ import annotations

from typing import Any

from ztdpu.control.change_steps import ChangeRequest
from ztdpu.control.doors.authorisation import ACCESS
from ztdpu.control.workloads.jobs import Jobs
from ztdpu.rpc.convert.job import job_to_message, job_token_to_message
from ztdpu.v1 import job_pb2, job_pb2_grpc


class JobServicer(job_pb2_grpc.JobServiceServicer):
    """Tokens, lists and ends."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def CreateJobToken(self, request: job_pb2.CreateJobTokenRequest, _context: Any) -> job_pb2.JobToken:
        """Open a job."""
        change = _change("create-job-token", request)
        with self._jobs.audited(change):
            ACCESS.get().require_tenant(request.tenant, f"tenant {request.tenant!r}")
        token = self._jobs.create_token(
            change,
            tenant=request.tenant,
            name=request.job,
            world_size=request.world_size,
            ttl_s=request.ttl_s,
            replace_open=request.replace,
        )
        return job_token_to_message(token)

    async def ListJobs(self, request: job_pb2.ListJobsRequest, _context: Any) -> job_pb2.ListJobsResponse:
        """Jobs in reach."""
        access = ACCESS.get()
        wanted = [one for one in self._jobs.list_all() if request.tenant in ("", one.tenant)]
        return job_pb2.ListJobsResponse(jobs=[job_to_message(one) for one in wanted if access.sees_tenant(one.tenant)])

    async def GetJob(self, request: job_pb2.GetJobRequest, _context: Any) -> job_pb2.Job:
        """One job."""
        ACCESS.get().require_tenant(request.tenant, f"job {request.job!r} of tenant {request.tenant!r}")
        return job_to_message(self._jobs.get(request.tenant, request.job))

    async def EndJob(self, request: job_pb2.EndJobRequest, _context: Any) -> job_pb2.Job:
        """End a job."""
        change = _change("end-job", request)
        with self._jobs.audited(change):
            ACCESS.get().require_tenant(request.tenant, f"job {request.job!r} of tenant {request.tenant!r}")
        return job_to_message(self._jobs.end(change, tenant=request.tenant, name=request.job))


def _change(method: str, request: job_pb2.CreateJobTokenRequest | job_pb2.EndJobRequest) -> ChangeRequest:
    parameters = ""
    if isinstance(request, job_pb2.CreateJobTokenRequest):
        parameters = f"world_size={request.world_size} ttl_s={request.ttl_s} replace={request.replace}"
    return ChangeRequest(
        caller=ACCESS.get().caller,
        method=method,
        subject=f"{request.tenant}/{request.job}",
        reason=request.reason,
        request_id=request.request_id,
        parameters=parameters,
    )
