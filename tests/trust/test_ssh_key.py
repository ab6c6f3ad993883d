"""Keys and signatures of OpenSSH: ssh-keygen makes them, we verify; we make those of a security key, ssh-keygen verifies."""

from __future__ import annotations

import base64
import hashlib
import struct
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from ztdpu.errors import CommitSignatureError
from ztdpu.trust.ssh_key import SK_ECDSA, SK_ED25519, SshKey, parse_blob, read_key
from ztdpu.trust.sshsig import name_signer, verify_by_any

MESSAGE = b"what is signed"


def string(octets: bytes) -> bytes:
    return struct.pack(">I", len(octets)) + octets


def keygen(folder: Path, *words: str) -> SshKey:
    subprocess.run(["ssh-keygen", "-q", "-N", "", "-C", "", "-f", folder / "key", *words], check=True)
    return read_key(*(folder / "key.pub").read_text().split()[:2], refusal=CommitSignatureError)


def sign(folder: Path, namespace: str = "git", *options: str) -> str:
    (folder / "text").write_bytes(MESSAGE)
    (folder / "text.sig").unlink(missing_ok=True)
    words = ["ssh-keygen", "-q", "-Y", "sign", "-n", namespace, *options, "-f", "key", "text"]
    subprocess.run(words, cwd=folder, check=True)
    return (folder / "text.sig").read_text()


@pytest.mark.parametrize("words", [("-t", "ed25519"), ("-t", "ecdsa", "-b", "256"), ("-t", "ecdsa", "-b", "384")])
def test_what_ssh_keygen_signs_verifies_and_nothing_else(tmp_path: Path, words: tuple[str, ...]) -> None:
    key = keygen(tmp_path, *words)
    signature = sign(tmp_path)

    def verify(message: bytes = MESSAGE, keys: tuple[SshKey, ...] = (key,), namespace: str = "git") -> SshKey:
        return verify_by_any(message, signature, keys, namespace=namespace, refusal=CommitSignatureError)

    assert verify() is key
    assert name_signer(signature, namespace="git", refusal=CommitSignatureError).fingerprint == key.fingerprint
    listed = subprocess.run(
        ["ssh-keygen", "-l", "-f", tmp_path / "key.pub"], capture_output=True, text=True, check=True
    )
    assert listed.stdout.split()[1] == key.fingerprint
    with pytest.raises(CommitSignatureError, match="does not match"):
        verify(MESSAGE + b".")
    with pytest.raises(CommitSignatureError, match="not allowed"):
        verify(keys=())
    with pytest.raises(CommitSignatureError, match="another namespace"):
        verify(namespace="file")
    other = sign(tmp_path, "git", "-O", "hashalg=sha256")
    with pytest.raises(CommitSignatureError, match="SHA-512"):
        verify_by_any(MESSAGE, other, [key], namespace="git", refusal=CommitSignatureError)


@pytest.mark.parametrize("words", [("-t", "rsa", "-b", "2048"), ("-t", "ecdsa", "-b", "521")])
def test_other_types_are_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(CommitSignatureError, match="are refused"):
        keygen(tmp_path, *words)


# --- security keys: the token's part played here, ssh-keygen checks that it is played right ---


def ed25519_token() -> tuple[bytes, bytes]:
    private = Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    blob = string(SK_ED25519.encode()) + string(public) + string(b"ssh:")
    return blob, private.private_bytes_raw()


def token_signature(kind: str, secret: object, signed: bytes, *, flags: int = 1, counter: int = 7) -> bytes:
    tail = struct.pack(">BI", flags, counter)
    message = hashlib.sha256(b"ssh:").digest() + tail + hashlib.sha256(signed).digest()
    if kind == SK_ED25519:
        raw = Ed25519PrivateKey.from_private_bytes(secret).sign(message)  # type: ignore[arg-type]
    else:
        r, s = decode_dss_signature(secret.sign(message, ec.ECDSA(SHA256())))  # type: ignore[attr-defined]
        raw = b"".join(string(number.to_bytes(number.bit_length() // 8 + 1)) for number in (r, s))
    return string(kind.encode()) + string(raw) + tail


def armour(blob: bytes, kind: str, secret: object, **changes: int) -> str:
    head = string(b"git") + string(b"") + string(b"sha512")
    signed = b"SSHSIG" + head + string(hashlib.sha512(MESSAGE).digest())
    whole = b"SSHSIG" + struct.pack(">I", 1) + string(blob) + head
    whole += string(token_signature(kind, secret, signed, **changes))
    text = base64.b64encode(whole).decode()
    lines = [text[start : start + 70] for start in range(0, len(text), 70)]
    return "\n".join(("-----BEGIN SSH SIGNATURE-----", *lines, "-----END SSH SIGNATURE-----", ""))


@pytest.mark.parametrize("kind", [SK_ED25519, SK_ECDSA])
def test_security_keys(tmp_path: Path, kind: str) -> None:
    secret: object
    if kind == SK_ED25519:
        blob, secret = ed25519_token()
    else:
        secret = ec.generate_private_key(ec.SECP256R1())
        point = secret.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        blob = string(kind.encode()) + string(b"nistp256") + string(point) + string(b"ssh:")
    key = parse_blob(blob, refusal=CommitSignatureError)
    good = armour(blob, kind, secret)
    assert verify_by_any(MESSAGE, good, [key], namespace="git", refusal=CommitSignatureError) is key
    (tmp_path / "signers").write_text(f"a {kind} {base64.b64encode(blob).decode()}\n")
    (tmp_path / "sig").write_text(good)
    words = ["ssh-keygen", "-Y", "verify", "-n", "git", "-f", "signers", "-I", "a", "-s", "sig"]
    ended = subprocess.run(words, cwd=tmp_path, input=MESSAGE, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    with pytest.raises(CommitSignatureError, match="not touched"):
        verify_by_any(
            MESSAGE, armour(blob, kind, secret, flags=0), [key], namespace="git", refusal=CommitSignatureError
        )
    with pytest.raises(CommitSignatureError, match="application"):
        parse_blob(blob[: -len(string(b"ssh:"))] + string(b"web:"), refusal=CommitSignatureError)


@given(st.binary(max_size=200))
def test_any_octets_are_a_key_or_refused(octets: bytes) -> None:
    for blob in (
        octets,
        string(b"ssh-ed25519") + octets,
        string(b"ecdsa-sha2-nistp256") + string(b"nistp256") + octets,
    ):
        try:
            parse_blob(blob, refusal=CommitSignatureError)
        except CommitSignatureError:
            continue


@given(st.binary(max_size=120))
def test_any_octets_as_a_signature_are_refused(octets: bytes) -> None:
    blob, _ = ed25519_token()
    for key in (blob, KNOWN):
        found = parse_blob(key, refusal=CommitSignatureError)
        for signature in (octets, string(found.key_type.encode()) + string(octets)):
            with pytest.raises(CommitSignatureError):
                found.verify(MESSAGE, signature, refusal=CommitSignatureError)


KNOWN = (
    string(b"ecdsa-sha2-nistp256")
    + string(b"nistp256")
    + string(
        ec.generate_private_key(ec.SECP256R1()).public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    )
)
