"""Requests for workload identities on an agent's stream, to and from messages."""

from __future__ import annotations

from ztdpu.control.workloads.identities import Action, JoinJob, LeaveJob, SignJwt, SignX509
from ztdpu.control.workloads.push import WorkloadAnswerPush, WorkloadsPush
from ztdpu.v1 import agent_pb2


def read_action(request: agent_pb2.WorkloadRequest) -> Action | None:
    """What is asked; None for nothing, or for something that a newer agent may ask."""
    match request.WhichOneof("action"):
        case "x509":
            return SignX509(public_key=request.x509.public_key, job=request.x509.job)
        case "jwt":
            return SignJwt(audience=tuple(request.jwt.audience), job=request.jwt.job)
        case "join":
            return JoinJob(token=request.join.token, rank=request.join.rank)
        case "leave":
            return LeaveJob(job=request.leave.job)
        case _:
            return None


def answer_to_message(push: WorkloadAnswerPush) -> agent_pb2.WorkloadAnswer:
    """Message for an answer."""
    return agent_pb2.WorkloadAnswer(
        number=push.number,
        refusal=push.refusal,
        spiffe_id=push.spiffe_id,
        x509_svid=push.x509_svid,
        jwt_svid=push.jwt_svid,
        expires_unix_s=push.expires_unix_s,
    )


def workloads_to_message(push: WorkloadsPush) -> agent_pb2.Workloads:
    """Message for all identities of a device."""
    return agent_pb2.Workloads(
        trust_domain=push.trust_domain,
        authorities=push.authorities,
        jwt_bundle=push.jwt_bundle,
        memberships=[
            agent_pb2.WorkloadMembership(
                endpoint=one.endpoint,
                tenant=one.tenant,
                job=one.job,
                rank=one.rank,
                world_size=one.world_size,
                epoch=one.epoch,
            )
            for one in push.memberships
        ],
    )
