"""SSHSIG, the signature format of `ssh-keygen -Y` and of git (OpenSSH PROTOCOL.sshsig), with SHA-512 only.

Operators sign the roster with the tools they have (Ed25519), authors of policy their commits (what `ssh_key` reads);
`roster` and `policy.git` verify it here without starting a program. Which keys are believed is the caller's affair.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from collections.abc import Collection, Sequence
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from ztdpu.errors import ConfigurationError, Location, RefusedError
from ztdpu.trust.ssh_key import SshKey, parse_blob

ARMOUR_LIMIT_OCTETS: Final = 4096
_BEGIN: Final = "-----BEGIN SSH SIGNATURE-----"
_END: Final = "-----END SSH SIGNATURE-----"
_MAGIC: Final = b"SSHSIG"
_VERSION: Final = 1
_LINE: Final = 70
_HASH: Final = b"sha512"
_KEY_TYPE: Final = b"ssh-ed25519"
_FIELDS: Final = 5
_KEYS_LIMIT: Final = 64


def sign(message: bytes, private_key: Ed25519PrivateKey, *, namespace: str) -> str:
    """Sign `message` for `namespace` and give the armoured signature, as `ssh-keygen -Y sign` writes it."""
    signature = private_key.sign(_signed_octets(message, namespace))
    blob = b"".join(
        (
            _MAGIC,
            struct.pack(">I", _VERSION),
            _string(_encode_key(private_key.public_key())),
            _string(namespace.encode()),
            _string(b""),
            _string(_HASH),
            _string(_string(_KEY_TYPE) + _string(signature)),
        )
    )
    text = base64.b64encode(blob).decode()
    lines = [text[start : start + _LINE] for start in range(0, len(text), _LINE)]
    return "\n".join((_BEGIN, *lines, _END, ""))


def verify(
    message: bytes,
    signature: str,
    keys: Sequence[Ed25519PublicKey],
    *,
    namespace: str,
    refusal: type[RefusedError],
) -> Ed25519PublicKey:
    """Verify an armoured signature and give the one of `keys` that made it.

    Raises:
        refusal: malformed armour, another namespace, hash or algorithm, a key not among `keys`, or a bad signature.

    """
    known = {_encode_key(key): key for key in keys}
    blob, inner = _open(signature, namespace, refusal)
    signer = known.get(blob)
    if signer is None:
        raise refusal("signature is by a key that is not among the operators'")
    parse_blob(blob, refusal=refusal).verify(_signed_octets(message, namespace), inner, refusal=refusal)
    return signer


def verify_by_any(
    message: bytes, signature: str, keys: Collection[SshKey], *, namespace: str, refusal: type[RefusedError]
) -> SshKey:
    """Verify an armoured signature by a key of any type that `ssh_key` reads, and give the one that made it.

    Raises:
        refusal: as for `verify`.

    """
    blob, inner = _open(signature, namespace, refusal)
    signer = next((key for key in keys if key.blob == blob), None)
    if signer is None:
        raise refusal("signature is by a key that is not allowed")
    signer.verify(_signed_octets(message, namespace), inner, refusal=refusal)
    return signer


def name_signer(signature: str, *, namespace: str, refusal: type[RefusedError]) -> SshKey:
    """The key that a signature says it is by. Nothing is verified: for messages to people only."""
    return parse_blob(_open(signature, namespace, refusal)[0], refusal=refusal)


def _open(signature: str, namespace: str, refusal: type[RefusedError]) -> tuple[bytes, bytes]:
    """(public key, signature proper) of armour that was made for the namespace, with SHA-512."""
    blob = _open_armour(signature, refusal)
    public_key, made_for, reserved, hash_name, inner = _fields(blob[len(_MAGIC) + 4 :], _FIELDS, refusal)
    if made_for != namespace.encode():
        raise refusal("signature was made for another namespace")
    if reserved or hash_name != _HASH:
        raise refusal("signature uses a reserved field or a hash other than SHA-512")
    return public_key, inner


def parse_public_keys(text: str, *, file: str) -> tuple[Ed25519PublicKey, ...]:
    """Read OpenSSH public keys, one a line; empty lines and lines that begin with # are skipped.

    Raises:
        ConfigurationError: no key at all, more than 64, or a line that is not one Ed25519 key; with its place.

    """
    keys: list[Ed25519PublicKey] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            key = load_ssh_public_key(line.strip().encode())
        except (ValueError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, Ed25519PublicKey):
            raise ConfigurationError(
                "not an Ed25519 public key in OpenSSH format",
                remedy="make one with `ssh-keygen -t ed25519` and copy the line of its .pub file",
                where=Location(file=file, line=number),
            )
        keys.append(key)
    if not 1 <= len(keys) <= _KEYS_LIMIT:
        raise ConfigurationError(
            f"{len(keys)} operator keys, 1 to {_KEYS_LIMIT} are needed", where=Location(file=file, line=0)
        )
    return tuple(keys)


def _signed_octets(message: bytes, namespace: str) -> bytes:
    digest = hashlib.sha512(message).digest()
    return _MAGIC + _string(namespace.encode()) + _string(b"") + _string(_HASH) + _string(digest)


def _encode_key(key: Ed25519PublicKey) -> bytes:
    return _string(_KEY_TYPE) + _string(key.public_bytes(Encoding.Raw, PublicFormat.Raw))


def _string(octets: bytes) -> bytes:
    return struct.pack(">I", len(octets)) + octets


def _open_armour(text: str, refusal: type[RefusedError]) -> bytes:
    if len(text) > ARMOUR_LIMIT_OCTETS or not text.isascii():
        raise refusal("signature is too long or not ASCII")
    lines = text.strip().splitlines()
    if len(lines) < 3 or lines[0] != _BEGIN or lines[-1] != _END:
        raise refusal("signature is not armoured as SSH SIGNATURE")
    joined = "".join(lines[1:-1])
    try:
        blob = base64.b64decode(joined, validate=True)
    except (binascii.Error, ValueError) as error:
        raise refusal("signature is not base64") from error
    if base64.b64encode(blob).decode() != joined or blob[: len(_MAGIC) + 4] != _MAGIC + struct.pack(">I", _VERSION):
        raise refusal("signature is not SSHSIG of version 1")
    return blob


def _fields(blob: bytes, count: int, refusal: type[RefusedError]) -> list[bytes]:
    """Split exactly `count` length-prefixed strings that fill `blob`."""
    fields: list[bytes] = []
    offset = 0
    for _ in range(count):
        if offset + 4 > len(blob):
            raise refusal("signature is cut short")
        (length,) = struct.unpack_from(">I", blob, offset)
        if offset + 4 + length > len(blob):
            raise refusal("signature is cut short")
        fields.append(blob[offset + 4 : offset + 4 + length])
        offset += 4 + length
    if offset != len(blob):
        raise refusal("signature has octets behind its end")
    return fields
