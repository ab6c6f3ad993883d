"""Policy tests, run again whenever membership changes: a device that is enrolled, shut out or dark, an endpoint moved.

Files alone do not say what can be reached: a quarantined device takes its endpoints along. Nothing is put out of force
because of that; it is told: log, metric, audit when the failures change, and `policy status`.
Called by the sweep of `run`; the tests run in a thread, one run at a time, a second apart at least.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from ztdpu.control.audit import AuditEvent, AuditOutcome
from ztdpu.control.fleet import Fleet
from ztdpu.control.meters import Meters
from ztdpu.model.device import DeviceState
from ztdpu.model.policy_source import PolicyTestReport
from ztdpu.policy.cluster import Cluster
from ztdpu.policy.tests import TestResult, run_tests
from ztdpu.telemetry import get_logger

PAUSE_MS: Final = 1000
SETTLING_MS: Final = 15_000
"""How long a device that is pending may take to show its first evidence before tests count it as absent."""
_MISSING: Final = "there is no endpoint "


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Who takes part now."""

    generation: int
    """Of the policy in force."""
    absent: Mapping[str, str]
    """Device that holds no lease -> its state."""


class PolicyWatch:
    """One per control process."""

    def __init__(self, fleet: Fleet, meters: Meters) -> None:
        self._fleet = fleet
        self._meters = meters
        self._began_ms = fleet.now().unix_ms
        self._seen: Membership | None = None
        self._cluster: Cluster | None = None
        self._running: asyncio.Task[None] | None = None
        self.report = PolicyTestReport()
        """Of the last run."""

    def sweep(self) -> None:
        """Start a run if something changed since the last one. Nothing runs before devices had their chance."""
        fleet = self._fleet
        cluster, now_ms = fleet.desired.cluster, fleet.now().unix_ms
        is_busy = self._running is not None and not self._running.done()
        if is_busy or now_ms - self.report.ran_unix_ms < PAUSE_MS:
            return
        if not cluster.policy_tests:
            self.report = PolicyTestReport()
            return
        absent = {name: str(fleet.record(name).state) for name in fleet.names() if not fleet.is_leased(name)}
        seen = Membership(generation=max(fleet.config_generation.values(), default=0), absent=absent)
        if any(self._may_yet_come(name, now_ms) for name in absent):
            return
        has_changed = self._seen is None or seen.absent != self._seen.absent or cluster is not self._cluster
        if not has_changed or len(absent) == len(cluster.devices):
            return
        cause = self._cause(seen, is_new_policy=cluster is not self._cluster)
        self._seen, self._cluster = seen, cluster
        self._running = asyncio.create_task(self._run(cluster, seen, cause), name="policy tests")

    def _may_yet_come(self, device: str, now_ms: int) -> bool:
        """Whether it has only just begun, at boot or as it was enrolled or restored: no failure worth telling."""
        record = self._fleet.record(device)
        since_ms = record.since_unix_ms or self._began_ms
        return record.state is DeviceState.PENDING and 0 <= now_ms - since_ms < SETTLING_MS

    async def close(self) -> None:
        """Wait for a run to end."""
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self, cluster: Cluster, membership: Membership, cause: str) -> None:
        failed, tests = await asyncio.to_thread(run_with_absent, cluster, membership.absent)
        before = self.report
        self.report = PolicyTestReport(tests=tests, failed=failed, ran_unix_ms=self._fleet.now().unix_ms, cause=cause)
        self._meters.policy_tests_failed.set(len(failed))
        if failed == before.failed:
            return
        say = get_logger().error if failed else get_logger().info
        say("policy-tests", failed=len(failed), tests=tests, cause=cause, first=next(iter(failed), ""))
        self._fleet.audit(
            AuditEvent(
                actor="control",
                role="control",
                action="test-policy",
                subject=cause,
                outcome=AuditOutcome.DONE,
                reason=f"{len(failed)} of {tests} policy tests fail" if failed else f"all {tests} policy tests pass",
                detail={"first": failed[0][:300]} if failed else {},
            )
        )

    def _cause(self, seen: Membership, *, is_new_policy: bool) -> str:
        if is_new_policy or self._seen is None:
            return f"policy of generation {seen.generation}"
        before = self._seen.absent
        for device in sorted(before.keys() | seen.absent.keys()):
            if before.get(device) != seen.absent.get(device):
                return f"{device} is {seen.absent.get(device, 'attested')}"
        return "membership"


def run_with_absent(cluster: Cluster, absent: Mapping[str, str]) -> tuple[tuple[str, ...], int]:
    """(failures in one line each, number of tests) of a cluster without the endpoints of some devices. Pure."""
    present = {name: one for name, one in cluster.endpoints.items() if one.device not in absent}
    results = run_tests(replace(cluster, endpoints=present), tests_of=cluster)
    failed = []
    for result in results:
        why = _why(result, cluster, absent)
        if why:
            failed.append(f"{result.where}: {result.test}: {result.line}: {why}")
    return tuple(failed), len(results)


def _why(result: TestResult, cluster: Cluster, absent: Mapping[str, str]) -> str:
    """Why a test fails, empty when it does not: what has gone with its device is dropped, as a test may expect."""
    if result.passed or not result.detail.startswith(_MISSING):
        return result.detail
    endpoint = cluster.endpoints.get(result.detail.removeprefix(_MISSING).strip("'"))
    if endpoint is None:
        return result.detail
    if result.line.endswith(" drop"):
        return ""
    return f"{endpoint.name} is on {endpoint.device}, which is {absent.get(endpoint.device, 'absent')}"
