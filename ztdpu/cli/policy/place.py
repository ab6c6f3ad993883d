"""Where `ztdpu policy` verbs read files: a directory, or a commit of a git repository in which one stands.

Git is asked for objects only (`ls-tree`, `cat-file`, `log`, `status`): nothing is checked out and no hook runs.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ztdpu.cli.report import report
from ztdpu.errors import PolicyError, UsageError, ZtdpuError
from ztdpu.policy.example import EXAMPLE_POLICIES
from ztdpu.rpc.places import ADMIN_SOCKET_OF_LAB, LAB_STATE

if TYPE_CHECKING:
    from ztdpu.policy.cluster import Cluster
    from ztdpu.policy.load import Known

EXAMPLE: Final = "the example cluster, as for `lab up`"
DirectoryOption = Annotated[
    Path, typer.Option("--policy", help="Directory of policy files.", show_default=EXAMPLE, resolve_path=False)
]
DirectoryArgument = Annotated[Path, typer.Argument(help="Directory of policy files.", show_default=EXAMPLE)]
_GIT_S: Final = 20
_ID_SHOWN: Final = 12


def short(directory: Path) -> Path:
    """The example cluster as seen from here, when here is the checkout; else what was given."""
    if directory == EXAMPLE_POLICIES and directory.is_relative_to(Path.cwd()):
        return directory.relative_to(Path.cwd())
    return directory


def read_or_exit(directory: Path, *, known: Known | None = None) -> Cluster:
    """Return the cluster in a directory; tell its faults and exit with 2, since 1 and 4 are answers."""
    from ztdpu.policy.load import load_directory

    gc.disable()  # short-lived, and a large cluster makes much that lives as long as the command
    try:
        return load_directory(short(directory), known=known)
    except PolicyError as error:
        report(error)
        raise typer.Exit(2) from None


def read_source(text: str, *, folder: Path, known: Known) -> Cluster:
    """Return the cluster of a directory, or of `folder` as it was in a commit. Raises UsageError; else as above."""
    if Path(text).is_dir():
        return read_or_exit(Path(text), known=known)
    from ztdpu.policy.load import load_files

    files = _files_of_commit(text, short(folder))
    try:
        return load_files(files, origin=text, known=known)
    except PolicyError as error:
        report(error)
        raise typer.Exit(2) from None


def last_commit(file: Path) -> str | None:
    """The commit that a file was last changed in; with a mark when it has been changed since. None outside of git."""
    commit = _git(file.parent, "log", "-1", "--format=%h", "--", file.name)
    if not commit:
        return None
    changed = _git(file.parent, "status", "--porcelain", "--", file.name)
    return f"{commit.decode().strip()}{', changed since' if changed else ''}"


def _files_of_commit(commit: str, folder: Path) -> dict[str, bytes]:
    if not folder.is_dir():
        raise UsageError(f"no such directory: {folder}", remedy="name it with --policy")
    if commit.startswith("-") or _git(folder, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}") is None:
        raise UsageError(
            f"{commit!r} is neither a directory nor a commit of the repository around {folder}",
            remedy="name two directories of policy files, or commits and --policy DIRECTORY",
        )
    listed = _git(folder, "ls-tree", "-r", "-z", commit, "--", ".") or b""
    files = {}
    for row in filter(None, listed.split(b"\0")):
        what, _, raw = row.partition(b"\t")
        mode, kind, name = what.decode().split()
        path = raw.decode("utf-8", errors="replace")
        if kind == "blob" and mode.startswith("100") and path.endswith((".yaml", ".yml")):
            files[path] = _git(folder, "cat-file", "blob", name) or b""
    return files


def _git(folder: Path, *words: str) -> bytes | None:
    """What git says there; None when it refuses or is not installed."""
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_GIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def note_other_policy(directory: Path) -> None:
    """Say on stderr when a control is at hand that reads its policy from elsewhere; nothing when none answers."""
    server = os.environ.get("ZTDPU_SERVER", "")
    state = Path(os.environ.get("ZTDPU_STATE") or LAB_STATE)
    if not server and not (state / ADMIN_SOCKET_OF_LAB).exists():
        return  # gRPC takes longer to import than all the rest
    from ztdpu.rpc.client import ControlClient

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        with ControlClient.connect(server or str((state / ADMIN_SOCKET_OF_LAB).absolute())) as client:
            standing = client.policy_status()
    except ZtdpuError:
        return
    enforced = Path(standing.source.name)
    if enforced.resolve() == directory.resolve():
        return
    commit = standing.source.commit_id[:_ID_SHOWN]
    in_force = f"commit {commit}" if commit else f"generation {standing.generation}"
    print(f"note: this answers for {directory}; control enforces {standing.source.name} ({in_force})", file=sys.stderr)
    if enforced.is_dir() and not commit:
        print(f"  next: --policy {enforced} asks about that one", file=sys.stderr)


def note(message: str) -> None:
    """Say on a terminal what takes a moment."""
    if sys.stderr.isatty():
        print(f"{message} ...", file=sys.stderr)
