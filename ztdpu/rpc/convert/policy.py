"""Policy status and faults, to and from messages."""

from __future__ import annotations

from dataclasses import asdict

from ztdpu.errors import Location
from ztdpu.model.administration import DevicePolicy, PolicyFaultPlace, PolicyStatus, PolicySync
from ztdpu.model.policy_source import PolicySource, PolicyStanding, PolicyTestReport
from ztdpu.v1 import policy_pb2


def fault_to_message(fault: PolicyFaultPlace) -> policy_pb2.PolicyFault:
    """Message for a fault."""
    where = fault.where
    return policy_pb2.PolicyFault(file=where.file, line=where.line, column=where.column, message=fault.message)


def fault_from_message(message: policy_pb2.PolicyFault) -> PolicyFaultPlace:
    """The fault that a message tells of."""
    where = Location(file=message.file, line=message.line, column=message.column)
    return PolicyFaultPlace(message=message.message, where=where)


def status_to_message(status: PolicyStatus) -> policy_pb2.PolicyStatus:
    """Message for the policy in force."""
    return policy_pb2.PolicyStatus(
        directory=status.directory,
        loaded_unix_ms=status.loaded_unix_ms,
        generation=status.generation,
        devices=[
            policy_pb2.DevicePolicy(
                device=one.device,
                revision_wanted=one.revision_wanted,
                revision_applied=one.revision_applied,
                generation_wanted=one.generation_wanted,
                generation_applied=one.generation_applied,
                failed=one.failed,
            )
            for one in status.devices
        ],
        faults=[fault_to_message(fault) for fault in status.faults],
        source=_source_to_message(status.source),
        tests=policy_pb2.PolicyTestReport(**asdict(status.tests)),
    )


def status_from_message(message: policy_pb2.PolicyStatus) -> PolicyStatus:
    """The status that a message carries."""
    return PolicyStatus(
        directory=message.directory,
        loaded_unix_ms=message.loaded_unix_ms,
        generation=message.generation,
        devices=tuple(
            DevicePolicy(
                device=one.device,
                revision_wanted=one.revision_wanted,
                revision_applied=one.revision_applied,
                generation_wanted=one.generation_wanted,
                generation_applied=one.generation_applied,
                failed=one.failed,
            )
            for one in message.devices
        ),
        faults=tuple(fault_from_message(fault) for fault in message.faults),
        source=_source_from_message(message.source),
        tests=PolicyTestReport(
            tests=message.tests.tests,
            failed=tuple(message.tests.failed),
            ran_unix_ms=message.tests.ran_unix_ms,
            cause=message.tests.cause,
        ),
    )


def _source_to_message(source: PolicySource) -> policy_pb2.PolicySource:
    return policy_pb2.PolicySource(**asdict(source) | {"standing": str(source.standing)})


def _source_from_message(message: policy_pb2.PolicySource) -> PolicySource:
    return PolicySource(
        name=message.name,
        standing=PolicyStanding(message.standing),
        since_unix_ms=message.since_unix_ms,
        why=message.why,
        held_by=message.held_by,
        looked_unix_ms=message.looked_unix_ms,
        commit_id=message.commit_id,
        signer=message.signer,
        committed_unix_s=message.committed_unix_s,
        accepted_unix_ms=message.accepted_unix_ms,
        tip=message.tip,
    )


def sync_to_message(sync: PolicySync) -> policy_pb2.SyncPolicyResponse:
    """Message for the answer to a sync."""
    return policy_pb2.SyncPolicyResponse(
        status=status_to_message(sync.status),
        faults=[fault_to_message(fault) for fault in sync.faults],
        changed_devices=sync.changed_devices,
    )


def sync_from_message(message: policy_pb2.SyncPolicyResponse) -> PolicySync:
    """The answer that a message carries."""
    return PolicySync(
        status=status_from_message(message.status),
        changed_devices=tuple(message.changed_devices),
        faults=tuple(fault_from_message(fault) for fault in message.faults),
    )
