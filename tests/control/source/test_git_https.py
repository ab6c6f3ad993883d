"""Policy over https://, from a real TLS server on loopback: whose certificate counts, and where nobody is followed."""

from __future__ import annotations

import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ztdpu.control.configuration import GitPolicy
from ztdpu.control.source.git_mirror import GitMirror
from ztdpu.control.source.git_process import git_command, git_environment
from ztdpu.errors import UnreachableError


class Files(SimpleHTTPRequestHandler):
    """A folder; what is below /moved/ is said to be elsewhere, in the same folder."""

    def do_GET(self) -> None:
        if self.path.startswith("/moved/"):
            self.send_response(301)
            self.send_header("Location", self.path.removeprefix("/moved"))
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def make_certificate(folder: Path, name: str) -> Path:
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    words += ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    words += ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")]
    subprocess.run(words, check=True, capture_output=True)
    return folder / f"{name}.pem"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, str, Path]]:
    """(URL, tip, the server's certificate)."""
    bare = tmp_path / "www" / "policy.git"
    tree = tmp_path / "tree"
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (
        ["init", "-q", "-b", "main", str(tree)],
        ["-C", str(tree), *identity, "commit", "-q", "--allow-empty", "--no-gpg-sign", "-m", "first"],
        ["clone", "-q", "--bare", str(tree), str(bare)],
        ["-C", str(bare), "update-server-info"],
    ):
        subprocess.run(["git", *words], check=True, capture_output=True)
    tip = subprocess.run(["git", "-C", str(tree), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    certificate = make_certificate(tmp_path, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, tmp_path / "server.key")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(tmp_path / "www")))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}", tip.stdout.strip(), certificate
    server.shutdown()
    server.server_close()
    thread.join()


def mirror(folder: Path, url: str, ca_file: Path | None) -> GitMirror:
    return GitMirror(folder, GitPolicy(repository=url, anchor="0" * 40, ca_file=ca_file, deadline_s=20))


def test_https_is_fetched_from_whoever_the_named_authority_vouches_for(
    tmp_path: Path, served: tuple[str, str, Path]
) -> None:
    url, tip, certificate = served
    good = mirror(tmp_path / "good", f"{url}/policy.git", certificate)
    assert good.find_tip() == tip
    assert good.fetch() == tip
    for ca_file in (None, make_certificate(tmp_path, "another")):
        with pytest.raises(UnreachableError, match="certificate"):
            mirror(tmp_path / "bad", f"{url}/policy.git", ca_file).find_tip()


@pytest.mark.skipif(os.geteuid() != 0, reason="another /etc/ssl/certs wants root")
def test_a_named_authority_stands_in_the_place_of_the_machines(tmp_path: Path, served: tuple[str, str, Path]) -> None:
    url, tip, certificate = served
    machine = tmp_path / "machine"
    machine.mkdir()
    (machine / "ca-certificates.crt").write_bytes(certificate.read_bytes())
    (machine / "server.pem").write_bytes(certificate.read_bytes())

    def ask(ca_file: Path | None) -> subprocess.CompletedProcess[str]:
        policy = GitPolicy(repository=f"{url}/policy.git", anchor="0" * 40, ca_file=ca_file)
        trusting = ["unshare", "-m", "sh", "-c", f'mount --bind {machine} /etc/ssl/certs && exec "$@"', "sh"]
        words = [*trusting, *git_command(policy, ["ls-remote", policy.repository])]
        return subprocess.run(words, env=git_environment(policy), capture_output=True, text=True, check=False)

    for ca_file in (None, certificate):
        assert tip in ask(ca_file).stdout
    assert "certificate" in ask(make_certificate(tmp_path, "another")).stderr


def test_a_redirect_is_not_followed(tmp_path: Path, served: tuple[str, str, Path]) -> None:
    url, tip, certificate = served
    assert mirror(tmp_path / "straight", f"{url}/policy.git", certificate).find_tip() == tip
    with pytest.raises(UnreachableError, match=r"301|redirect"):
        mirror(tmp_path / "moved", f"{url}/moved/policy.git", certificate).find_tip()
