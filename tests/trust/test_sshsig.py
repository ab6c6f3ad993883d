"""SSHSIG against the real ssh-keygen, both directions, and every refusal with its twin."""

from __future__ import annotations

import base64
import shutil
import subprocess

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from ztdpu.errors import ConfigurationError, RosterError
from ztdpu.trust import sshsig

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
MESSAGE = b"what the operator signs"

needs_ssh_keygen = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not here")


def verify(message=MESSAGE, signature=None, keys=None, namespace="ztdpu-roster"):
    return sshsig.verify(
        message,
        sshsig.sign(MESSAGE, KEY, namespace="ztdpu-roster") if signature is None else signature,
        (KEY.public_key(),) if keys is None else keys,
        namespace=namespace,
        refusal=RosterError,
    )


def public_line(key):
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def test_what_is_signed_verifies():
    assert verify() == KEY.public_key()
    assert verify(keys=(OTHER.public_key(), KEY.public_key())) == KEY.public_key()


@pytest.mark.parametrize(
    "changes",
    [
        {"message": b"what the operator signz"},
        {"message": b""},
        {"keys": ()},
        {"keys": (OTHER.public_key(),)},
        {"namespace": "git"},
        {"signature": ""},
        {"signature": "-----BEGIN SSH SIGNATURE-----\n-----END SSH SIGNATURE-----\n"},
        {"signature": "-----BEGIN SSH SIGNATURE-----\nU1NIU0lH\n-----END SSH SIGNATURE-----\n"},
        {"signature": "-----BEGIN SSH SIGNATURE-----\nU1NI*U0lH\n-----END SSH SIGNATURE-----\n"},
        {"signature": "-----BEGIN SSH SIGNATURE-----\nä\n-----END SSH SIGNATURE-----\n"},
        {"signature": "x" * 5000},
        {"signature": sshsig.sign(MESSAGE, KEY, namespace="git")},
        {"signature": sshsig.sign(MESSAGE, OTHER, namespace="ztdpu-roster")},
        {"signature": sshsig.sign(MESSAGE, KEY, namespace="ztdpu-roster").replace("SSH", "PGP")},
    ],
)
def test_refusals(changes):
    with pytest.raises(RosterError):
        verify(**changes)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_no_change_of_the_signature_is_accepted(data):
    armour = sshsig.sign(MESSAGE, KEY, namespace="ztdpu-roster")
    blob = bytearray(base64.b64decode("".join(armour.splitlines()[1:-1])))
    place = data.draw(st.integers(0, len(blob) - 1))
    blob[place] ^= data.draw(st.integers(1, 255))
    if data.draw(st.booleans()):
        del blob[place + 1 :]
    text = base64.b64encode(bytes(blob)).decode()
    with pytest.raises(RosterError):
        verify(signature=f"-----BEGIN SSH SIGNATURE-----\n{text}\n-----END SSH SIGNATURE-----\n")


def keygen(*arguments, message=b""):
    return subprocess.run(
        ["ssh-keygen", *map(str, arguments)], input=message, capture_output=True, timeout=20, check=False
    )


@needs_ssh_keygen
def test_ssh_keygen_accepts_ours(tmp_path):
    (tmp_path / "signers").write_text(f'operator namespaces="ztdpu-roster" {public_line(KEY)}\n')
    (tmp_path / "roster.sig").write_text(sshsig.sign(MESSAGE, KEY, namespace="ztdpu-roster"))
    command = ("-Y", "verify", "-f", tmp_path / "signers", "-I", "operator", "-n", "ztdpu-roster", "-s")
    assert keygen(*command, tmp_path / "roster.sig", message=MESSAGE).returncode == 0
    assert keygen(*command, tmp_path / "roster.sig", message=MESSAGE + b"x").returncode != 0


@needs_ssh_keygen
def test_we_accept_what_ssh_keygen_signs(tmp_path):
    key_file = tmp_path / "key"
    key_file.write_bytes(KEY.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    key_file.chmod(0o600)
    (tmp_path / "roster").write_bytes(MESSAGE)
    done = keygen("-Y", "sign", "-f", key_file, "-n", "ztdpu-roster", tmp_path / "roster")
    assert done.returncode == 0, done.stderr
    armour = (tmp_path / "roster.sig").read_text()
    assert verify(signature=armour) == KEY.public_key()
    assert armour == sshsig.sign(MESSAGE, KEY, namespace="ztdpu-roster")
    with pytest.raises(RosterError):
        verify(signature=armour, message=MESSAGE + b"x")


@needs_ssh_keygen
def test_other_key_types_are_refused(tmp_path):
    keygen("-q", "-t", "ecdsa", "-N", "", "-f", tmp_path / "key")
    (tmp_path / "roster").write_bytes(MESSAGE)
    keygen("-Y", "sign", "-f", tmp_path / "key", "-n", "ztdpu-roster", tmp_path / "roster")
    with pytest.raises(RosterError):
        verify(signature=(tmp_path / "roster.sig").read_text())
    with pytest.raises(ConfigurationError, match="keys:1"):
        sshsig.parse_public_keys((tmp_path / "key.pub").read_text(), file="keys")


def test_key_files():
    text = f"# operators\n\n{public_line(KEY)} alice@example.org\n  {public_line(OTHER)}\n"
    assert sshsig.parse_public_keys(text, file="keys") == (KEY.public_key(), OTHER.public_key())
    for wrong, where in (
        ("", "keys"),
        ("# nobody\n", "keys"),
        (f"{public_line(KEY)}\nssh-ed25519 AAAA\n", "keys:2"),
        ("nonsense\n", "keys:1"),
        (f'namespaces="x" {public_line(KEY)}\n', "keys:1"),
        (f"{public_line(KEY)}\n" * 65, "keys"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            sshsig.parse_public_keys(wrong, file="keys")
        assert str(caught.value.where).startswith(where)
