"""The mirror against a network that is silent and a repository that is large; what git would ask is refused."""

from __future__ import annotations

import secrets
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from ztdpu.control.configuration import GitPolicy
from ztdpu.control.source import git_mirror, git_process
from ztdpu.control.source.git_mirror import GitMirror
from ztdpu.control.source.git_process import Git
from ztdpu.errors import CommitContentError, CommitError, UnreachableError
from ztdpu.lab.policy_repository import git, set_up_signing

ANCHOR = "0" * 40


def processes_with(word: str) -> list[str]:
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if word in line and "ps -eo" not in line]


@pytest.mark.parametrize("scheme", ["https", "ssh"])
def test_a_server_that_says_nothing_is_given_up_at_the_deadline(tmp_path: Path, scheme: str) -> None:
    files = {"deploy_key_file": tmp_path / "key", "known_hosts_file": tmp_path / "hosts"} if scheme == "ssh" else {}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}/policy.git"
        mirror = GitMirror(tmp_path / "m", GitPolicy(repository=url, anchor=ANCHOR, deadline_s=1, **files))
        start = time.monotonic()
        with pytest.raises(UnreachableError, match=r"deadline|timed out"):
            mirror.find_tip()
        assert time.monotonic() - start < 10
        port = str(silent.getsockname()[1])
        assert not processes_with(url), "all that was started is gone"
        assert not [line for line in processes_with(port) if "ssh" in line]


@pytest.mark.parametrize("name", ["two words", "per%cent", "~root", "a$HOME", 'a"b', "a\nb"])
def test_a_path_that_ssh_would_read_otherwise_is_refused(name: str) -> None:
    good = {"deploy_key_file": Path("/k/deploy_key-1.ed25519"), "known_hosts_file": Path("/k/known_hosts")}
    GitPolicy(repository="ssh://git@example.org/p.git", anchor=ANCHOR, **good)
    for field in good:
        with pytest.raises(ValueError, match="ssh would read another path"):
            GitPolicy(repository="ssh://git@example.org/p.git", anchor=ANCHOR, **(good | {field: Path("/k") / name}))


def test_ssh_asks_nobody(tmp_path: Path) -> None:
    """A host whose key is not known: refused at once, without a question; nothing listens there anyway."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    files = {name: tmp_path / name for name in ("key", "known_hosts")}
    for file in files.values():
        file.touch(0o600)
    policy = GitPolicy(
        repository=f"ssh://git@127.0.0.1:{port}/policy.git",
        anchor=ANCHOR,
        deploy_key_file=files["key"],
        known_hosts_file=files["known_hosts"],
    )
    command = git_process.git_environment(policy)["GIT_SSH_COMMAND"]
    for option in (
        "BatchMode=yes",
        "StrictHostKeyChecking=yes",
        f"UserKnownHostsFile={files['known_hosts']}",
        "-F /dev/null",
    ):
        assert option in command
    with pytest.raises(UnreachableError, match="Connection refused"):
        GitMirror(tmp_path / "m", policy).find_tip()


@pytest.mark.parametrize(
    "url", ["ext::sh -c touch% mark", "git://127.0.0.1/x", "http://127.0.0.1/x", "relative/path", "-u/x", "file://-x"]
)
def test_other_ways_are_refused_by_the_start_up_file(url: str) -> None:
    with pytest.raises(ValueError, match="repository"):
        GitPolicy(repository=url, anchor=ANCHOR)
    assert GitPolicy(repository="file:///srv/policy.git", anchor=ANCHOR)


@pytest.mark.parametrize(
    "ref", ["main", "refs/tags/v1", "refs/heads/../x", "refs/heads/-x", "refs/heads/a b", "refs/heads/x.lock"]
)
def test_a_ref_is_a_branch_in_full(ref: str) -> None:
    with pytest.raises(ValueError, match="ref"):
        GitPolicy(repository="/srv/policy.git", anchor=ANCHOR, ref=ref)


def test_a_repository_that_is_too_large_is_refused_and_leaves_nothing(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.look()
    monkeypatch.setattr(git_process, "FETCH_LIMIT_OCTETS", 256 * 1024)
    (site.work / "film.bin").write_bytes(secrets.token_bytes(1024 * 1024))
    site.commit()
    site.push()
    with pytest.raises(CommitContentError, match="MiB at once"):
        site.look()
    assert not list((site.folder / "state/policy.git").rglob("tmp_*"))
    monkeypatch.setattr(git_process, "FETCH_LIMIT_OCTETS", 64 * 1024 * 1024)
    monkeypatch.setattr(git_mirror, "MIRROR_LIMIT_OCTETS", 512 * 1024)
    with pytest.raises(CommitContentError, match="are kept"):
        site.look()
    monkeypatch.undo()
    assert site.look().snapshot is not None, "the same repository, within bounds"


def test_objects_are_what_they_are_asked_for_as(site: Any) -> None:
    git = Git(GitPolicy(repository=str(site.bare), anchor=ANCHOR))
    objects = git_mirror.GitObjects(git, f"--git-dir={site.bare}", time.monotonic() + 20)
    assert objects.read(site.head, "commit", limit_octets=10_000)
    for name, kind, limit in (
        (site.head, "tree", 10_000),
        (site.head, "commit", 10),
        ("1" * 40, "commit", 10_000),
        ("HEAD x", "commit", 9),
    ):
        with pytest.raises(CommitError):
            objects.read(name, kind, limit_octets=limit)
        assert objects.read(site.head, "commit", limit_octets=10_000), "and goes on"
    objects.close()


def test_a_repository_with_sha256_names_is_read_as_well(site: Any) -> None:
    folder = site.folder
    for part in ("policy.git", "work/.git", "state"):
        shutil.rmtree(folder / part)
    git(folder, "init", "--quiet", "--bare", "--object-format=sha256", "--initial-branch=main", "policy.git")
    git(folder, "init", "--quiet", "--object-format=sha256", "--initial-branch=main", "work")
    site.git("remote", "add", "origin", "../policy.git")
    set_up_signing(site.work, name="X", email="x@example.org", key=site.keys / "ops")
    site.commit()
    site.source_, site.accepted = None, ""
    site.push()
    assert site.look().snapshot is None
    assert len(site.accepted) == 64
    site.commit({"notes": "x\n"})
    site.push()
    assert [step.signer for step in site.look().steps] == ["ops@example.org"]
    site.commit(by="")
    site.push()
    with pytest.raises(CommitError, match="is not signed"):
        site.look()
