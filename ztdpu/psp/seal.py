"""Sealing and opening of PSP packets: AES-GCM with SPI and IV as nonce, the clear part as associated data.

    packet       = header 16 | extension | payload | ICV 16
    authenticated, in clear:  octets 0 .. 16 + 4 * crypt offset
    encrypted:                the rest, up to the ICV
    nonce        = octets 4 .. 16 (SPI, IV)

The caller guarantees that an IV is used once per key. The tag is checked for every packet, also when nothing
is encrypted. Called by tests, capture tools and the record layer; the worker's hot path uses `SaKey.aead`
with its own buffers and the same layout. No replay check here: that is `replay.ReplayWindow`.
"""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ztdpu.errors import PspAuthenticationError, PspFormatError
from ztdpu.model.sa import PspVersion
from ztdpu.psp.header import COOKIE_OCTETS, HEADER_OCTETS, ICV_OCTETS, PspHeader, check_spi, check_version
from ztdpu.psp.kdf import KEY_OCTETS


class SaKey:
    """The key of one SA with its cipher set up once. Its printed form never shows the key."""

    __slots__ = ("aead", "spi", "spi_octets", "version")

    def __init__(self, key: bytes, spi: int, version: PspVersion) -> None:
        """Raises PspFormatError for a bad SPI or version, or a key whose length is not the version's."""
        self.version = check_version(version)
        self.spi = check_spi(spi)
        self.spi_octets = spi.to_bytes(4, "big")
        if len(key) != KEY_OCTETS[self.version]:
            raise PspFormatError(f"version {int(self.version)} needs a key of {KEY_OCTETS[self.version]} octets")
        self.aead = AESGCM(key)

    def __repr__(self) -> str:
        return f"SaKey(spi={self.spi:#010x}, version={self.version.name})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsealed:
    """An authentic packet's content."""

    header: PspHeader
    payload: bytes
    """What the next header names."""
    cookie: bytes | None = None
    """8 octets when V is set."""
    extension: bytes = b""
    """Extension octets behind the cookie; opaque."""


def seal(
    key: bytes | SaKey,
    spi: int,
    iv: int,
    payload: bytes,
    *,
    next_header: int,
    version: int,
    crypt_offset_words: int = 0,
    cookie: bytes | None = None,
) -> bytes:
    """Return the PSP packet, from header to ICV.

    `crypt_offset_words` counts from behind the IV, so it spans the cookie first. Raises PspFormatError when a
    field does not fit, the offset lies beyond the payload, or `key` is the SaKey of another SPI or version.
    """
    if cookie is not None and len(cookie) != COOKIE_OCTETS:
        raise PspFormatError(f"a cookie has 8 octets, not {len(cookie)}")
    header = PspHeader(
        next_header=next_header,
        version=check_version(version),
        spi=spi,
        iv=iv,
        crypt_offset_words=crypt_offset_words,
        extension_octets=0 if cookie is None else COOKIE_OCTETS,
        has_cookie=cookie is not None,
    )
    return seal_with_header(key, header, cookie or b"", payload)


def seal_with_header(key: bytes | SaKey, header: PspHeader, extension: bytes, payload: bytes) -> bytes:
    """Return the PSP packet for a header of the caller's making; `extension` includes the cookie.

    Raises PspFormatError as `seal` does, and when `extension` is not as long as the header says.
    """
    if len(extension) != header.extension_octets:
        raise PspFormatError(f"extension has {len(extension)} octets, the header says {header.extension_octets}")
    body = extension + payload
    header.check_room(len(body))
    fixed = header.encode()
    clear_octets = header.crypt_offset_words * 4
    clear = fixed + body[:clear_octets]
    return clear + _cipher(key, header).encrypt(fixed[4:], body[clear_octets:], clear)


def unseal(key: bytes | SaKey, packet: bytes | bytearray | memoryview) -> Unsealed:
    """Return the content of `packet` (PSP header to ICV) once its tag is verified.

    Raises PspFormatError for a malformed header or a packet of another SA, PspAuthenticationError when the
    integrity check value does not match; nothing of the packet is returned then.
    """
    header = PspHeader.decode(packet)
    data = bytes(packet)
    clear_octets = HEADER_OCTETS + header.crypt_offset_words * 4
    clear = data[:clear_octets]
    try:
        opened = _cipher(key, header).decrypt(data[4:HEADER_OCTETS], data[clear_octets:], clear)
    except InvalidTag:
        raise PspAuthenticationError("the integrity check value does not match") from None
    body = clear[HEADER_OCTETS:] + opened
    cookie_octets = COOKIE_OCTETS if header.has_cookie else 0
    return Unsealed(
        header=header,
        payload=body[header.extension_octets :],
        cookie=body[:COOKIE_OCTETS] if header.has_cookie else None,
        extension=body[cookie_octets : header.extension_octets],
    )


def sealed_octets(payload_octets: int) -> int:
    """Return how long a payload becomes as a packet with a plain header."""
    return HEADER_OCTETS + payload_octets + ICV_OCTETS


def _cipher(key: bytes | SaKey, header: PspHeader) -> AESGCM:
    sa = key if isinstance(key, SaKey) else SaKey(key, header.spi, header.version)
    if sa.spi != header.spi or sa.version != header.version:
        raise PspFormatError("the packet belongs to another SA")
    return sa.aead
