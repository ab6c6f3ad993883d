"""Whether every step from the last accepted commit to the tip counts.

1. The tip descends from the last accepted commit by first parents: no rewind, no side branch, no forced push.
2. Each step, oldest first, is judged by the files of the step before it: it is signed, its signer owns every path
   that it changes, its committer date goes neither back nor into the future.
3. A merge is one step: its signer answers for all in which it differs from its first parent. What it brings in must be
   signed by owners too, commit by commit, so that nothing unsigned hides behind a merge.

Called by `control.source` and `ztdpu policy verify`. Decides about commits, not about documents.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ztdpu.errors import CommitContentError, CommitError, CommitHistoryError, Location
from ztdpu.policy.git.objects import Commit, Objects, diff_trees, place, read_commit
from ztdpu.policy.git.trust import TRUST_FILES, Trust, read_trust

STEP_LIMIT: Final = 2000
"""Most new commits that are judged at once, side branches included."""
ANCESTOR_LIMIT: Final = 50_000
PARENT_LIMIT: Final = 8
FUTURE_SLACK_S: Final = 300
"""How far a signer's clock may be ahead of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What is known when history is judged, besides history."""

    now_unix_s: int
    revoked: frozenset[str] = frozenset()
    """Fingerprints that the start-up file adds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A commit that counts."""

    commit: Commit
    principals: frozenset[str]
    """Whom its signer may speak for."""
    paths: tuple[str, ...]
    """What it changes."""

    @property
    def signer(self) -> str:
        """For people."""
        return ", ".join(sorted(self.principals))


def judge_history(objects: Objects, *, accepted: Commit, tip: str, moment: Moment) -> tuple[Step, ...]:
    """Judge every commit after `accepted` up to `tip`; empty when they are the same.

    Raises:
        CommitError: the first commit that does not count; `where` names it (or a path, with the commit in the message).

    """
    if tip == accepted.commit_id:
        return ()
    chain = _first_parents(objects, accepted, tip)
    trust = read_trust(objects, accepted.tree)
    steps: list[Step] = []
    before = accepted
    budget = STEP_LIMIT
    has_merge = any(len(commit.parents) > 1 for commit in chain)
    known = _ancestors(objects, accepted) if has_merge else set()  # once: merges must not multiply old history
    for commit in chain:
        try:
            step = judge_step(objects, before, commit, trust, moment)
            budget -= 1 + _judge_side(objects, commit, trust, moment, known=known, limit=budget)
            known.add(commit.commit_id)
            if set(step.paths) & set(TRUST_FILES):
                trust = read_trust(objects, commit.tree)
        except CommitError as error:
            raise _InCommit(commit).explain(error) from None
        steps.append(step)
        before = commit
    return tuple(steps)


def judge_step(objects: Objects, before: Commit, commit: Commit, trust: Trust, moment: Moment) -> Step:
    """Judge one commit against the one before it. CommitError says what is wrong with it."""
    if commit.committer_unix_s < before.committer_unix_s:
        back_s = before.committer_unix_s - commit.committer_unix_s
        raise CommitHistoryError(
            f"its committer date is {back_s} s before that of {before.short}",
            remedy="git commit --amend --no-edit -S gives it today's date",
        )
    return _judge_one(objects, before.tree, commit, trust, moment)


def _judge_one(objects: Objects, old_tree: str | None, commit: Commit, trust: Trust, moment: Moment) -> Step:
    if commit.committer_unix_s - moment.now_unix_s > FUTURE_SLACK_S:
        # Said as a moment: what does not change from look to look is told once.
        raise CommitHistoryError(
            f"its committer date {commit.committer_unix_s} (unix seconds) is in the future", remedy="set the clock"
        )
    principals = trust.find_signer(commit, now_unix_s=moment.now_unix_s, revoked=moment.revoked)
    paths = []
    for path, _, _ in diff_trees(objects, old_tree, commit.tree):
        trust.owners.require_owner(path, principals)
        paths.append(path)
    return Step(commit=commit, principals=principals, paths=tuple(paths))


def _first_parents(objects: Objects, accepted: Commit, tip: str) -> list[Commit]:
    """Commits after `accepted` up to the tip, oldest first."""
    chain: list[Commit] = []
    following = tip
    while following != accepted.commit_id:
        if len(chain) >= STEP_LIMIT:
            if is_ancestor(objects, accepted.commit_id, chain[-1]):
                raise CommitHistoryError(
                    f"is more than {STEP_LIMIT} new commits after {accepted.short}",
                    remedy=f"move the branch on in parts of {STEP_LIMIT}, or name a newer anchor and restart control",
                    where=place(tip),
                )
            raise _not_forward(objects, accepted, tip, f"not found among {STEP_LIMIT} first parents")
        commit = _read_linked(objects, following)
        chain.append(commit)
        if len(commit.parents) > PARENT_LIMIT:
            raise CommitHistoryError(f"has more than {PARENT_LIMIT} parents", where=place(commit.commit_id))
        if not commit.parents:
            raise _not_forward(objects, accepted, tip, "another history: its first parents end elsewhere")
        following = commit.parents[0]
    return chain[::-1]


def _not_forward(objects: Objects, accepted: Commit, tip: str, why: str) -> CommitHistoryError:
    if is_ancestor(objects, tip, accepted):
        return CommitHistoryError(
            f"is older than {accepted.short}, which was accepted: the branch was moved back",
            remedy=f"to go back: `ztdpu policy hold {tip[:12]} --reason ...`; to go on: push {accepted.short} again",
            where=place(tip),
        )
    return CommitHistoryError(
        f"does not descend from {accepted.short}, the last accepted commit, by first parents ({why})",
        remedy=f"was the branch force-pushed? Commit on top of {accepted.short}",
        where=place(tip),
    )


def _line(objects: Objects, commit: Commit) -> Iterator[Commit]:
    """The commit and its first parents, as far as they can be read."""
    for _ in range(ANCESTOR_LIMIT):
        yield commit
        if not commit.parents:
            return
        try:
            commit = read_commit(objects, commit.parents[0])
        except CommitError:
            return


def is_ancestor(objects: Objects, commit_id: str, descendant: Commit) -> bool:
    """Whether a commit is a descendant's first parent, at any distance, or itself."""
    return any(commit.commit_id == commit_id for commit in _line(objects, descendant))


def _judge_side(objects: Objects, commit: Commit, trust: Trust, moment: Moment, *, known: set[str], limit: int) -> int:
    """Judge what a merge brings in beside its first parent; how many commits that are.

    `known`: what counts already; what is judged here is added to it.
    """
    waiting, judged = list(commit.parents[1:]), 0
    while waiting:
        following = waiting.pop()
        if following in known:
            continue
        known.add(following)
        judged += 1
        if judged > limit:
            raise CommitHistoryError(f"more than {STEP_LIMIT} new commits", remedy="push them in parts")
        side = _read_linked(objects, following)
        parent_tree = _read_linked(objects, side.parents[0]).tree if side.parents else None
        try:
            _judge_one(objects, parent_tree, side, trust, moment)
        except CommitError as error:
            raise _InCommit(side).explain(error, f"merged by {commit.short}") from None
        waiting.extend(side.parents)
    return judged


def _ancestors(objects: Objects, commit: Commit) -> set[str]:
    """Everything reachable from a commit that counts, itself included."""
    known: set[str] = set()
    waiting = [commit.commit_id]
    while waiting:
        following = waiting.pop()
        if following in known:
            continue
        known.add(following)
        if len(known) > ANCESTOR_LIMIT:
            raise CommitHistoryError(f"a merge on a history of more than {ANCESTOR_LIMIT} commits", remedy="rebase")
        waiting.extend(_read_linked(objects, following).parents)
    return known


def _read_linked(objects: Objects, commit_id: str) -> Commit:
    try:
        return read_commit(objects, commit_id)
    except CommitContentError:
        raise
    except CommitError as error:
        raise CommitHistoryError(
            f"cannot be read: {error.message}",
            remedy="is the repository complete? A shallow clone cannot be verified",
            where=place(commit_id),
        ) from None


@dataclass(frozen=True, slots=True)
class _InCommit:
    """Says which commit an error is about, without losing the path that it names."""

    commit: Commit

    def explain(self, error: CommitError, more: str = "") -> CommitError:
        name = f"commit {self.commit.short}"
        if error.where is None:
            message = f"({more}) {error.message}" if more else error.message
            where = Location(file=name, line=0)
        elif error.where.file.startswith("commit "):
            return error
        else:
            message, where = f"(in {', '.join(filter(None, (name, more)))}) {error.message}", error.where
        return type(error)(message, remedy=error.remedy, where=where)
