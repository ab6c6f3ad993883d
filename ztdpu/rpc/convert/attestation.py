"""Findings and reports of appraisals, to and from messages."""

from __future__ import annotations

from ztdpu.model.administration import AttestationReport
from ztdpu.model.attestation import Check, CheckResult, Dimension, Finding
from ztdpu.v1 import attestation_pb2


def finding_to_message(finding: Finding) -> attestation_pb2.Finding:
    """Message for a finding."""
    return attestation_pb2.Finding(
        code=finding.code,
        dimension=str(finding.dimension),
        claim=finding.claim,
        message=finding.message,
        index=finding.index,
        component=finding.component,
        expected=finding.expected,
        seen=finding.seen,
        source=finding.source,
    )


def finding_from_message(message: attestation_pb2.Finding) -> Finding:
    """The finding that a message tells of."""
    return Finding(
        code=message.code,
        dimension=Dimension(message.dimension),
        claim=message.claim,
        message=message.message,
        index=message.index if message.HasField("index") else None,
        component=message.component,
        expected=tuple(message.expected),
        seen=message.seen,
        source=message.source,
    )


def check_to_message(check: Check) -> attestation_pb2.Check:
    """Message for a line of the table."""
    return attestation_pb2.Check(
        place=check.place,
        component=check.component,
        dimension=str(check.dimension),
        result=str(check.result),
        expected=check.expected,
        seen=check.seen,
        source=check.source,
    )


def check_from_message(message: attestation_pb2.Check) -> Check:
    """The line that a message tells of."""
    return Check(
        place=message.place,
        component=message.component,
        dimension=Dimension(message.dimension),
        result=CheckResult(message.result),
        expected=tuple(message.expected),
        seen=message.seen,
        source=message.source,
    )


def report_to_message(report: AttestationReport) -> attestation_pb2.Attestation:
    """Message for a report."""
    return attestation_pb2.Attestation(
        device=report.device,
        state=report.state,
        tier=report.tier,
        ear=report.ear,
        findings=[finding_to_message(finding) for finding in report.findings],
        appraised_unix_ms=report.appraised_unix_ms,
        profile=report.profile,
        device_id_sha256=report.device_id_sha256,
        evidence=report.evidence,
        checks=[check_to_message(check) for check in report.checks],
        policy=report.policy,
        references=report.references,
        ear_cwt=report.ear_cwt,
    )


def report_from_message(message: attestation_pb2.Attestation) -> AttestationReport:
    """The report that a message carries."""
    return AttestationReport(
        device=message.device,
        state=message.state,
        tier=message.tier,
        ear=message.ear,
        findings=tuple(finding_from_message(finding) for finding in message.findings),
        appraised_unix_ms=message.appraised_unix_ms,
        profile=message.profile,
        device_id_sha256=message.device_id_sha256,
        evidence=message.evidence,
        checks=tuple(check_from_message(check) for check in message.checks),
        policy=message.policy,
        references=message.references,
        ear_cwt=message.ear_cwt,
    )
