"""Stored evidence, appraised again at once when policy or reference values change.

A device that keeps its lease in a lower tier loses the networks that do not allow it. Only lowers: a device that new
references would affirm shows fresh evidence by itself, within one interval. Called by `changes` after a sync.
"""

from __future__ import annotations

from datetime import UTC, datetime

from ztdpu.control.appraisal.conclusion import Concluder
from ztdpu.control.appraisal.judgement import judge_evidence
from ztdpu.control.appraisal.outcome import describe
from ztdpu.control.clock import as_datetime
from ztdpu.control.devices import leases
from ztdpu.control.fleet import Fleet
from ztdpu.errors import EvidenceError
from ztdpu.model.device import DeviceState
from ztdpu.telemetry import get_logger
from ztdpu.trust.spdm.evidence import decode_evidence


def reappraise(fleet: Fleet, concluder: Concluder) -> tuple[str, ...]:
    """Appraise the evidence of every leased device again; returns the devices that lost their lease."""
    return tuple(name for name in fleet.names() if fleet.is_leased(name) and _falls(fleet, concluder, name))


def _falls(fleet: Fleet, concluder: Concluder, device: str) -> bool:
    record = fleet.record(device)
    with fleet.transaction() as transaction:
        stored = transaction.get_evidence(device)
        highest = transaction.get_highest_versions(device)
    if stored is None:
        return False
    evidence = decode_evidence(stored.evidence)
    try:
        appraisal = judge_evidence(
            evidence,
            desired=fleet.desired,
            record=record,
            nonce=stored.nonce,
            highest_versions=highest,
            now=as_datetime(fleet.now()),
            collected_at=datetime.fromtimestamp(stored.appraised_unix_ms / 1000, tz=UTC),
        )
    except EvidenceError as error:
        # Another pin or root of manufacturers, for example: what does not verify any more holds no lease.
        get_logger().warning("reappraisal-refused", device=device, code=error.code, cause=error.message)
        fleet.end_lease(device, f"stored evidence does not verify under the new policy: {error.code}")
        return True
    tiers = fleet.desired.appraisal[device].lease_tiers
    state = leases.appraised_state(record, appraisal.tier, tiers_allowed=tiers)
    if state in leases.LEASED_STATES and appraisal.tier in tiers:
        is_lower = record.state is DeviceState.AFFIRMING and state is DeviceState.WARNING
        if is_lower and fleet.desired.withheld_on(device, appraisal.tier.word) - fleet.withheld_on(device):
            fleet.lower_tier(device, appraisal.tier.word, describe(appraisal.findings))
        return False
    concluder.lower(read=record, desired=fleet.desired, appraisal=appraisal, evidence=evidence, state=state)
    return True
