"""The PSP header: sixteen octets, what each bit means, and which values are refused.

    octet 0    next header         IP protocol of what follows
    octet 1    extension length    in 8-octet units, the first 8 octets of the header not counted
    octet 2    R R | crypt offset  4-octet units counted from octet 16
    octet 3    S D | version | V 1 the last bit is always one
    octets 4.. SPI                 bit 31 names the master-key slot
    octets 8.. IV                  64 bits, unique under one SA

Owns encoding and decoding (PSP Architecture Specification, "PSP Header Format"). Called by `seal`, by the
worker for its fixed-field comparison and by capture tools. Never touches a key, and never says anything
about what is authenticated: everything read here is untrusted until `seal.unseal` returns.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from ztdpu.errors import PspFormatError
from ztdpu.model.sa import PspVersion

UDP_PORT: Final = 1000
HEADER_OCTETS: Final = 16
ICV_OCTETS: Final = 16
COOKIE_OCTETS: Final = 8
CRYPT_OFFSET_WORDS_MAX: Final = 63

NEXT_HEADER_IPV4: Final = 4
"""Tunnel mode: a whole IPv4 packet follows."""
NEXT_HEADER_TCP: Final = 6
NEXT_HEADER_UDP: Final = 17
NEXT_HEADER_IPV6: Final = 41
"""Tunnel mode: a whole IPv6 packet follows."""
RECORD: Final = 253
"""A stream record follows (RFC 3692 experimental number)."""

_LAYOUT: Final = struct.Struct("!BBBBIQ")
_ALWAYS_ONE: Final = 0x01
_COOKIE_PRESENT: Final = 0x02
_DROP: Final = 0x40
_SAMPLE: Final = 0x80
_SPI_LOW_BITS: Final = 0x7FFF_FFFF
_EXTENSION_UNITS_PLAIN: Final = 1
_EXTENSION_UNITS_MAX: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class PspHeader:
    """The fixed part of one packet's header. Extension octets follow it and may be encrypted."""

    next_header: int
    version: PspVersion
    spi: int
    """32 bits, the low 31 never zero."""
    iv: int
    """64 bits."""
    crypt_offset_words: int = 0
    """0..63 words of 4 octets after the IV that stay in clear (still authenticated)."""
    extension_octets: int = 0
    """Octets between IV and payload, a multiple of 8; the cookie, if any, is the first 8."""
    has_cookie: bool = False
    """V: the extension starts with a virtualization cookie."""
    sample: bool = False
    drop: bool = False
    reserved: int = 0
    """Two bits: sent as zero, ignored on receipt, yet authenticated."""

    def encode(self) -> bytes:
        """Return the 16 octets. Raises PspFormatError for a value that does not fit its field."""
        units, rest = divmod(self.extension_octets, 8)
        if rest or not 0 <= units <= _EXTENSION_UNITS_MAX - _EXTENSION_UNITS_PLAIN:
            raise PspFormatError(f"extension of {self.extension_octets} octets is no multiple of 8 up to 2032")
        if self.has_cookie and not units:
            raise PspFormatError("a cookie needs an extension")
        if not 0 <= self.crypt_offset_words <= CRYPT_OFFSET_WORDS_MAX:
            raise PspFormatError(f"crypt offset {self.crypt_offset_words} is outside 0..63 words")
        if not (0 <= self.next_header <= 0xFF and 0 <= self.reserved <= 3):
            raise PspFormatError("next header or reserved bits do not fit")
        if not 0 <= self.iv < 1 << 64:
            raise PspFormatError("IV does not fit into 64 bits")
        check_spi(self.spi)
        flags = _ALWAYS_ONE | check_version(self.version) << 2
        flags |= _COOKIE_PRESENT * self.has_cookie | _DROP * self.drop | _SAMPLE * self.sample
        return _LAYOUT.pack(
            self.next_header,
            _EXTENSION_UNITS_PLAIN + units,
            self.reserved << 6 | self.crypt_offset_words,
            flags,
            self.spi,
            self.iv,
        )

    @classmethod
    def decode(cls, packet: bytes | bytearray | memoryview) -> PspHeader:
        """Read the header of `packet` (which starts at the PSP header and ends with the ICV).

        Raises PspFormatError for anything that must be dropped before a key is touched: too short, the
        always-one bit zero, versions 2 to 15, SPI zero, an extension or a crypt offset beyond the packet.
        """
        if len(packet) < HEADER_OCTETS + ICV_OCTETS:
            raise PspFormatError(f"{len(packet)} octets are too short for a PSP packet")
        next_header, units, offset, flags, spi, iv = _LAYOUT.unpack_from(packet)
        if not flags & _ALWAYS_ONE:
            raise PspFormatError("the always-one bit is zero")
        if units < _EXTENSION_UNITS_PLAIN:
            raise PspFormatError("header extension length 0 is shorter than the header")
        has_cookie = bool(flags & _COOKIE_PRESENT)
        extension_octets = (units - _EXTENSION_UNITS_PLAIN) * 8
        if has_cookie and not extension_octets:
            raise PspFormatError("cookie announced but no room for it")
        header = cls(
            next_header=next_header,
            version=check_version(flags >> 2 & 0x0F),
            spi=check_spi(spi),
            iv=iv,
            crypt_offset_words=offset & 0x3F,
            extension_octets=extension_octets,
            has_cookie=has_cookie,
            sample=bool(flags & _SAMPLE),
            drop=bool(flags & _DROP),
            reserved=offset >> 6,
        )
        header.check_room(len(packet) - HEADER_OCTETS - ICV_OCTETS)
        return header

    def check_room(self, octets: int) -> None:
        """Raise PspFormatError unless extension and crypt offset end within `octets` between IV and ICV."""
        if self.extension_octets > octets:
            raise PspFormatError("the header extension ends behind the packet")
        if self.crypt_offset_words * 4 > octets:
            raise PspFormatError("the crypt offset points behind the payload")


def check_version(version: int) -> PspVersion:
    """Return `version` as an enum. Raises PspFormatError for 2 and 3 (no confidentiality) and 4 to 15 (reserved)."""
    try:
        return PspVersion(version)
    except ValueError:
        raise PspFormatError(f"PSP version {version} is not offered") from None


def check_spi(spi: int) -> int:
    """Return `spi`. Raises PspFormatError unless it is 32 bits with the low 31 not all zero."""
    if not 0 <= spi <= 0xFFFF_FFFF or not spi & _SPI_LOW_BITS:
        raise PspFormatError(f"SPI {spi:#x} is not a valid 32-bit SPI")
    return spi


def fixed_octets(next_header: int, version: PspVersion) -> bytes:
    """Return octets 0 to 3 of a plain header: no extension, offset 0, no cookie.

    An SA fixes all of them, so a receiver compares these four octets before it looks at anything else.
    """
    return PspHeader(next_header=next_header, version=version, spi=1, iv=0).encode()[:4]
