"""Certificate chains that somebody made to be refused slowly, or to be taken for good.

Called by tests and by the bench, which time the verdict on each. Every chain is signed as it claims, where it claims
anything, so that it costs a verifier as much as it can.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

LENGTHS: Final = (1, 2, 5, 10, 20, 50, 100)
_UNKNOWN: Final = x509.ObjectIdentifier("1.3.6.1.4.1.99999.1")
_BEFORE: Final = datetime.now(UTC) - timedelta(days=1)
_AFTER: Final = datetime.now(UTC) + timedelta(days=1)
Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True, kw_only=True)
class HostileChain:
    """One chain."""

    name: str
    certificates: tuple[bytes, ...]
    """DER, root first where there is one."""
    root: x509.Certificate
    """Pinned by the verifier: the chain's own, so that nothing ends at the first look."""


def generate_chains(levels: int) -> Iterator[HostileChain]:
    """Make all of them; `levels` is how many certificates the verifier's profile has."""
    keys = [ec.generate_private_key(ec.SECP384R1()) for _ in range(max(*LENGTHS, levels) + 2)]
    names = [_name(f"hostile {number}") for number in range(len(keys))]
    for length in LENGTHS:
        yield _chain(f"{length} intermediates", keys[: length + 2], names[: length + 2])
    same_keys, same_names = [keys[0]] * levels, [names[0]] * levels
    yield _chain("equal subjects and keys", same_keys, same_names)
    yield _chain("equal subjects", keys[:levels], same_names)
    yield _chain("equal keys", same_keys, names[:levels])
    yield _chain("100 equal subjects and keys", [keys[0]] * 100, [names[0]] * 100)
    circle = _chain("a circle", [*keys[1:levels], keys[1]], [*names[1:levels], names[1]])
    yield circle
    good = keys[:levels], names[:levels]
    yield _chain("unknown critical extension in each", *good, extra=_unknown(b"\x05\0", critical=True))
    yield _chain("extensions of 7 KB", *good, extra=_unknown(secrets.token_bytes(7000), critical=False))
    many: list[tuple[x509.ExtensionType, bool]] = [
        (x509.UnrecognizedExtension(x509.ObjectIdentifier(f"1.3.9999.{n}"), b"\x05\0"), False) for n in range(100)
    ]
    yield _chain("100 extensions", *good, extra=many)
    yield _chain("names of 6 KB", keys[:levels], [_name("x" * 6000 + str(number)) for number in range(levels)])
    names_in_san = x509.SubjectAlternativeName([x509.DNSName(f"{number}.example") for number in range(300)])
    yield _chain("300 alternative names", *good, extra=[(names_in_san, True)])
    yield _chain("the same certificate again and again", *good, repeat=True)
    yield _with_leaf("an RSA key of 16,384 bits", keys, names, levels, _huge_rsa_key())
    yield _with_leaf("a key on P-521", keys, names, levels, ec.generate_private_key(ec.SECP521R1()).public_key())
    for name, junk in _junk():
        yield HostileChain(name=name, certificates=(*circle.certificates[:-1], junk), root=circle.root)


def _chain(
    name: str,
    keys: list[Key],
    names: list[x509.Name],
    *,
    extra: Sequence[tuple[x509.ExtensionType, bool]] | None = None,
    repeat: bool = False,
) -> HostileChain:
    made = [_certificate(names[0], names[0], keys[0].public_key(), keys[0], extra)]
    for (issuer, issuer_key), (subject, key) in pairwise(zip(names, keys, strict=True)):
        made.append(_certificate(subject, issuer, key.public_key(), issuer_key, extra))
    if repeat:
        made = [made[0], *[made[1]] * (len(made) - 1)]
    return HostileChain(name=name, certificates=tuple(one.public_bytes(Encoding.DER) for one in made), root=made[0])


def _with_leaf(
    name: str,
    keys: list[Key],
    names: list[x509.Name],
    levels: int,
    leaf: rsa.RSAPublicKey | ec.EllipticCurvePublicKey,
) -> HostileChain:
    chain = _chain(name, keys[: levels - 1], names[: levels - 1])
    last = _certificate(names[levels], names[levels - 2], leaf, keys[levels - 2], None)
    return HostileChain(name=name, certificates=(*chain.certificates, last.public_bytes(Encoding.DER)), root=chain.root)


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey,
    issuer_key: Key,
    extra: Sequence[tuple[x509.ExtensionType, bool]] | None,
) -> x509.Certificate:
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, crl_sign=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    builder = (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEFORE)
        .not_valid_after(_AFTER)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
    )
    for extension, critical in extra or ():
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(issuer_key, SHA384())


def _name(text: str) -> x509.Name:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that it is too long is the point
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text, _validate=False)])


def _unknown(value: bytes, *, critical: bool) -> list[tuple[x509.ExtensionType, bool]]:
    return [(x509.UnrecognizedExtension(_UNKNOWN, value), critical)]


def _huge_rsa_key() -> rsa.RSAPublicKey:
    return rsa.RSAPublicNumbers(65537, secrets.randbits(16_384) | 1 << 16_383 | 1).public_key()


def _junk() -> Iterator[tuple[str, bytes]]:
    yield "octets of chance", secrets.token_bytes(4000)
    yield "sequences in sequences", b"\x30\x82\x1f\xfc" + b"\x30\x80" * 4094
    yield "a certificate of 1 MiB", b"\x30\x83\x10\0\0" + bytes(1 << 20)
    yield "nothing", b""
