"""A git repository for a lab's policy: a bare one that control reads, a work tree to edit in, a key to sign with.

    DIR/policy.git     what control fetches from
    DIR/work           a clone of it, set up so that `git commit` signs
    DIR/operator       private key of the one who owns every path (0600)

Called by `lab up --policy-git` and by tests. Runs git and ssh-keygen, as a person would.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from ztdpu.errors import MachineError, UsageError

OPERATOR: Final = "operator@lab.example"
BRANCH: Final = "main"
_OWNERS: Final = """\
apiVersion: ztdpu.dev/v1
kind: Owners
spec:
  rules:
    - {{path: "**", principals: ["{operator}"]}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRepository:
    """Where it is."""

    directory: Path
    anchor: str
    """Id of the first commit."""

    @property
    def bare(self) -> Path:
        """What control reads."""
        return self.directory / "policy.git"

    @property
    def work(self) -> Path:
        """Where one edits."""
        return self.directory / "work"

    @property
    def key(self) -> Path:
        """The operator's private key."""
        return self.directory / "operator"


def make_policy_repository(directory: Path, documents: Path) -> PolicyRepository:
    """Make it from a directory of policy files; the first commit is signed, and is the anchor.

    Raises:
        UsageError: the directory is there already and not empty.
        MachineError: git or ssh-keygen is missing, or failed.

    """
    if directory.exists() and any(directory.iterdir()):
        was_ours = (directory / "policy.git").is_dir() and (directory / "work").is_dir()
        again = f"; with --policy {directory}/work it begins with the policy of this one" if was_ours else ""
        raise UsageError(
            f"{directory} is not empty",
            remedy=f"name a new directory for the policy repository with --policy-git{again}",
        )
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    repository = PolicyRepository(directory=directory, anchor="")
    public = write_key(repository.key)
    git(directory, "init", "--quiet", "--bare", f"--initial-branch={BRANCH}", str(repository.bare))
    git(directory, "clone", "--quiet", str(repository.bare), str(repository.work))
    set_up_signing(repository.work, name="Operator", email=OPERATOR, key=repository.key)
    shutil.copytree(documents, repository.work, dirs_exist_ok=True)
    (repository.work / "allowed_signers").write_text(f'{OPERATOR} namespaces="git" {public}\n')
    (repository.work / "owners.yaml").write_text(_OWNERS.format(operator=OPERATOR))
    git(repository.work, "add", "--all")
    git(repository.work, "commit", "--quiet", "--message", "Policy of the lab")
    git(repository.work, "push", "--quiet", "origin", f"HEAD:refs/heads/{BRANCH}")
    anchor = git(repository.work, "rev-parse", "HEAD").strip()
    return PolicyRepository(directory=directory, anchor=anchor)


def write_key(path: Path) -> str:
    """Write a fresh Ed25519 key in OpenSSH's format, 0600, and `.pub` beside it; its public line."""
    private = Ed25519PrivateKey.generate()
    text = private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123 - a descriptor
        file.write(text)
    public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    path.with_suffix(".pub").write_text(f"{public}\n")
    return public


def set_up_signing(work: Path, *, name: str, email: str, key: Path) -> None:
    """Let `git commit` in a work tree sign by this key."""
    settings = {
        "user.name": name,
        "user.email": email,
        "gpg.format": "ssh",
        "user.signingkey": str(key.with_suffix(".pub")),
        "gpg.ssh.allowedSignersFile": str(work / "allowed_signers"),
        "commit.gpgsign": "true",
    }
    for word, value in settings.items():
        git(work, "config", word, value)


def git(directory: Path, *words: str, environment: Mapping[str, str] | None = None) -> str:
    """Run git in a directory and give what it printed; MachineError with its own words when it fails."""
    own = {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": str(directory),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_TERMINAL_PROMPT": "0",
    }
    try:
        ended = subprocess.run(
            ["git", *words],
            cwd=directory,
            env=own | dict(environment or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except OSError as error:
        raise MachineError(f"cannot run git: {error.strerror}", remedy="install git and openssh-client") from error
    if ended.returncode:
        raise MachineError(f"git {words[0]}: {ended.stderr.strip()[:500]}", remedy="are git and ssh-keygen installed?")
    return ended.stdout
