"""The judgement of control on a repository that lies here: what would become of these commits, were they pushed.

Called by `ztdpu policy verify`, in a checkout or in CI. Fetches nothing and remembers nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ztdpu.control.configuration import GitPolicy
from ztdpu.control.source.desired import failed_tests
from ztdpu.control.source.git_mirror import GitObjects
from ztdpu.control.source.git_process import Git
from ztdpu.errors import NotFoundError, PolicyRefusedError, UnreachableError
from ztdpu.policy.cluster import Cluster
from ztdpu.policy.git.history import Moment, Step, judge_history
from ztdpu.policy.git.objects import Commit, Objects, read_commit
from ztdpu.policy.git.snapshot import read_snapshot
from ztdpu.policy.git.trust import TRUST_FILES, parse_trust
from ztdpu.policy.load import load_directory, load_files

DEADLINE_S: Final = 120.0
_NO_ANCHOR: Final = "0" * 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What was found good."""

    steps: tuple[Step, ...]
    cluster: Cluster


def verify_history(directory: Path, *, base: str, tip: str, now_unix_s: int) -> Verified:
    """Judge the commits after `base` up to `tip`, then load and test what they say.

    Raises:
        NotFoundError: no repository, or no such commit.
        CommitError, PolicyRefusedError: what control would refuse, for the same reason.

    """
    git = Git(GitPolicy(repository=str(directory.resolve()), anchor=_NO_ANCHOR))
    where = f"--git-dir={_git_directory(git, directory)}"
    accepted_id, tip_id = (_resolve(git, where, name) for name in (base, tip))
    objects = GitObjects(git, where, time.monotonic() + DEADLINE_S)
    try:
        accepted = read_commit(objects, accepted_id)
        steps = judge_history(objects, accepted=accepted, tip=tip_id, moment=Moment(now_unix_s=now_unix_s))
        files, before = (_files(objects, commit) for commit in (steps[-1].commit if steps else accepted, accepted))
    finally:
        objects.close()
    cluster = load_files(files, origin=str(directory))
    _check(cluster, files, before=load_files(before, origin=str(directory)))
    return Verified(steps=steps, cluster=cluster)


def verify_files(directory: Path) -> Cluster:
    """Load a directory, and look at the files of trust in it.

    Raises:
        CommitContentError, PolicyRefusedError: what control would refuse of it, whoever signed.

    """
    cluster = load_directory(directory)
    files = {name: (directory / name).read_bytes() for name in TRUST_FILES if (directory / name).is_file()}
    _check(cluster, files, before=None, root=directory)
    return cluster


def _check(cluster: Cluster, files: dict[str, bytes], *, before: Cluster | None, root: Path | None = None) -> None:
    texts = {name: files[name].decode("utf-8", errors="replace") for name in TRUST_FILES if name in files}
    faults = parse_trust(texts).owners.check_tenants(cluster, root=f"{root}/" if root else "")
    if not faults and before is not None:
        faults = failed_tests(cluster, before=before)
    if faults:
        raise PolicyRefusedError(faults)


def _files(objects: Objects, commit: Commit) -> dict[str, bytes]:
    return dict(read_snapshot(objects, commit).files)


def _git_directory(git: Git, directory: Path) -> str:
    words = ["-C", str(directory.resolve()), "rev-parse", "--absolute-git-dir"]
    try:
        return git.run(words, deadline=time.monotonic() + DEADLINE_S).decode().strip()
    except UnreachableError as error:
        raise NotFoundError(f"{directory} is no git repository: {error.message}", remedy="name a checkout") from None


def _resolve(git: Git, where: str, name: str) -> str:
    words = [where, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"]
    try:
        return git.run(words, deadline=time.monotonic() + DEADLINE_S).decode().strip()
    except UnreachableError:
        raise NotFoundError(f"no commit {name!r}", remedy="is the clone complete (not shallow)?") from None
