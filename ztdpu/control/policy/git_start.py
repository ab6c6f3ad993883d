"""What control starts with when policy comes from git: the last accepted commit, a held one, or the anchor.

The start-up file's anchor is an operator's word: one that has moved on counts again from there. Called by `run`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ztdpu.control.audit import AuditEvent, AuditOutcome
from ztdpu.control.clock import Clock
from ztdpu.control.policy.git_changes import GitState
from ztdpu.control.policy.record import ANCHOR_TEXT, HOLD_TEXT, AcceptedCommit, PolicyHold, decode_hold
from ztdpu.control.source import Desired
from ztdpu.control.source.git_source import ANCHOR_SIGNER, GitSource
from ztdpu.control.store.store import Store
from ztdpu.errors import CommitError, StateError, UnreachableError, ZtdpuError
from ztdpu.telemetry import get_logger


def begin_git(source: GitSource, store: Store, clock: Clock, *, lowest_roster_serial: int) -> tuple[GitState, Desired]:
    """Find the commit to start with and compile it. Blocks: call it in a thread.

    Raises:
        UnreachableError: the repository does not answer, and nothing of it was accepted before.
        StateError: the store lost files of the accepted or held commit.
        CommitError, PolicyRefusedError: the anchor's files do not count, or the kept ones do not compile any more.

    """
    with store.transaction() as transaction:
        stored_anchor = transaction.get_text(ANCHOR_TEXT)
        newest = next(iter(transaction.list_policy_commits(limit=1)), None)
        hold = decode_hold(transaction.get_text(HOLD_TEXT))
        files = transaction.get_policy_files(newest.commit_id) if newest else None
    if newest is not None and files is None:  # beginning at the anchor again would be going back
        raise StateError("the store does not have the accepted commit's files", remedy="restore it from a backup")
    if newest is None or files is None or (stored_anchor != source.anchor and _has_moved_on(source, newest)):
        newest, files = _anchor(source, store, clock)
        hold = None
    state = _state(store, newest, files, hold)
    in_force = files if state.hold is None else _held_files(store, state.hold)
    return state, source.compile(in_force, lowest_roster_serial=lowest_roster_serial, tests_of=None)


def _has_moved_on(source: GitSource, newest: AcceptedCommit) -> bool:
    """Whether the anchor is to be taken instead. A repository that does not answer changes nothing."""
    try:
        source.begin()
    except UnreachableError as error:
        get_logger().error("policy-unreachable", cause=error.message)
        return False
    try:
        return source.is_behind_anchor(newest.commit_id)
    except CommitError:  # the repository was made anew without it
        return True


def _anchor(source: GitSource, store: Store, clock: Clock) -> tuple[AcceptedCommit, Mapping[str, bytes]]:
    try:
        snapshot = source.begin()
    except UnreachableError as error:
        raise UnreachableError(
            f"no policy was accepted yet, and the repository does not answer: {error.message}", remedy=error.remedy
        ) from None
    now_unix_ms = clock.now().unix_ms
    commit = AcceptedCommit(
        commit_id=snapshot.commit_id,
        committer_unix_s=snapshot.committer_unix_s,
        signer=ANCHOR_SIGNER,
        accepted_unix_ms=now_unix_ms,
    )
    event = AuditEvent(
        actor="control",
        role="control",
        action="anchor-policy",
        subject=commit.commit_id,
        outcome=AuditOutcome.DONE,
        reason=ANCHOR_SIGNER,
    )
    with store.transaction() as transaction:
        transaction.put_policy_commit(commit, snapshot.files)
        transaction.keep_policy_files([commit.commit_id])
        transaction.put_text(ANCHOR_TEXT, source.anchor)
        transaction.put_text(HOLD_TEXT, "")
        transaction.append_audit(event, now_unix_ms=now_unix_ms)
    try:
        source.keep(commit.commit_id)
    except ZtdpuError as error:
        get_logger().warning("policy-mirror-not-kept", cause=str(error))
    return commit, snapshot.files


def _state(store: Store, newest: AcceptedCommit, files: Mapping[str, bytes], hold: PolicyHold | None) -> GitState:
    if hold is None:
        return GitState(accepted=newest, files=files, in_force=newest)
    with store.transaction() as transaction:
        held = next(iter(transaction.find_policy_commits(hold.commit_id)), None)
    if held is None:
        raise StateError("the store does not know the held commit", remedy="restore the store from a backup")
    return GitState(accepted=newest, files=files, in_force=held, hold=hold)


def _held_files(store: Store, hold: PolicyHold) -> Mapping[str, bytes]:
    with store.transaction() as transaction:
        files = transaction.get_policy_files(hold.commit_id)
    if files is None:
        raise StateError("the store does not have the held commit's files", remedy="restore the store from a backup")
    return files
