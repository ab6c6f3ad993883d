"""allowed_signers: what is read, what is refused with its line, and that ssh-keygen agrees about validity."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from ztdpu.errors import CommitContentError, CommitSignatureError
from ztdpu.policy.git.allowed_signers import find_principals, parse_allowed_signers, parse_revoked_signers

PRIVATE = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
KEY = PRIVATE.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
RSA = rsa.generate_private_key(65537, 2048).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
P521 = (
    ec.generate_private_key(ec.SECP521R1()).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
)


def unix_s(*numbers: int) -> int:
    return int(datetime(*numbers, tzinfo=UTC).timestamp())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "principals", "after", "before"),
    [
        (f"a@example.org {KEY}", {"a@example.org"}, None, None),
        (f"a,b,c {KEY} a comment", {"a", "b", "c"}, None, None),
        (f'a namespaces="git" {KEY}', {"a"}, None, None),
        (f'a namespaces="file,git" {KEY}', {"a"}, None, None),
        (f'a valid-before="20270101Z",namespaces="git" {KEY}', {"a"}, None, unix_s(2027, 1, 1)),
        (f'a valid-after="202612011230Z" {KEY}', {"a"}, unix_s(2026, 12, 1, 12, 30), None),
        (f'a VALID-AFTER="20261201123015Z" {KEY}', {"a"}, unix_s(2026, 12, 1, 12, 30, 15), None),
    ],
)
def test_lines_that_are_read(line: str, principals: set[str], after: int | None, before: int | None) -> None:
    [signer] = parse_allowed_signers(f"# comment\n\n{line}\n", file="f")
    assert (signer.principals, signer.valid_after_unix_s, signer.valid_before_unix_s) == (principals, after, before)
    assert signer.line == 3


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a", "a key is missing"),
        (f"* {KEY}", "no plain name"),
        (f"*@example.org {KEY}", "no plain name"),
        (f"!a {KEY}", "no plain name"),
        (f"a,,b {KEY}", "no plain name"),
        (f"a cert-authority {KEY}", "'cert-authority' is refused"),
        (f'a cert-authority,namespaces="git" {KEY}', "'cert-authority' is refused"),
        (f"a namespaces=git {KEY}", "cannot read the options"),
        (f'a namespaces="g*t" {KEY}', "no plain name"),
        (f'a namespaces="git",namespaces="git" {KEY}', "twice"),
        (f'a valid-before="20270101" {KEY}', "no time in UTC"),
        (f'a valid-before="20271301Z" {KEY}', "no time in UTC"),
        (f'a valid-before="tomorrowZ" {KEY}', "no time in UTC"),
        (f"a verify-required {KEY}", "'verify-required' is refused"),
        (f"a {RSA}", "ssh-rsa are refused"),
        (f"a {P521}", "ecdsa-sha2-nistp521 are refused"),
        ("a ssh-ed25519 AA!A", "not base64"),
        ("a ssh-ed25519 AAAA", "cut short"),
        (f"a ecdsa-sha2-nistp256 {KEY.split()[1]}", "of type ssh-ed25519"),
        (f"a ssh-ed25519-cert-v01@openssh.com {KEY.split()[1]}", "are refused"),
    ],
)
def test_lines_that_are_refused_with_their_place(line: str, words: str) -> None:
    with pytest.raises(CommitContentError) as refused:
        parse_allowed_signers(f"good {KEY}\n{line}\n", file="f")
    assert words in str(refused.value)
    assert str(refused.value.where) == "f:2"


@pytest.mark.parametrize("text", ["", "# nobody\n", f'a namespaces="file" {KEY}\n', f"a {KEY}\r\n", f"a {KEY}\0\n"])
def test_files_without_a_key_or_with_odd_ends_are_refused(text: str) -> None:
    with pytest.raises(CommitContentError):
        parse_allowed_signers(text, file="f")


def test_lines_of_other_namespaces_are_left_out() -> None:
    signers = parse_allowed_signers(f'filer namespaces="file" {KEY}\ngitter namespaces="git" {KEY}\n', file="f")
    assert [signer.principals for signer in signers] == [{"gitter"}]


def test_a_key_counts_at_the_commits_date_and_today() -> None:
    signers = parse_allowed_signers(
        f'new valid-after="20260101Z" {KEY}\nold valid-before="20260101Z" {KEY}\n', file="f"
    )
    key, turn = signers[0].key, unix_s(2026, 1, 1)

    def ask(committed: int, now: int) -> frozenset[str]:
        return find_principals(signers, key, committed_unix_s=committed, now_unix_s=now)

    assert ask(turn, turn) == {"new"}
    assert ask(turn - 1, turn - 1) == {"old"}
    with pytest.raises(CommitSignatureError, match="outside its validity"):
        ask(turn - 1, turn)  # back-dated below the end of the old line


def test_revoked_keys_by_key_and_by_fingerprint() -> None:
    [signer] = parse_allowed_signers(f"a {KEY}", file="f")
    by_key = parse_revoked_signers(f"{KEY} stolen\n", file="f")
    assert (
        by_key == parse_revoked_signers(f"# stolen\n{signer.key.fingerprint}\n", file="f") == {signer.key.fingerprint}
    )
    assert parse_revoked_signers("", file="f") == frozenset()
    for text in ("SSHKRL\n", "stolen\n", f"a {KEY}\n"):
        with pytest.raises(CommitContentError):
            parse_revoked_signers(text, file="f")


@pytest.mark.parametrize(
    ("options", "moment"),
    [
        ("", "20260601Z"),
        ('namespaces="git"', "20260601Z"),
        ('namespaces="file"', "20260601Z"),
        ('valid-after="20260601Z"', "20260601Z"),
        ('valid-after="20260602Z"', "20260601Z"),
        ('valid-before="20260531Z"', "20260601Z"),  # in the very second ssh-keygen still takes it, we do not
        ('valid-before="20260602Z"', "20260601Z"),
    ],
)
def test_ssh_keygen_agrees(tmp_path: Path, options: str, moment: str) -> None:
    line = f"a {options} {KEY}".replace("  ", " ")
    (tmp_path / "key").write_bytes(PRIVATE.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "signers").write_text(f"{line}\n")
    (tmp_path / "text").write_text("x")
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-n", "git", "-f", "key", "text"], cwd=tmp_path, check=True)
    words = ["ssh-keygen", "-Y", "verify", "-n", "git", "-f", "signers", "-I", "a", "-s", "text.sig"]
    theirs = subprocess.run(
        [*words, "-O", f"verify-time={moment}"], cwd=tmp_path, input="x", text=True, capture_output=True, check=False
    )
    try:
        signers = parse_allowed_signers(f"{line}\n", file="f")
        find_principals(signers, signers[0].key, committed_unix_s=unix_s(2026, 6, 1), now_unix_s=unix_s(2026, 6, 1))
        ours = 0
    except (CommitContentError, CommitSignatureError):
        ours = 255
    assert ours == theirs.returncode, theirs.stdout + theirs.stderr


@given(st.text(alphabet=st.sampled_from('abc*,!= "\n#\tZ1-@gitnamespcv') | st.characters(), max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_allowed_signers, parse_revoked_signers):
        try:
            parse(text, file="f")
        except CommitContentError:
            continue
