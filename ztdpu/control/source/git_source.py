"""Policy from git: look at the branch, judge what is new, compile what counts. Runs in threads; owns the mirror alone.

    find_tip -> (new to the mirror: fetch) -> judge_history -> snapshot -> load -> owners' tenants -> policy tests
    -> compile

Called by `control.policy.git_changes`, which decides what is put in force and remembers it. Nothing here writes policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from ztdpu.control.configuration import GitPolicy, Specification
from ztdpu.control.policy.record import AcceptedCommit
from ztdpu.control.source.desired import Desired, build_desired, failed_tests
from ztdpu.control.source.git_mirror import GitMirror
from ztdpu.errors import (
    CommitError,
    CommitHistoryError,
    ConfigurationError,
    Location,
    PolicyError,
    PolicyRefusedError,
    ZtdpuError,
)
from ztdpu.policy.cluster import Cluster
from ztdpu.policy.git.allowed_signers import parse_revoked_signers
from ztdpu.policy.git.history import Moment, Step, is_ancestor, judge_history
from ztdpu.policy.git.objects import Commit, Objects, read_commit
from ztdpu.policy.git.snapshot import Snapshot, read_snapshot
from ztdpu.policy.git.trust import TRUST_FILES, parse_trust
from ztdpu.policy.load import load_files

ANCHOR_SIGNER: Final = "anchor of the start-up file"
_REVOKED_LIMIT_OCTETS: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a look at the repository found."""

    tip: str
    steps: tuple[Step, ...]
    """Commits that count, since the last accepted one; oldest first."""
    snapshot: Snapshot | None
    """Of the tip; None: nothing is new."""


class GitSource:
    """One per control process. Its methods block: call them in a thread, one at a time."""

    def __init__(self, spec: Specification) -> None:
        assert spec.policy_git is not None
        self._spec = spec
        self._policy: GitPolicy = spec.policy_git
        self._mirror = GitMirror(spec.state_dir / "policy.git", self._policy)
        self._tip_in_mirror = ""

    @property
    def tip(self) -> str:
        """What the branch stood at when it was judged last."""
        return self._tip_in_mirror

    @property
    def anchor(self) -> str:
        """First commit that is believed."""
        return self._policy.anchor

    def look(self, accepted: str, *, now_unix_s: int) -> Look:
        """Look at the branch and judge everything after the accepted commit.

        Raises:
            UnreachableError: the repository does not answer.
            CommitError: the first commit that does not count.
            ConfigurationError: the file of revoked signers cannot be read.

        """
        tip = self._bring_tip()
        moment = Moment(now_unix_s=now_unix_s, revoked=self._read_revoked())
        with self._mirror.objects() as objects:
            if tip == accepted:
                return Look(tip=tip, steps=(), snapshot=None)
            steps = judge_history(objects, accepted=_read_accepted(objects, accepted), tip=tip, moment=moment)
            return Look(tip=tip, steps=steps, snapshot=read_snapshot(objects, steps[-1].commit))

    def begin(self) -> Snapshot:
        """The anchor's files. CommitError when they are not what a first commit must have."""
        tip = self._bring_tip()
        with self._mirror.objects() as objects:
            commit = read_commit(objects, self.anchor)
            if not is_ancestor(objects, self.anchor, read_commit(objects, tip)):
                raise CommitHistoryError(
                    f"the anchor {self.anchor[:12]} is not on {self._policy.ref}",
                    remedy="name a commit of the branch as anchor in control's start-up file",
                )
            snapshot = read_snapshot(objects, commit)
        parse_trust(_trust_texts(snapshot.files))
        return snapshot

    def is_behind_anchor(self, commit_id: str) -> bool:
        """Whether an accepted commit does not descend from the anchor: the start-up file has moved on since."""
        with self._mirror.objects() as objects:
            return not is_ancestor(objects, self.anchor, read_commit(objects, commit_id))

    def read(self, commit: AcceptedCommit) -> Snapshot:
        """Files of a commit that was accepted before, from the mirror."""
        with self._mirror.objects() as objects:
            return read_snapshot(objects, read_commit(objects, commit.commit_id))

    def find_tip(self) -> str:
        """What the branch stands at, unjudged."""
        return self._mirror.find_tip()

    def close(self) -> None:
        """End whatever runs, from another thread."""
        self._mirror.close()

    def keep(self, commit_id: str) -> None:
        """Let nothing take an accepted commit's objects away."""
        self._mirror.keep(commit_id)

    def compile(
        self, files: Mapping[str, bytes], *, lowest_roster_serial: int, tests_of: Mapping[str, bytes] | None
    ) -> Desired:
        """Load and compile the files of a commit.

        `tests_of`: files of the last accepted commit, whose tests run too; None: no tests at all (for going back).

        Raises:
            PolicyRefusedError: every fault found; a failed test is one.

        """
        load = partial(self._load, files, tests_of)
        return build_desired(self._spec, load, lowest_roster_serial=lowest_roster_serial)

    def _load(self, files: Mapping[str, bytes], tests_of: Mapping[str, bytes] | None) -> Cluster:
        origin = f"{self._policy.repository} {self._policy.ref}"
        cluster = load_files(files, origin=origin)
        faults = parse_trust(_trust_texts(files)).owners.check_tenants(cluster)
        if not faults and tests_of is not None:
            faults = failed_tests(cluster, before=load_files(tests_of, origin=origin))
        if faults:
            raise PolicyRefusedError(faults)
        return cluster

    def _bring_tip(self) -> str:
        tip = self._mirror.find_tip()
        if tip != self._tip_in_mirror or not self._mirror.stands_at(tip):
            fetched = self._mirror.fetch()
            # git leaves the old tip and is content when the repository is shallow; a push in between is no such thing.
            if fetched not in (tip, self._mirror.find_tip()):
                raise CommitHistoryError(
                    "cannot be fetched",
                    remedy="a shallow clone cannot be verified: `git fetch --unshallow` there",
                    where=Location(file=f"commit {tip[:12]}", line=0),
                )
            tip = self._tip_in_mirror = fetched
        return tip

    def _read_revoked(self) -> frozenset[str]:
        path = self._policy.revoked_signers_file
        if path is None:
            return frozenset()
        where = Location(file=str(path), line=0)
        try:
            with path.open("rb") as file:
                octets = file.read(_REVOKED_LIMIT_OCTETS + 1)
            if len(octets) > _REVOKED_LIMIT_OCTETS:  # what is cut off would be believed again
                raise ConfigurationError(
                    f"longer than {_REVOKED_LIMIT_OCTETS} octets",
                    remedy="keep keys and fingerprints in it only, each once",
                    where=where,
                )
            return parse_revoked_signers(octets.decode("utf-8"), file=str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"cannot be read: {error}", remedy="without it no commit is accepted", where=where
            ) from None
        except CommitError as error:
            raise ConfigurationError(error.message, remedy=error.remedy, where=error.where) from None


def _read_accepted(objects: Objects, commit_id: str) -> Commit:
    try:
        return read_commit(objects, commit_id)
    except CommitError:
        raise CommitHistoryError(
            f"the last accepted commit {commit_id[:12]} is not in the repository any more",
            remedy="push it again; if the repository was made anew, name a commit of it as anchor and restart control",
        ) from None


def to_faults(error: ZtdpuError, source: str) -> PolicyRefusedError:
    """Any refusal as faults with a place, as `policy sync` answers them."""
    if isinstance(error, PolicyRefusedError):
        return error
    where = error.where or Location(file=source, line=0)
    return PolicyRefusedError((PolicyError(error.message, remedy=error.remedy, where=where),))


def _trust_texts(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: files[name].decode("utf-8", errors="replace") for name in TRUST_FILES if name in files}
