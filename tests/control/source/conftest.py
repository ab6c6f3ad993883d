"""A policy repository made with real git, its signers, and a control that would read it."""

from __future__ import annotations

import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ztdpu.control.configuration import ControlConfiguration
from ztdpu.control.source.git_source import GitSource, Look
from ztdpu.lab.policy_repository import git, set_up_signing, write_key

SIGNERS = {
    # name: (type, principal, options)
    "ops": ("ed25519", "ops@example.org", 'namespaces="git"'),
    "rita": ("ecdsa256", "rita@example.org", 'namespaces="git"'),
    "peter": ("ecdsa384", "peter@example.org", ""),
    "old": ("ed25519", "ops@example.org", 'namespaces="git",valid-before="20250101Z"'),
    "early": ("ed25519", "ops@example.org", 'valid-after="20990101Z",namespaces="git"'),
    "filer": ("ed25519", "ops@example.org", 'namespaces="file"'),
    "stolen": ("ed25519", "ops@example.org", 'namespaces="git"'),
}
OWNERS = """\
apiVersion: ztdpu.dev/v1
kind: Owners
spec:
  rules:
    - {path: "**", principals: [ops@example.org]}
    - {path: tenants/red.yaml, principals: [ops@example.org, rita@example.org], tenants: [red]}
    - {path: "network/*red.yaml", principals: [rita@example.org], tenants: [red]}
    - {path: network/blue.yaml, principals: [ops@example.org, peter@example.org]}
"""
DOCUMENTS = {
    "devices/dpu-0.yaml": "kind: Device\nmetadata: {name: dpu-0}\n"
    "spec: {profile: bluefield-3, underlay: {address: 10.90.0.10}}\n",
    "tenants/red.yaml": "kind: Tenant\nmetadata: {name: red}\n",
    "tenants/blue.yaml": "kind: Tenant\nmetadata: {name: blue}\n",
    "network/red.yaml": "kind: NetworkPolicy\nmetadata: {name: red}\nspec: {tenant: red, policyTypes: [Ingress], endpointSelector: {}}\n",
    "network/blue.yaml": "kind: NetworkPolicy\nmetadata: {name: blue}\nspec: {tenant: blue, policyTypes: [Ingress], endpointSelector: {}}\n",
}


def document(text: str) -> str:
    return f"apiVersion: ztdpu.dev/v1\n{text}"


@dataclass
class Site:
    """A bare repository, a work tree, keys, and what control has accepted so far."""

    folder: Path
    keys: Path
    accepted: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    source_: GitSource | None = None

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def bare(self) -> Path:
        return self.folder / "policy.git"

    def git(self, *words: str, **environment: str) -> str:
        return git(self.work, *words, environment=environment)

    def write(self, files: dict[str, str | None]) -> None:
        for path, text in files.items():
            file = self.work / path
            if text is None:
                file.unlink()
            else:
                file.parent.mkdir(exist_ok=True, parents=True)
                file.write_text(text)

    def commit(
        self, files: dict[str, str | None] | None = None, *, by: str = "ops", date_unix_s: int | None = None
    ) -> str:
        """Commit files (None deletes), signed by `by` (empty: not at all), and give the id."""
        self.write(files or {})
        self.git("add", "--all", "--force")
        return self.commit_index(by=by, date_unix_s=date_unix_s)

    def commit_index(self, *, by: str = "ops", date_unix_s: int | None = None, words: tuple[str, ...] = ()) -> str:
        sign = [f"-c user.signingkey={self.keys / by}.pub", "-S"] if by else ["", "--no-gpg-sign"]
        environment = {"GIT_COMMITTER_DATE": f"{date_unix_s} +0000"} if date_unix_s is not None else {}
        self.git(*sign[0].split(), "commit", "--quiet", "--allow-empty", "-m", "x", sign[1], *words, **environment)
        return self.head

    @property
    def head(self) -> str:
        return self.git("rev-parse", "HEAD").strip()

    def put_object(self, kind: str, content: bytes) -> str:
        """Write an object as it is, however wrong."""
        words = ["git", "hash-object", "-t", kind, "--literally", "-w", "--stdin"]
        ended = subprocess.run(words, cwd=self.work, input=content, capture_output=True, check=True)
        return ended.stdout.decode().strip()

    def read_object(self, kind: str, name: str) -> bytes:
        return subprocess.run(["git", "cat-file", kind, name], cwd=self.work, capture_output=True, check=True).stdout

    def commit_tree(self, tree: str, *, by: str = "ops", parents: tuple[str, ...] = ("HEAD",)) -> str:
        """Commit a tree object that no index could hold, and point HEAD at it without a checkout."""
        words = [word for parent in parents for word in ("-p", parent)]
        sign = [f"-S{self.keys / by}.pub"] if by else []
        made = self.git("commit-tree", tree, *words, "-m", "x", *sign).strip()
        self.git("update-ref", "HEAD", made)
        return made

    def push(self, what: str = "HEAD") -> None:
        self.git("push", "--quiet", "--force", "origin", f"{what}:refs/heads/main")

    def source(self) -> GitSource:
        if self.source_ is None:
            git_ = {"repository": str(self.bare), "anchor": self.anchor, "pollS": 1, "deadlineS": 20}
            (self.folder / "revoked").touch()
            git_["revokedSignersFile"] = str(self.folder / "revoked")
            spec = {
                "trustDomain": "test.example",
                "stateDir": str(self.folder / "state"),
                "policyGit": git_,
                "listen": {"enrolment": "127.0.0.1:0", "main": "127.0.0.1:0"},
                "adminSocket": str(self.folder / "admin.sock"),
            }
            spec |= {name: str(self.folder / "none") for name in ROSTER_FIELDS}
            words = {"apiVersion": "ztdpu.dev/v1", "kind": "ControlConfiguration", "spec": spec}
            (self.folder / "state").mkdir(exist_ok=True)
            self.source_ = GitSource(ControlConfiguration.model_validate(words).spec)
        return self.source_

    @property
    def anchor(self) -> str:
        return self.git("rev-list", "--max-parents=0", "main").strip().splitlines()[-1]

    def look(self) -> Look:
        """Look as control does: refused raises, accepted moves on."""
        if not self.accepted:
            self.accepted = self.source().begin().commit_id
        look = self.source().look(self.accepted, now_unix_s=int(time.time()))
        if look.snapshot is not None:
            self.source()._load(look.snapshot.files, None)
            self.accepted = look.snapshot.commit_id
        return look


ROSTER_FIELDS = ("rosterFile", "rosterSignatureFile", "rosterKeysFile", "manufacturerRootsFile")


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy-template")
    keys = folder / "keys"
    keys.mkdir()
    lines = []
    for name, (kind, principal, options) in SIGNERS.items():
        if kind == "ed25519":
            write_key(keys / name)
        else:
            words = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", kind[-3:], "-N", "", "-C", "", "-f", str(keys / name)]
            subprocess.run(words, check=True)
        lines.append(
            " ".join(word for word in (principal, options, (keys / f"{name}.pub").read_text().strip()) if word)
        )
    write_key(keys / "mallory")
    git(folder, "init", "--quiet", "--bare", "--initial-branch=main", "policy.git")
    git(folder, "init", "--quiet", "--initial-branch=main", "work")
    site = Site(folder, keys)
    site.git("remote", "add", "origin", "../policy.git")
    set_up_signing(site.work, name="X", email="x@example.org", key=keys / "ops")
    files = {path: document(text) for path, text in DOCUMENTS.items()}
    files |= {"allowed_signers": "\n".join(lines) + "\n", "owners.yaml": OWNERS}
    files["revoked_signers"] = (keys / "stolen.pub").read_text()
    site.commit(files)
    site.push()
    site.look()  # with a mirror to begin with
    (folder / "accepted").write_text(site.accepted)
    return folder


@pytest.fixture
def site(template: Path, tmp_path: Path) -> Site:
    for part in ("work", "policy.git", "state"):
        shutil.copytree(template / part, tmp_path / part)
    site = Site(tmp_path, template / "keys", accepted=(template / "accepted").read_text())
    site.source()._tip_in_mirror = site.accepted
    return site
