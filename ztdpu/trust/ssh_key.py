"""Public keys as OpenSSH writes them (RFC 4253 section 6.6, RFC 5656, PROTOCOL.u2f), and signatures by them.

Ed25519 and ECDSA on P-256 and P-384, in software or on a security key (`sk-`). RSA, DSA and certificates are refused.
Called by `sshsig` and `policy.git`; which keys are believed is the caller's affair.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, HashAlgorithm

from ztdpu.errors import RefusedError

KEY_LIMIT_OCTETS: Final = 1024
ED25519: Final = "ssh-ed25519"
SK_ED25519: Final = "sk-ssh-ed25519@openssh.com"
SK_ECDSA: Final = "sk-ecdsa-sha2-nistp256@openssh.com"
_CURVES: Final[dict[str, tuple[str, ec.EllipticCurve, HashAlgorithm]]] = {
    "ecdsa-sha2-nistp256": ("nistp256", ec.SECP256R1(), SHA256()),
    "ecdsa-sha2-nistp384": ("nistp384", ec.SECP384R1(), SHA384()),
    SK_ECDSA: ("nistp256", ec.SECP256R1(), SHA256()),
}
KEY_TYPES: Final = (ED25519, *_CURVES, SK_ED25519)
_SK_TYPES: Final = frozenset({SK_ED25519, SK_ECDSA})
_USER_PRESENT: Final = 0x01
_SK_TAIL: Final = struct.Struct(">BI")


@dataclass(frozen=True, slots=True, kw_only=True)
class SshKey:
    """One public key that signatures can be verified with."""

    key_type: str
    blob: bytes
    """As on the wire: what a key line of OpenSSH holds in base64."""
    public_key: Ed25519PublicKey | ec.EllipticCurvePublicKey
    application: bytes = b""
    """Of a security key: what the token signs for, such as `ssh:`."""

    @property
    def fingerprint(self) -> str:
        """`SHA256:...`, as `ssh-keygen -l` prints it."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")

    def verify(self, message: bytes, signature: bytes, *, refusal: type[RefusedError]) -> None:
        """Verify a signature blob (RFC 4253 section 6.6) over `message`.

        Raises:
            refusal: malformed, of another algorithm than the key's, without the user's touch, or wrong.

        """
        (name, raw), tail = _strings(signature, 2, refusal)
        if name != self.key_type.encode():
            raise refusal("signature is of another algorithm than its key")
        if self.key_type in _SK_TYPES:
            message = self._sk_message(message, tail, refusal)
        elif tail:
            raise refusal("signature has octets behind its end")
        try:
            if isinstance(self.public_key, Ed25519PublicKey):
                self.public_key.verify(raw, message)
            else:
                self.public_key.verify(_dss(raw, refusal), message, ec.ECDSA(_CURVES[self.key_type][2]))
        except InvalidSignature as error:
            raise refusal("signature does not match the message") from error

    def _sk_message(self, message: bytes, tail: bytes, refusal: type[RefusedError]) -> bytes:
        if len(tail) != _SK_TAIL.size:
            raise refusal("signature of a security key is cut short")
        if not tail[0] & _USER_PRESENT:
            raise refusal("the security key was not touched")
        return hashlib.sha256(self.application).digest() + tail + hashlib.sha256(message).digest()


def read_key(key_type: str, encoded: str, *, refusal: type[RefusedError]) -> SshKey:
    """Read the two words of a key line: its type, and base64.

    Raises:
        refusal: unknown type, RSA, malformed, or a point that is not on its curve.

    """
    if key_type not in KEY_TYPES:
        raise refusal(f"keys of type {key_type[:64]} are refused: use {ED25519} or {next(iter(_CURVES))}")
    try:
        blob = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise refusal("the key is not base64") from error
    if len(blob) > KEY_LIMIT_OCTETS or base64.b64encode(blob).decode() != encoded:
        raise refusal("the key is too long, or not spelt canonically")
    key = parse_blob(blob, refusal=refusal)
    if key.key_type != key_type:
        raise refusal(f"the key says that it is of type {key.key_type}")
    return key


def parse_blob(blob: bytes, *, refusal: type[RefusedError]) -> SshKey:
    """Read a key as on the wire; `refusal` as for `read_key`."""
    (name,), rest = _strings(blob, 1, refusal)
    key_type = name.decode("ascii", errors="replace")
    if key_type not in KEY_TYPES:
        raise refusal(f"keys of type {key_type[:64]} are refused")
    count = (1 if key_type in (ED25519, SK_ED25519) else 2) + (key_type in _SK_TYPES)
    fields, rest = _strings(rest, count, refusal)
    if rest:
        raise refusal("the key has octets behind its end")
    application = fields.pop() if key_type in _SK_TYPES else b""
    if key_type in _SK_TYPES and not application.startswith(b"ssh:"):
        raise refusal("the security key's application is not ssh:")
    try:
        if key_type in _CURVES:
            curve_name, curve, _ = _CURVES[key_type]
            if fields[0] != curve_name.encode() or fields[1][:1] != b"\x04":
                raise refusal("the key's curve is not that of its type")
            public: Ed25519PublicKey | ec.EllipticCurvePublicKey = ec.EllipticCurvePublicKey.from_encoded_point(
                curve, fields[1]
            )
        else:
            public = Ed25519PublicKey.from_public_bytes(fields[0])
    except ValueError as error:
        raise refusal("the key is malformed") from error
    return SshKey(key_type=key_type, blob=blob, public_key=public, application=application)


def _dss(raw: bytes, refusal: type[RefusedError]) -> bytes:
    """RFC 5656 section 3.1.2 (two mpints) to what the library takes."""
    pair, rest = _strings(raw, 2, refusal)
    if rest or any(not part or part[0] & 0x80 or (len(part) > 1 and not part[0] and part[1] < 0x80) for part in pair):
        raise refusal("the signature's numbers are malformed")
    return encode_dss_signature(*(int.from_bytes(part) for part in pair))


def _strings(blob: bytes, count: int, refusal: type[RefusedError]) -> tuple[list[bytes], bytes]:
    """(`count` length-prefixed strings, what follows them)."""
    fields: list[bytes] = []
    offset = 0
    for _ in range(count):
        end = offset + 4
        if end <= len(blob):
            end += int.from_bytes(blob[offset:end])
        if end > len(blob) or end < offset + 4:
            raise refusal("a key or signature is cut short")
        fields.append(blob[offset + 4 : end])
        offset = end
    return fields, blob[offset:]
