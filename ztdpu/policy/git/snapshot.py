"""The files of one commit that count: policy documents and the three files of trust. Read whole, within bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ztdpu.errors import CommitContentError
from ztdpu.policy.git.objects import Commit, Objects, list_files, read_blob
from ztdpu.policy.git.trust import TRUST_FILES
from ztdpu.policy.load import FILE_LIMIT, is_policy_path
from ztdpu.policy.yaml import SIZE_LIMIT_OCTETS

SNAPSHOT_LIMIT_OCTETS: Final = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What one commit says."""

    commit_id: str
    committer_unix_s: int
    files: Mapping[str, bytes]
    """Path -> content."""


def read_snapshot(objects: Objects, commit: Commit) -> Snapshot:
    """Read a commit's files; other files of the repository are looked at for links and submodules, never opened.

    Raises:
        CommitContentError: something in the tree that is refused, too many files, or one that is too large.

    """
    entries = {
        path: entry
        for path, entry in list_files(objects, commit.tree).items()
        if path in TRUST_FILES or is_policy_path(path)
    }
    if len(entries) > FILE_LIMIT:
        raise CommitContentError(f"more than {FILE_LIMIT} policy files")
    files: dict[str, bytes] = {}
    total = 0
    for path, entry in entries.items():
        files[path] = read_blob(objects, entry, path, limit_octets=SIZE_LIMIT_OCTETS)
        total += len(files[path])
        if total > SNAPSHOT_LIMIT_OCTETS:
            raise CommitContentError(f"policy files of more than {SNAPSHOT_LIMIT_OCTETS} octets together")
    return Snapshot(commit_id=commit.commit_id, committer_unix_s=commit.committer_unix_s, files=files)
