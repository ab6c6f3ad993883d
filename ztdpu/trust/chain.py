"""A device's certificate chain: from the manufacturer's pinned root to the Alias key of this boot.

Called by `appraise` (control) and `peer` (agents); knows the profile and nothing of measurements or policy. What a
stranger sent is bounded and parsed before anything is verified; order never counts, certificates are sorted by issuer.

    sizes -> parse -> sort by issuer -> pinned root -> validity -> rules per level and signatures -> extensions
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import pairwise
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtensionOID, NameOID

from ztdpu.errors import CertificateError
from ztdpu.trust import certificate as reading
from ztdpu.trust import dice, extensions
from ztdpu.trust.chain_cache import ChainCache, make_key
from ztdpu.trust.profile import ChainLevel, FwidExtension, LevelRole, Profile

CHAIN_LIMIT: Final = 10
CHAIN_LIMIT_OCTETS: Final = 32 * 1024
_CRITICAL_KNOWN: Final = frozenset(
    {
        ExtensionOID.BASIC_CONSTRAINTS,
        ExtensionOID.KEY_USAGE,
        ExtensionOID.EXTENDED_KEY_USAGE,
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
        extensions.TCG_DICE_OID,
        extensions.TCG_UEID_OID,
        extensions.BOOT_OID,
    }
)
_BAD_FLAGS: Final = {0: "not configured", 1: "not secure", 2: "recovery", 3: "debug"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelFwid:
    """The firmware identity in one certificate made at boot."""

    level: int
    """Position in the profile's chain, root at 0."""
    hash: str
    digest: bytes
    subject: str
    """Subject of the certificate, printable."""
    bad_flags: tuple[str, ...] = ()
    """What a DiceTcbInfo admits: `debug`, `recovery`, `not secure`, `not configured`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChain:
    """A verified chain. Everything in it was said by the device's own certificates and is authentic."""

    profile: str
    certificates: tuple[x509.Certificate, ...]
    """Root first; the root is the pinned one."""
    device_id_spki: bytes
    """SubjectPublicKeyInfo of the DeviceID, DER."""
    device_id_sha256: bytes
    ueid: bytes
    alias_public_key: ec.EllipticCurvePublicKey
    alias_spki_sha256: bytes
    boot: extensions.Boot
    fwids: tuple[LevelFwid, ...]
    """By rising level."""


VERIFIED: Final[ChainCache[DeviceChain]] = ChainCache()
"""Of this process."""
LINKS: Final[ChainCache[bool]] = ChainCache(limit=256)
"""A manufacturer's own certificates that were verified before, each with its issuer: all its devices send the same."""


def verify_device_chain(
    certificates: Sequence[bytes], roots: Sequence[x509.Certificate], now: datetime, profile: Profile
) -> DeviceChain:
    """Verify a device's chain (DER, any order) by the rules of its profile; validity ends are included, no slack.

    A chain that was verified before is known again; its dates are looked at each time.

    Raises:
        CertificateError: another number of certificates than the profile has, one that cannot be read or stands twice,
            a chain that does not run from a pinned root to an Alias, dates, a level's rules, a signature, an extension.

    """
    if len(certificates) != len(profile.levels) or len(certificates) > CHAIN_LIMIT:
        raise CertificateError(f"chain of {len(certificates)} certificates, {profile.name} has {len(profile.levels)}")
    if sum(map(len, certificates)) > CHAIN_LIMIT_OCTETS:
        raise CertificateError(f"chain is larger than {CHAIN_LIMIT_OCTETS} octets")
    key = make_key(certificates, roots, profile)
    known = VERIFIED.find(key)
    if known is not None:
        _check_dates(known.certificates, now, profile)
        return known
    parsed = [reading.load_certificate(der, refusal=CertificateError) for der in certificates]
    path = _sort(parsed)
    path[0] = _pinned(path[0], roots)
    _check_dates(path, now, profile)
    for position, certificate in enumerate(path):
        _check_level(certificate, position=position, profile=profile)
    for position, (issuer, certificate) in enumerate(pairwise(path), start=1):
        _check_link(certificate, issuer, position, profile)
    chain = _read(path, profile)
    VERIFIED.keep(key, chain)
    return chain


def _check_link(certificate: x509.Certificate, issuer: x509.Certificate, position: int, profile: Profile) -> None:
    """Signatures; above the device's own levels one that was seen to be right, over the same octets, still is."""
    if position >= profile.device_id_level:
        reading.check_issued_by(certificate, issuer, refusal=CertificateError)
        return
    key = certificate.fingerprint(SHA256()) + issuer.fingerprint(SHA256()), profile
    if LINKS.find(key) is None:
        reading.check_issued_by(certificate, issuer, refusal=CertificateError)
        LINKS.keep(key, True)


def _check_dates(path: Sequence[x509.Certificate], now: datetime, profile: Profile) -> None:
    for level, certificate in zip(profile.levels, path, strict=True):
        reading.check_validity(certificate, now, what=f"certificate of level {level.role}", refusal=CertificateError)


def _sort(certificates: list[x509.Certificate]) -> list[x509.Certificate]:
    """Order by issuer, root first; exactly one way must exist."""
    by_issuer: dict[x509.Name, x509.Certificate] = {}
    roots: list[x509.Certificate] = []
    for one in certificates:
        if one.issuer == one.subject:
            roots.append(one)
        elif by_issuer.setdefault(one.issuer, one) is not one:
            raise CertificateError("two certificates of the chain have the same issuer")
    if len(roots) != 1:
        raise CertificateError(f"chain has {len(roots)} self-issued certificates instead of one")
    path = roots
    while following := by_issuer.pop(path[-1].subject, None):
        path.append(following)
    if by_issuer:
        raise CertificateError("chain has a certificate that does not belong to it")
    return path


def _pinned(root: x509.Certificate, roots: Sequence[x509.Certificate]) -> x509.Certificate:
    """Give *our* copy of the root: same name and key; what else the sent one says does not count."""
    key = reading.ec_public_key(root, curves={"secp256r1", "secp384r1"}, refusal=CertificateError)
    for pinned in roots:
        pinned_key = pinned.public_key()
        if (
            pinned.subject == root.subject
            and isinstance(pinned_key, ec.EllipticCurvePublicKey)
            and reading.spki_der(pinned_key) == reading.spki_der(key)
        ):
            return pinned
    raise CertificateError(
        "chain does not lead to a pinned manufacturer root",
        remedy="if the device is genuine, trust its manufacturer's root: "
        "--root of this command, or manufacturerRootsFile of control and agents",
    )


def _check_level(certificate: x509.Certificate, *, position: int, profile: Profile) -> None:
    level = profile.levels[position]
    reading.refuse_unknown_critical(certificate, known=_CRITICAL_KNOWN, refusal=CertificateError)
    reading.ec_public_key(certificate, curves={profile.curve_name}, refusal=CertificateError)
    constraints = reading.find_extension(certificate, x509.BasicConstraints)
    usage = reading.find_extension(certificate, x509.KeyUsage)
    if usage is None:
        raise CertificateError(f"certificate of level {level.role} has no key usage")
    if level.role is LevelRole.ALIAS:
        if constraints is not None and constraints.value.ca:
            raise CertificateError("the Alias is a certificate authority")
        if not usage.value.digital_signature or usage.value.key_cert_sign or usage.value.crl_sign:
            raise CertificateError("the Alias must have the key usage digitalSignature and sign nothing else")
        return
    if constraints is None or not constraints.value.ca or not usage.value.key_cert_sign:
        raise CertificateError(f"certificate of level {level.role} may not issue certificates")
    issuers_below = len(profile.levels) - position - 2
    if constraints.value.path_length is not None and constraints.value.path_length < issuers_below:
        raise CertificateError(f"certificate of level {level.role} does not allow a chain this long")
    _check_product(certificate, level)


def _check_product(certificate: x509.Certificate, level: ChainLevel) -> None:
    """A sister product under the same root is another product: authorities are those that the profile names."""
    if level.role not in {LevelRole.FAMILY, LevelRole.PROVISIONER, LevelRole.DEVICE_ID}:
        return
    names = [one.value for one in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if names != [level.common_name]:
        raise CertificateError(f"certificate of level {level.role} is not of this product")


def _read(path: list[x509.Certificate], profile: Profile) -> DeviceChain:
    curves = {profile.curve_name}
    device_id = reading.ec_public_key(path[profile.device_id_level], curves=curves, refusal=CertificateError)
    alias = reading.ec_public_key(path[-1], curves=curves, refusal=CertificateError)
    device_id_spki = reading.spki_der(device_id)
    if device_id_spki == _unprovisioned_spki(profile.curve_name):
        raise CertificateError("device was never provisioned: its DeviceID comes from an all-zero secret")
    ueid = dice.make_ueid(device_id_spki)
    claimed = _extension(path[profile.device_id_level], extensions.TCG_UEID_OID)
    if claimed is not None and extensions.decode_ueid(claimed) != ueid:
        raise CertificateError("DeviceID certificate carries another device's UEID")
    boot = _extension(path[-1], extensions.BOOT_OID)
    if boot is None:
        raise CertificateError("Alias certificate does not say which boot it belongs to")
    return DeviceChain(
        profile=profile.name,
        certificates=tuple(path),
        device_id_spki=device_id_spki,
        device_id_sha256=hashlib.sha256(device_id_spki).digest(),
        ueid=ueid,
        alias_public_key=alias,
        alias_spki_sha256=reading.spki_sha256(alias),
        boot=extensions.decode_boot(boot),
        fwids=tuple(
            _read_fwid(path[position], position, profile, device_id_spki)
            for position, level in enumerate(profile.levels)
            if level.fwid_covers
        ),
    )


def _read_fwid(certificate: x509.Certificate, level: int, profile: Profile, device_id_spki: bytes) -> LevelFwid:
    der = _extension(certificate, extensions.TCG_DICE_OID)
    if der is None:
        raise CertificateError(f"certificate at level {level} names no firmware")
    bad_flags: tuple[str, ...] = ()
    if profile.fwid_extension is FwidExtension.COMPOSITE_DEVICE_ID:
        composite = extensions.decode_composite_device_id(der)
        if composite.device_id_spki != device_id_spki:
            raise CertificateError(f"certificate at level {level} was made for another DeviceID")
        fwid = composite.fwid
    else:
        info = extensions.decode_tcb_info(der)
        if (info.vendor, info.model) != (profile.vendor, profile.model):
            raise CertificateError(f"certificate at level {level} describes another product")
        if info.layer != level - profile.device_id_level:
            raise CertificateError(f"certificate at level {level} describes layer {info.layer}, another than its own")
        named = [one for one in info.fwids if any(one.digest)]
        if len(named) != 1:
            raise CertificateError(f"certificate at level {level} names {len(named)} firmware identities")
        fwid = named[0]
        bad_flags = tuple(word for bit, word in _BAD_FLAGS.items() if info.flags >> bit & 1)
    if fwid.hash != profile.hash or not any(fwid.digest):
        raise CertificateError(f"firmware identity at level {level} is zero or not of {profile.hash}")
    return LevelFwid(
        level=level,
        hash=fwid.hash,
        digest=fwid.digest,
        subject=certificate.subject.rfc4514_string(),
        bad_flags=bad_flags,
    )


def _extension(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> bytes | None:
    for extension in certificate.extensions:
        if extension.oid == oid and isinstance(extension.value, x509.UnrecognizedExtension):
            return extension.value.value
    return None


def encode_chain(chain: DeviceChain) -> tuple[bytes, ...]:
    """DER, root first, as peers get it from control."""
    return tuple(one.public_bytes(Encoding.DER) for one in chain.certificates)


@cache
def _unprovisioned_spki(curve_name: str) -> bytes:
    return dice.encode_spki(dice.derive_key(bytes(dice.UDS_OCTETS), curve_name).public_key())
