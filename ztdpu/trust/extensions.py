"""DER of what stands in device certificates beyond X.509: FWIDs, boot, UEID, device info.

    2.23.133.5.4.1         tcg-dice: CompositeDeviceID or DiceTcbInfo, by profile
    2.23.133.5.4.4         tcg-dice-Ueid
    1.3.6.1.4.1.412.274.1  DMTF device info, an otherName `vendor:model:serial`
    2.25.<uuid>.1          ztdpu: which boot an Alias belongs to

The ztdpu arc is 2.25 and the UUID 03583206-340d-445d-8202-048c0242bd55 (X.667), which needs no registry.
`1` below it is `Boot ::= SEQUENCE { counter INTEGER (0..2^64-1), nonce OCTET STRING (SIZE(16)) }`.
Used by the emulated root to write and by chain verification to read; decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

from cryptography.hazmat import asn1
from cryptography.x509 import ObjectIdentifier

from ztdpu.errors import CertificateError

TCG_DICE_OID: Final = ObjectIdentifier("2.23.133.5.4.1")
TCG_UEID_OID: Final = ObjectIdentifier("2.23.133.5.4.4")
DMTF_DEVICE_INFO_OID: Final = ObjectIdentifier("1.3.6.1.4.1.412.274.1")
BOOT_OID: Final = ObjectIdentifier("2.25.4445620722864229511330350699726945621.1")
EXTENSION_LIMIT_OCTETS: Final = 2048
BOOT_NONCE_OCTETS: Final = 16
_COMPOSITE_VERSION: Final = 1
_FLAG_OCTETS: Final = 8

HASH_OIDS: Final = {
    "sha256": ObjectIdentifier("2.16.840.1.101.3.4.2.1"),
    "sha384": ObjectIdentifier("2.16.840.1.101.3.4.2.2"),
    "sha512": ObjectIdentifier("2.16.840.1.101.3.4.2.3"),
}
_HASH_NAMES: Final = {oid: name for name, oid in HASH_OIDS.items()}
_HASH_OCTETS: Final = {"sha256": 32, "sha384": 48, "sha512": 64}

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fwid:
    """Digest of the firmware that a key stands for."""

    hash: str
    """`sha256`, `sha384` or `sha512`."""
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CompositeDeviceId:
    """TCG Implicit Identity Based Device Attestation 1.0, revision 0.93."""

    device_id_spki: bytes
    """SubjectPublicKeyInfo, DER."""
    fwid: Fwid


@dataclass(frozen=True, slots=True, kw_only=True)
class TcbInfo:
    """DiceTcbInfo (TCG DICE Attestation Architecture); None where the certificate says nothing."""

    vendor: str | None = None
    model: str | None = None
    version: str | None = None
    svn: int | None = None
    layer: int | None = None
    index: int | None = None
    fwids: tuple[Fwid, ...] = ()
    flags: int = 0
    """Bit n of the named bit list is `1 << n`: 0 not configured, 1 not secure, 2 recovery, 3 debug."""
    vendor_info: bytes | None = None
    type: bytes | None = None
    flags_mask: int | None = None
    """Bits that the issuer really asserts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """Which boot of the device an Alias key belongs to."""

    counter: int
    """Rises by at least one with every boot."""
    nonce: bytes
    """16 octets, fresh at every boot."""


@asn1.sequence
class _Fwid:
    algorithm: ObjectIdentifier
    digest: bytes


@asn1.sequence
class _Composite:
    version: int
    device_id: asn1.TLV
    fwid: _Fwid


@asn1.sequence
class _TcbInfo:
    vendor: Annotated[str | None, asn1.Implicit(0)]
    model: Annotated[str | None, asn1.Implicit(1)]
    version: Annotated[str | None, asn1.Implicit(2)]
    svn: Annotated[int | None, asn1.Implicit(3)]
    layer: Annotated[int | None, asn1.Implicit(4)]
    index: Annotated[int | None, asn1.Implicit(5)]
    fwids: Annotated[list[_Fwid] | None, asn1.Implicit(6)]
    flags: Annotated[asn1.BitString | None, asn1.Implicit(7)]
    vendor_info: Annotated[bytes | None, asn1.Implicit(8)]
    type: Annotated[bytes | None, asn1.Implicit(9)]
    flags_mask: Annotated[asn1.BitString | None, asn1.Implicit(10)]


@asn1.sequence
class _Boot:
    counter: int
    nonce: bytes


@asn1.sequence
class _Ueid:
    ueid: bytes


def encode_composite_device_id(value: CompositeDeviceId) -> bytes:
    """Encode a CompositeDeviceID."""
    return asn1.encode_der(
        _Composite(
            version=_COMPOSITE_VERSION,
            device_id=asn1.decode_der(asn1.TLV, value.device_id_spki),
            fwid=_Fwid(algorithm=HASH_OIDS[value.fwid.hash], digest=value.fwid.digest),
        )
    )


def decode_composite_device_id(der: bytes) -> CompositeDeviceId:
    """Decode a CompositeDeviceID.

    Raises:
        CertificateError: malformed, another version, or not spelt as DER.

    """
    parsed = _decode(_Composite, der)
    if parsed.version != _COMPOSITE_VERSION:
        raise CertificateError(f"CompositeDeviceID of version {parsed.version}")
    value = CompositeDeviceId(device_id_spki=_spki_octets(der, parsed), fwid=_read_fwid(parsed.fwid))
    if encode_composite_device_id(value) != der:
        raise CertificateError("CompositeDeviceID is not spelt as DER")
    return value


def encode_tcb_info(value: TcbInfo) -> bytes:
    """Encode a DiceTcbInfo; flags without trailing zero bits (setting bit 31, fixedWidth, makes them 32 wide)."""
    return asn1.encode_der(
        _TcbInfo(
            vendor=value.vendor,
            model=value.model,
            version=value.version,
            svn=value.svn,
            layer=value.layer,
            index=value.index,
            fwids=[_Fwid(algorithm=HASH_OIDS[f.hash], digest=f.digest) for f in value.fwids] or None,
            flags=_bits(value.flags) if value.flags else None,
            vendor_info=value.vendor_info,
            type=value.type,
            flags_mask=None if value.flags_mask is None else _bits(value.flags_mask),
        )
    )


def decode_tcb_info(der: bytes) -> TcbInfo:
    """Decode a DiceTcbInfo; flags of any width up to 64 bits are read, only their bits count.

    Raises:
        CertificateError: malformed.

    """
    parsed = _decode(_TcbInfo, der)
    return TcbInfo(
        vendor=parsed.vendor,
        model=parsed.model,
        version=parsed.version,
        svn=parsed.svn,
        layer=parsed.layer,
        index=parsed.index,
        fwids=tuple(_read_fwid(fwid) for fwid in parsed.fwids or ()),
        flags=_read_bits(parsed.flags) or 0,
        vendor_info=parsed.vendor_info,
        type=parsed.type,
        flags_mask=_read_bits(parsed.flags_mask),
    )


def encode_boot(value: Boot) -> bytes:
    """Encode the boot extension of an Alias certificate."""
    return asn1.encode_der(_Boot(counter=value.counter, nonce=value.nonce))


def decode_boot(der: bytes) -> Boot:
    """Decode the boot extension of an Alias certificate.

    Raises:
        CertificateError: malformed, or a value out of its bounds.

    """
    parsed = _decode(_Boot, der)
    if not 0 <= parsed.counter < 1 << 64 or len(parsed.nonce) != BOOT_NONCE_OCTETS:
        raise CertificateError("boot extension has a value out of bounds")
    return Boot(counter=parsed.counter, nonce=parsed.nonce)


def encode_ueid(ueid: bytes) -> bytes:
    """Encode a tcg-dice-Ueid."""
    return asn1.encode_der(_Ueid(ueid=ueid))


def decode_ueid(der: bytes) -> bytes:
    """Decode a tcg-dice-Ueid.

    Raises:
        CertificateError: malformed.

    """
    return _decode(_Ueid, der).ueid


def encode_device_info(*, vendor: str, model: str, serial: str) -> bytes:
    """Encode the value of a DMTF device-info otherName: a UTF8String `vendor:model:serial`."""
    return asn1.encode_der(f"{vendor}:{model}:{serial}")


def _decode(kind: type[_T], der: bytes) -> _T:
    if len(der) > EXTENSION_LIMIT_OCTETS:
        raise CertificateError(f"extension of {len(der)} octets, at most {EXTENSION_LIMIT_OCTETS} are read")
    try:
        return asn1.decode_der(kind, der)
    except (ValueError, OverflowError) as error:
        raise CertificateError("extension of a device certificate is malformed") from error


def _spki_octets(der: bytes, parsed: _Composite) -> bytes:
    fwid_octets = len(asn1.encode_der(parsed.fwid))
    return der[len(der) - fwid_octets - _tlv_octets(parsed.device_id) : len(der) - fwid_octets]


def _tlv_octets(tlv: asn1.TLV) -> int:
    content = len(tlv.data)
    length_octets = 1 if content < 0x80 else 1 + (content.bit_length() + 7) // 8
    return 1 + length_octets + content


def _read_fwid(parsed: _Fwid) -> Fwid:
    name = _HASH_NAMES.get(parsed.algorithm)
    if name is None or len(parsed.digest) != _HASH_OCTETS[name]:
        raise CertificateError("FWID has an unknown hash or a digest of another size")
    return Fwid(hash=name, digest=parsed.digest)


def _bits(flags: int) -> asn1.BitString:
    # Named bit list: DER drops trailing zero bits; bit 0 is the most significant of the first octet.
    width = flags.bit_length()
    octets = bytes(
        sum(0x80 >> bit for bit in range(8) if flags >> (8 * octet + bit) & 1) for octet in range((width + 7) // 8)
    )
    return asn1.BitString(octets, -width % 8)


def _read_bits(bits: asn1.BitString | None) -> int | None:
    if bits is None:
        return None
    octets = bits.as_bytes()
    if len(octets) > _FLAG_OCTETS:
        raise CertificateError("flags of a DiceTcbInfo are wider than 64 bits")
    return sum(
        1 << (8 * place + bit) for place, octet in enumerate(octets) for bit in range(8) if octet & (0x80 >> bit)
    )
