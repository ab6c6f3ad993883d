"""What an appraisal leaves in the store beside its evidence: findings, the table, and what it went by. JSON.

Written by `conclusion` with every appraisal; read by the attestation servicer. Nothing here judges.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ztdpu.control.devices.record import StoredEvidence
from ztdpu.model.attestation import Check, CheckResult, Dimension, Finding
from ztdpu.trust.appraise import Appraisal
from ztdpu.trust.reference import format_version
from ztdpu.trust.spdm.evidence import Evidence

FIRST_FINDINGS: Final = 3
"""Named in the reason of a lowered state; all of them are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One appraisal, told."""

    findings: tuple[Finding, ...]
    checks: tuple[Check, ...] = ()
    policy: str = ""
    references: str = ""
    ear: str = ""
    """As issued then; the record's is withdrawn by a revocation, this one says what was found."""
    binding_sha256: bytes = b""
    """That the result speaks for; empty when the device had bound no key."""
    pinned_device_id_sha256: bytes = b""
    highest_versions: Mapping[str, str] = field(default_factory=dict)
    """Component -> highest accepted before this appraisal."""


def describe(findings: tuple[Finding, ...]) -> str:
    """The first findings in a phrase."""
    words = [f"{one.code}: {one.message}" for one in findings[:FIRST_FINDINGS]]
    more = len(findings) - len(words)
    return "; ".join([*words, *([f"and {more} more"] if more else [])])


def encode_outcome(outcome: Outcome) -> str:
    """JSON for the store."""
    document = dataclasses.asdict(outcome)
    for name in ("binding_sha256", "pinned_device_id_sha256"):
        document[name] = document[name].hex()
    return json.dumps(document)


def decode_outcome(text: str) -> Outcome:
    """Read it again; what control wrote before there was a table has its findings only."""
    document = json.loads(text)
    if isinstance(document, list):
        return Outcome(findings=tuple(map(_finding, document)))
    for name in ("binding_sha256", "pinned_device_id_sha256"):
        document[name] = bytes.fromhex(document[name])
    document["findings"] = tuple(map(_finding, document["findings"]))
    document["checks"] = tuple(map(_check, document["checks"]))
    return Outcome(**document)


def _finding(document: dict[str, Any]) -> Finding:
    return Finding(
        **document | {"dimension": Dimension(document["dimension"]), "expected": tuple(document["expected"])}
    )


def _check(document: dict[str, Any]) -> Check:
    words = {"dimension": Dimension(document["dimension"]), "result": CheckResult(document["result"])}
    return Check(**document | words | {"expected": tuple(document["expected"])})


def stored_evidence(
    device: str, appraisal: Appraisal, evidence: Evidence, now_unix_ms: int, *, ear: str, binding_sha256: bytes
) -> StoredEvidence:
    """Evidence with what came of its appraisal, as the store keeps it."""
    outcome = Outcome(
        findings=appraisal.findings,
        checks=appraisal.checks,
        policy=appraisal.policy,
        references=appraisal.references,
        ear=ear,
        binding_sha256=binding_sha256,
        pinned_device_id_sha256=appraisal.pinned_device_id_sha256,
        highest_versions={name: format_version(version) for name, version in appraisal.highest_versions.items()},
    )
    return StoredEvidence(
        device=device,
        profile=appraisal.profile,
        nonce=appraisal.nonce,
        evidence=evidence.encode(),
        findings=encode_outcome(outcome),
        appraised_unix_ms=now_unix_ms,
    )
