"""A bare mirror of the policy branch below control's state directory, and the objects in it.

Called by `git_source` in a thread of its own. Fetches and reads; decides nothing. What it gives is unverified: the
hashes of objects are checked by `policy.git.objects`.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ztdpu.control.configuration import GitPolicy
from ztdpu.control.source.git_process import FETCH_LIMIT_OCTETS, Git
from ztdpu.errors import CommitContentError, CommitError, StateError, UnreachableError

MIRROR_LIMIT_OCTETS: Final = 512 * 1024 * 1024
TIP_REF: Final = "refs/ztdpu/tip"
ACCEPTED_REF: Final = "refs/ztdpu/accepted"
_HEADER_LIMIT_OCTETS: Final = 256
_FSCK: Final = re.compile(r"fsck error|^git fetch: error: (object [0-9a-f]+: |bad [a-z ]+ in commit|bogus )")


class GitMirror:
    """One repository, one branch."""

    def __init__(self, directory: Path, policy: GitPolicy) -> None:
        self._directory = directory
        self._policy = policy
        self._git = Git(policy)

    def find_tip(self) -> str:
        """Ask the repository what the branch stands at.

        Raises:
            UnreachableError: no answer, or no such branch.

        """
        policy = self._policy
        words = ["ls-remote", "--refs", "--", policy.repository, policy.ref]
        for line in self._git.run(words, deadline=self._deadline()).decode("ascii", errors="replace").splitlines():
            commit_id, _, ref = line.partition("\t")
            if ref == policy.ref:
                return commit_id
        raise UnreachableError(f"{policy.repository} has no {policy.ref}", remedy="push the branch, or mend ref")

    def fetch(self) -> str:
        """Bring what the branch stands at now into the mirror; its id.

        Raises:
            UnreachableError: it did not work, for whatever reason.
            CommitContentError: the repository is larger than what is kept.

        """
        policy, deadline = self._policy, self._deadline()
        self._make(deadline)
        words = ["fetch", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head", "--no-auto-maintenance"]
        words += ["--no-show-forced-updates", "--quiet", "--", policy.repository, f"+{policy.ref}:{TIP_REF}"]
        try:
            self._git.run([self._where, *words], deadline=deadline)
        except UnreachableError as error:
            self._clear_rests()
            raise _content_error(error) or error from None
        self._check_size()
        tip = self._git.run([self._where, "rev-parse", "--verify", "--end-of-options", TIP_REF], deadline=deadline)
        return tip.decode("ascii", errors="replace").strip()

    def stands_at(self, commit_id: str) -> bool:
        """Whether the last fetch brought this commit and is still there: the mirror may be deleted at any time."""
        words = [self._where, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{TIP_REF}^{{commit}}"]
        try:
            return (
                self._git.run(words, deadline=self._deadline()).decode("ascii", errors="replace").strip() == commit_id
            )
        except UnreachableError:
            return False

    def keep(self, commit_id: str) -> None:
        """Point the mirror's own reference at an accepted commit, so that nothing takes its objects away."""
        words = [self._where, "update-ref", ACCEPTED_REF, commit_id]
        self._git.run(words, deadline=self._deadline())

    @contextmanager
    def objects(self) -> Iterator[GitObjects]:
        """Read objects; the deadline is one for all of them."""
        reader = GitObjects(self._git, self._where, self._deadline())
        try:
            yield reader
        finally:
            reader.close()

    def close(self) -> None:
        """End whatever git does, from another thread."""
        self._git.close()

    @property
    def _where(self) -> str:
        return f"--git-dir={self._directory}"

    def _deadline(self) -> float:
        return time.monotonic() + self._policy.deadline_s

    def _make(self, deadline: float) -> None:
        if (self._directory / "HEAD").exists():
            return
        shutil.rmtree(self._directory, ignore_errors=True)
        form = "sha256" if len(self._policy.anchor) == 64 else "sha1"
        words = ["init", "--bare", "--quiet", "--template=", f"--object-format={form}", "--", str(self._directory)]
        self._git.run(words, deadline=deadline)
        self._directory.chmod(0o700)

    def _clear_rests(self) -> None:
        """A fetch that was ended leaves its half pack behind."""
        for rest in self._directory.glob("objects/pack/tmp_*"):
            rest.unlink(missing_ok=True)
        for rest in self._directory.glob("objects/tmp_*"):
            shutil.rmtree(rest, ignore_errors=True)

    def _check_size(self) -> None:
        octets = sum(path.stat().st_size for path in self._directory.rglob("*") if path.is_file())
        if octets > MIRROR_LIMIT_OCTETS:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise CommitContentError(
                f"the branch needs {octets // 2**20} MiB, at most {MIRROR_LIMIT_OCTETS // 2**20} are kept",
                remedy="keep policy in a repository of its own",
            )


def _content_error(error: UnreachableError) -> CommitContentError | None:
    """What git did not take in because of what it is, which is no matter of reaching the repository."""
    if "died of signal" in error.message:
        return CommitContentError(
            f"the branch needs more than {FETCH_LIMIT_OCTETS // 2**20} MiB at once",
            remedy="keep policy in a repository of its own",
        )
    if _FSCK.search(error.message):
        return CommitContentError(error.message, remedy="git fsck --strict in the repository tells more")
    return None


class GitObjects:
    """`git cat-file --batch`, one process for a whole look at history. Implements `policy.git.objects.Objects`."""

    def __init__(self, git: Git, where: str, deadline: float) -> None:
        self._git, self._where, self._deadline = git, where, deadline
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = bytearray()

    def read(self, object_id: str, kind: str, *, limit_octets: int) -> bytes:
        """See `policy.git.objects.Objects`. UnreachableError when git does not answer in time."""
        if not object_id.isascii() or not object_id.isalnum():
            raise CommitError(f"{object_id[:64]!r} is no object id")
        process = self._process = self._process or self._git.start([self._where, "cat-file", "--batch"])
        assert process.stdin
        try:
            process.stdin.write(f"{object_id}\n".encode())
            process.stdin.flush()
        except OSError:
            raise StateError("git ended while objects were read", remedy="delete the mirror below stateDir") from None
        words = self._line().split(" ")
        if len(words) != 3 or not words[2].isdigit():
            raise CommitError(f"the {kind} {object_id[:12]} is missing")
        size = int(words[2])
        if words[1] != kind or size > limit_octets:
            self.close()  # what would follow is not wanted
            if words[1] != kind:
                raise CommitError(f"{object_id[:12]} is a {words[1]}, and a {kind} is wanted")
            raise CommitError(f"{size} octets, at most {limit_octets} are read", remedy="make it smaller")
        content = self._take(size)
        self._take(1)
        return content

    def close(self) -> None:
        """End git."""
        if self._process is not None:
            self._git.end(self._process)
            self._process = None
            self._buffer.clear()

    def _line(self) -> str:
        while b"\n" not in self._buffer:
            if len(self._buffer) > _HEADER_LIMIT_OCTETS:
                raise StateError("git gives an unknown answer", remedy="which git is installed?")
            self._more()
        end = self._buffer.index(b"\n")
        return self._take(end + 1)[:-1].decode("ascii", errors="replace")

    def _take(self, octets: int) -> bytes:
        while len(self._buffer) < octets:
            self._more()
        taken = bytes(self._buffer[:octets])
        del self._buffer[:octets]
        return taken

    def _more(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        left_s = self._deadline - time.monotonic()
        if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
            raise UnreachableError("git did not give its objects before the deadline", remedy="raise deadlineS")
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            raise StateError("git ended while objects were read", remedy="delete the mirror below stateDir")
        self._buffer += chunk
