"""Policy from a git repository: polled, synced, held and resumed; the last good one stays in force.

A look and what follows from it run in a thread; what is put in force and remembered is one transaction on the loop.
`begin_git` finds what to start with: the last accepted commit, whose files the store keeps, so that a repository that
does not answer delays changes and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from ztdpu.control.appraisal.conclusion import Concluder
from ztdpu.control.audit import AuditEvent, AuditOutcome
from ztdpu.control.change_steps import ChangeRequest
from ztdpu.control.configuration import Specification
from ztdpu.control.fleet import Fleet
from ztdpu.control.meters import Meters
from ztdpu.control.policy.changes import PolicyChange, PolicyChanges
from ztdpu.control.policy.record import HOLD_TEXT, AcceptedCommit, PolicyHold, encode_hold
from ztdpu.control.source import Desired
from ztdpu.control.source.git_source import GitSource, Look, to_faults
from ztdpu.control.store.store import Transaction
from ztdpu.errors import (
    CommitError,
    ConfigurationError,
    MachineError,
    NotFoundError,
    PolicyRefusedError,
    StateError,
    UnreachableError,
    UsageError,
    ZtdpuError,
)
from ztdpu.model.policy_source import PolicySource, PolicyStanding
from ztdpu.telemetry import get_logger

PREFIX_CHARACTERS: Final = 7
"""Fewest characters that name a commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GitState:
    """Which commit counts. `in_force` differs from `accepted` during a hold only."""

    accepted: AcceptedCommit
    files: Mapping[str, bytes]
    """Of the accepted commit."""
    in_force: AcceptedCommit
    hold: PolicyHold | None = None


class GitChanges(PolicyChanges):
    """One per control process."""

    def __init__(
        self,
        fleet: Fleet,
        spec: Specification,
        concluder: Concluder,
        *,
        source: GitSource,
        state: GitState,
        meters: Meters,
    ) -> None:
        super().__init__(fleet, spec, concluder)
        self._git = source
        self._state = state
        self._meters = meters
        self._standing = PolicySource(
            name=spec.policy_source,
            standing=PolicyStanding.HELD if state.hold else PolicyStanding.ACCEPTED,
            since_unix_ms=state.hold.since_unix_ms if state.hold else fleet.now().unix_ms,
            tip=state.accepted.commit_id,
        )

    @property
    def source(self) -> PolicySource:
        """What is in force, and how the newest stands."""
        state, hold = self._state, self._state.hold
        newest = self._standing.why
        held_for = f"{hold.reason} (newest look: {newest})" if hold and newest else hold.reason if hold else ""
        return replace(
            self._standing,
            commit_id=state.in_force.commit_id,
            signer=state.in_force.signer,
            committed_unix_s=state.in_force.committer_unix_s,
            accepted_unix_ms=state.in_force.accepted_unix_ms,
            why=held_for or newest,
            held_by=hold.actor if hold else "",
        )

    async def poll(self) -> None:
        """Look, and put in force what counts. What does not is told once: log, audit, metric; then by the status."""
        async with self._lock:
            if self._state.hold:
                await self._look_at_tip()
                return
            try:
                look = await self._look()
                if look.snapshot is None:
                    self._stand(PolicyStanding.ACCEPTED, look.tip)
                    self._faults = None
                else:
                    self._accept(look, await self._compile(look), None)
                    await self._keep_objects()
            except (UnreachableError, MachineError) as error:
                self._be_unreachable(error)
            except (CommitError, PolicyRefusedError, ConfigurationError, StateError) as error:
                self._refuse(error, is_told=False)

    async def hold(self, request: ChangeRequest, commit: str) -> PolicyChange:
        """Put an accepted commit in force, and stay there until `resume`. An empty name means the one in force.

        Raises:
            NotFoundError, UsageError: no accepted commit is meant.
            PolicyRefusedError: its files do not go together with the roster of today.

        """
        async with self._lock:
            with self.audited(request):
                self._check(request, dry_run=False, is_device=False)
                repeated = self._repeated(request)
                if repeated is not None:
                    return repeated
                target = self._find(commit)
                files = await self._files_of(target)
                serial = self._fleet.desired.roster.serial
                compile_ = partial(self._git.compile, files, lowest_roster_serial=serial, tests_of=None)
                desired = await asyncio.to_thread(compile_)
                hold = PolicyHold(
                    commit_id=target.commit_id,
                    reason=request.reason,
                    actor=request.caller.name,
                    since_unix_ms=self._fleet.now().unix_ms,
                )
                change = self._put_in_force(desired, request, also=partial(self._write_hold, hold, files))
                self._state = replace(self._state, in_force=target, hold=hold)
                self._stand(PolicyStanding.HELD, self._standing.tip)
        get_logger().warning("policy-held", commit=target.commit_id, reason=hold.reason, actor=hold.actor)
        return change

    async def resume(self, request: ChangeRequest) -> PolicyChange:
        """End a hold by taking the branch's tip. While it does not count, the hold stays.

        Raises:
            StateError: nothing is held.
            PolicyRefusedError: the tip does not count, or the repository does not answer.

        """
        async with self._lock:
            with self.audited(request):
                self._check(request, dry_run=False, is_device=False)
                repeated = self._repeated(request)
                if repeated is not None:
                    return repeated
                if self._state.hold is None:
                    raise StateError("policy is not held", remedy="look at `ztdpu policy status`")
                change = await self._sync(request)
        get_logger().info("policy-resumed", commit=self._state.in_force.commit_id)
        return change

    async def _sync(self, request: ChangeRequest) -> PolicyChange:
        """Take the tip for an operator, and the roster as it is on disk now."""
        if self._state.hold and request.method == "sync-policy":
            raise StateError(
                f"policy is held at {self._state.hold.commit_id[:12]}: {self._state.hold.reason}",
                remedy="`ztdpu policy resume` takes the branch's tip again",
            )
        try:
            look = await self._look()
            desired = await self._compile(look)
        except (
            CommitError,
            UnreachableError,
            MachineError,
            PolicyRefusedError,
            ConfigurationError,
            StateError,
        ) as error:
            if isinstance(error, UnreachableError | MachineError):
                self._be_unreachable(error)
            else:
                self._refuse(error, is_told=True)
            raise to_faults(error, self._spec.policy_source) from None
        change = self._accept(look, desired, request)
        await self._keep_objects()
        return change

    # --- steps ---

    async def _look(self) -> Look:
        now_unix_s = self._fleet.now().unix_ms // 1000
        return await asyncio.to_thread(self._git.look, self._state.accepted.commit_id, now_unix_s=now_unix_s)

    async def _compile(self, look: Look) -> Desired:
        files = look.snapshot.files if look.snapshot else self._state.files
        serial = self._fleet.desired.roster.serial
        tests_of = self._state.files
        return await asyncio.to_thread(
            partial(self._git.compile, files, lowest_roster_serial=serial, tests_of=tests_of)
        )

    def _accept(self, look: Look, desired: Desired, request: ChangeRequest | None) -> PolicyChange:
        """Put the tip in force and remember it; a hold ends with it."""
        if look.snapshot is None:
            change = self._put_in_force(desired, request, also=self._end_hold)
            self._state = replace(self._state, in_force=self._state.accepted, hold=None)
        else:
            last = look.steps[-1]
            accepted = AcceptedCommit(
                commit_id=look.snapshot.commit_id,
                committer_unix_s=look.snapshot.committer_unix_s,
                signer=last.signer,
                accepted_unix_ms=self._fleet.now().unix_ms,
            )
            also = partial(self._write_accepted, accepted, look.snapshot.files)
            change = self._put_in_force(
                desired, request, event=partial(self._accepted_event, look, accepted), also=also
            )
            self._state = GitState(accepted=accepted, files=look.snapshot.files, in_force=accepted)
            get_logger().info("policy-accepted", commit=accepted.commit_id, signer=accepted.signer)
        self._stand(PolicyStanding.ACCEPTED, look.tip)
        return change

    def _accepted_event(self, look: Look, accepted: AcceptedCommit, generation: int, changed: str) -> AuditEvent:
        return AuditEvent(
            actor="control",
            role="control",
            action="accept-policy",
            subject=accepted.commit_id,
            outcome=AuditOutcome.DONE,
            reason=f"signed by {accepted.signer}",
            detail={
                "after": self._state.accepted.commit_id,
                "commits": len(look.steps),
                "generation": generation,
                "changed": changed[:300],
            },
        )

    def _write_accepted(self, accepted: AcceptedCommit, files: Mapping[str, bytes], transaction: Transaction) -> None:
        transaction.put_policy_commit(accepted, files)
        transaction.keep_policy_files([accepted.commit_id])
        self._end_hold(transaction)

    def _write_hold(self, hold: PolicyHold, files: Mapping[str, bytes], transaction: Transaction) -> None:
        transaction.put_policy_files(hold.commit_id, files)
        transaction.keep_policy_files([hold.commit_id, self._state.accepted.commit_id])
        transaction.put_text(HOLD_TEXT, encode_hold(hold))

    def _end_hold(self, transaction: Transaction) -> None:
        transaction.put_text(HOLD_TEXT, "")

    async def _keep_objects(self) -> None:
        try:
            await asyncio.to_thread(self._git.keep, self._state.accepted.commit_id)
        except ZtdpuError as error:  # only costs a longer fetch, some day
            get_logger().warning("policy-mirror-not-kept", cause=str(error))

    def _find(self, commit: str) -> AcceptedCommit:
        if not commit:
            return self._state.in_force
        if len(commit) < PREFIX_CHARACTERS or not set(commit) <= set("0123456789abcdef"):
            raise UsageError(f"{commit[:64]!r} is no commit id", remedy=f"{PREFIX_CHARACTERS} characters of it or more")
        with self._fleet.transaction() as transaction:
            found = transaction.find_policy_commits(commit)
            newest = transaction.list_policy_commits(limit=5)
        if len(found) == 1:
            return found[0]
        known = ", ".join(one.commit_id[:12] for one in newest)
        what = "more than one commit" if found else "no commit that was in force"
        raise NotFoundError(f"{commit} names {what}", remedy=f"the newest that were: {known}")

    async def _files_of(self, commit: AcceptedCommit) -> Mapping[str, bytes]:
        with self._fleet.transaction() as transaction:
            files = transaction.get_policy_files(commit.commit_id)
        if files is None:
            files = (await asyncio.to_thread(self._git.read, commit)).files
        return files

    # --- how it stands ---

    async def _look_at_tip(self) -> None:
        """During a hold nothing is judged; `policy status` shows what waits."""
        try:
            tip = await asyncio.to_thread(self._git.find_tip)
        except ZtdpuError as error:
            self._be_unreachable(error)
        else:
            self._stand(PolicyStanding.HELD, tip)

    def _stand(self, standing: PolicyStanding, tip: str, why: str = "") -> bool:
        """Note how it stands; whether that is news."""
        before, now_ms = self._standing, self._fleet.now().unix_ms
        is_news = (standing, why) != (before.standing, before.why) or tip != before.tip
        begins = now_ms if standing is not before.standing else before.since_unix_ms
        self._standing = replace(
            before, standing=standing, since_unix_ms=begins, why=why, tip=tip, looked_unix_ms=now_ms
        )
        return is_news

    def _be_unreachable(self, error: ZtdpuError) -> None:
        looked = self._standing.looked_unix_ms
        standing = PolicyStanding.HELD if self._state.hold else PolicyStanding.UNREACHABLE
        if self._stand(standing, self._standing.tip, error.message):
            get_logger().error("policy-unreachable", source=self._spec.policy_source, cause=error.message)
        self._standing = replace(self._standing, looked_unix_ms=looked)

    def _refuse(self, error: ZtdpuError, *, is_told: bool) -> None:
        """Alarm, once per tip and reason. `is_told`: the operator who asked gets the leaf of the refused request."""
        faults = to_faults(error, self._spec.policy_source)
        self._faults = faults
        why = str(faults.faults[0])
        standing = PolicyStanding.HELD if self._state.hold else PolicyStanding.REFUSED
        if not self._stand(standing, self._git.tip or self._standing.tip, why):
            return
        self._meters.policy_refusals.labels(code=error.code).inc()
        get_logger().error(
            "policy-refused",
            tip=self._git.tip,
            in_force=self._state.in_force.commit_id,
            code=error.code,
            cause=why,
            faults=len(faults.faults),
        )
        if not is_told:
            self._fleet.audit(
                AuditEvent(
                    actor="control",
                    role="control",
                    action="accept-policy",
                    subject=self._git.tip,
                    outcome=AuditOutcome.REFUSED,
                    reason=error.code,
                    detail={"message": why[:300], "faults": len(faults.faults)},
                )
            )
