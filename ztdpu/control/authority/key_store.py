"""Where the authority's keys are: an interface that signs and never hands a key out, and its form with files.

Called by `control.authority.standing` and the lab's first start. A store over PKCS#11 has the same three methods: what
it opens is a `SigningKey` whose `sign` asks the token.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from ztdpu.errors import ConfigurationError, Location

SUFFIX: Final = ".key"


class SigningKey(ec.EllipticCurvePrivateKey):
    """A key as its users see it: its public half and a signature. Certificate builders take it for a private key."""

    def __init__(self, sealed: ec.EllipticCurvePrivateKey) -> None:
        self.__sealed = sealed

    def sign(self, data: Any, signature_algorithm: ec.EllipticCurveSignatureAlgorithm) -> bytes:
        """Sign `data`; DER."""
        return self.__sealed.sign(data, signature_algorithm)

    def public_key(self) -> ec.EllipticCurvePublicKey:
        """The public half."""
        return self.__sealed.public_key()

    @property
    def curve(self) -> ec.EllipticCurve:
        """On which curve."""
        return self.__sealed.curve

    @property
    def key_size(self) -> int:
        """In bits."""
        return self.__sealed.key_size

    def exchange(self, *_: object) -> NoReturn:
        """Refused: an authority's key signs and does nothing else."""
        raise UnsupportedAlgorithm("this key signs and does nothing else")

    def private_numbers(self) -> NoReturn:
        """Refused."""
        raise UnsupportedAlgorithm("this key is not handed out")

    def private_bytes(self, *_: object, **__: object) -> NoReturn:
        """Refused."""
        raise UnsupportedAlgorithm("this key is not handed out")

    def __copy__(self) -> SigningKey:
        """Itself: there is one of each key."""
        return self

    def __deepcopy__(self, memo: object) -> SigningKey:
        """Itself."""
        return self


class SigningKeyStore(Protocol):
    """Keeps P-384 keys by name."""

    def make(self, name: str) -> SigningKey:
        """Make a key that was never there before. Replaces one of that name."""

    def open(self, name: str) -> SigningKey:
        """The key of that name; ConfigurationError when there is none or it cannot be used."""

    def destroy(self, name: str) -> None:
        """Forget a key, if it is there."""


class FileKeyStore:
    """`NAME.key` in one directory: PKCS#8, not encrypted, 0600."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, name: str) -> Path:
        """Where a key is."""
        return self._folder / f"{name}{SUFFIX}"

    def make(self, name: str) -> SigningKey:
        """See SigningKeyStore."""
        key = ec.generate_private_key(ec.SECP384R1())
        write_secret(self.path(name), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return SigningKey(key)

    def open(self, name: str) -> SigningKey:
        """See SigningKeyStore."""
        return SigningKey(load_key(self.path(name)))

    def destroy(self, name: str) -> None:
        """See SigningKeyStore."""
        self.path(name).unlink(missing_ok=True)


def write_secret(path: Path, content: bytes) -> None:
    """Whole or not at all, 0600, durable."""
    partial = path.with_name(path.name + ".part")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    partial.rename(path)


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a PEM key. ConfigurationError with the place."""
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"no usable key: {error}", remedy="restore it from a backup", where=Location(file=str(path), line=0)
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigurationError("not an elliptic curve key", where=Location(file=str(path), line=0))
    return key
