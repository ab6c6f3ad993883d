"""Policy over ssh://, from a real SSH server on loopback: which host and which key count; nobody is asked."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ztdpu.control.configuration import GitPolicy
from ztdpu.control.source.git_mirror import GitMirror
from ztdpu.errors import UnreachableError

DROPBEAR = shutil.which("dropbear", path="/usr/sbin:/sbin:/usr/bin")
pytestmark = [
    pytest.mark.skipif(DROPBEAR is None, reason="dropbear is not installed (dropbear-bin)"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a home directory of the test's own wants root"),
]
START_S = 10


@dataclass(frozen=True)
class Server:
    folder: Path
    port: int
    tip: str

    def mirror(self, name: str, *, key: str = "deploy", hosts: str) -> GitMirror:
        known = self.folder / f"known_hosts_{name}"
        known.write_text(hosts)
        policy = GitPolicy(
            repository=f"ssh://root@127.0.0.1:{self.port}{self.folder}/policy.git",
            anchor="0" * 40,
            deploy_key_file=self.folder / key,
            known_hosts_file=known,
            deadline_s=20,
        )
        return GitMirror(self.folder / f"mirror_{name}", policy)

    def line(self, key: str) -> str:
        return f"[127.0.0.1]:{self.port} {(self.folder / f'{key}.pub').read_text()}"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    for key in ("deploy", "stranger", "other_host"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / key))
    said = run("dropbearkey", "-t", "ed25519", "-f", str(tmp_path / "host"))
    (tmp_path / "host.pub").write_text(next(line for line in said.splitlines() if line.startswith("ssh-")) + "\n")
    tree = str(tmp_path / "tree")
    run("git", "init", "-q", "-b", "main", tree)
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    run("git", "-C", tree, *identity, "commit", "-q", "--allow-empty", "--no-gpg-sign", "-m", "first")
    run("git", "clone", "-q", "--bare", tree, str(tmp_path / "policy.git"))
    home = tmp_path / "home" / ".ssh"
    home.mkdir(parents=True, mode=0o700)
    (home / "authorized_keys").write_text((tmp_path / "deploy.pub").read_text())
    (home / "authorized_keys").chmod(0o600)
    home.parent.chmod(0o700)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve = f'mount --bind {home.parent} /root && exec "$@"'
    words = [
        str(DROPBEAR),
        "-F",
        "-E",
        "-s",
        "-p",
        f"127.0.0.1:{port}",
        "-r",
        str(tmp_path / "host"),
        "-P",
        str(tmp_path / "pid"),
    ]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(["unshare", "-m", "sh", "-c", serve, "sh", *words], stdout=log, stderr=log)
    try:
        wait_for(port)
        yield Server(tmp_path, port, run("git", "-C", tree, "rev-parse", "HEAD").strip())
    finally:
        process.terminate()
        process.wait(timeout=START_S)


def run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def wait_for(port: int) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def test_ssh_wants_the_known_host_and_the_deploy_key(server: Server) -> None:
    good = server.mirror("good", hosts=server.line("host"))
    assert good.find_tip() == server.tip
    assert good.fetch() == server.tip
    for name, hosts in (("unknown", ""), ("changed", server.line("other_host"))):
        assert "Host key verification failed" in refusal(server.mirror(name, hosts=hosts))
    assert "Permission denied" in refusal(server.mirror("stranger", key="stranger", hosts=server.line("host")))


def refusal(mirror: GitMirror) -> str:
    with pytest.raises(UnreachableError) as caught:
        mirror.find_tip()
    return str(caught.value)
