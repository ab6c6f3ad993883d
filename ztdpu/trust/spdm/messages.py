"""SPDM messages up to the capabilities, and what all messages share (DSP0274 1.1 and 1.2, 10.3 and 10.4).

Each message is a dataclass with `encode()` and `decode(message)`; decoding refuses every length that does
not fit and ignores reserved fields, as the standard asks. Used by requester and responder; holds no state.
Messages of certificates, challenge and measurements are in `authentication`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final

from ztdpu.errors import SpdmError

FIRST_VERSION_OCTET: Final = 0x10
"""Of GET_VERSION and VERSION; every other message has the octet of its session's version."""
_SIZES_SINCE: Final = 0x12
"""From 1.2 on capabilities name the sizes of messages; before, a peer takes what the transport takes."""
HEADER_OCTETS: Final = 4
TRANSFER_MINIMUM_OCTETS: Final = 42
"""DSP0274 1.2, 10.4: no peer may offer less."""
TRANSFER_OCTETS: Final = 4608
"""What requester and responder here take in one message."""

DMTF_MEASUREMENTS: Final = 1
OPAQUE_FORMAT_1: Final = 2


class Code(IntEnum):
    """RequestResponseCode."""

    DIGESTS = 0x01
    CERTIFICATE = 0x02
    CHALLENGE_AUTH = 0x03
    VERSION = 0x04
    MEASUREMENTS = 0x60
    CAPABILITIES = 0x61
    ALGORITHMS = 0x63
    ERROR = 0x7F
    GET_DIGESTS = 0x81
    GET_CERTIFICATE = 0x82
    CHALLENGE = 0x83
    GET_VERSION = 0x84
    GET_MEASUREMENTS = 0xE0
    GET_CAPABILITIES = 0xE1
    NEGOTIATE_ALGORITHMS = 0xE3
    RESPOND_IF_READY = 0xFF


class ErrorCode(IntEnum):
    """Param1 of ERROR (table 47)."""

    INVALID_REQUEST = 0x01
    BUSY = 0x03
    UNEXPECTED_REQUEST = 0x04
    UNSPECIFIED = 0x05
    UNSUPPORTED_REQUEST = 0x07
    RESPONSE_TOO_LARGE = 0x0D
    VERSION_MISMATCH = 0x41
    RESPONSE_NOT_READY = 0x42
    REQUEST_RESYNCH = 0x43


class Capability(IntFlag):
    """Flags of CAPABILITIES that matter here."""

    CACHE = 0x01
    CERT = 0x02
    CHAL = 0x04
    MEAS_NO_SIG = 0x08
    MEAS_SIG = 0x10
    MEAS_FRESH = 0x20
    ALIAS_CERT = 0x40000


@dataclass(slots=True)
class Reader:
    """Takes fields off a message and refuses to read past its end."""

    message: bytes
    offset: int = 0

    def take(self, octets: int) -> bytes:
        """Give the next octets; SpdmError when there are fewer."""
        field = self.message[self.offset : self.offset + octets]
        if len(field) != octets:
            raise SpdmError(f"message ends after {len(self.message)} octets, in the middle of a field")
        self.offset += octets
        return field

    def number(self, octets: int) -> int:
        """Give the next little-endian number."""
        return int.from_bytes(self.take(octets), "little")

    def take_signature(self, octets: int) -> bytes:
        """Give the signature that ends a message; says so where there is none."""
        if self.offset == len(self.message):
            raise SpdmError("the answer is not signed, though a signature was asked for")
        return self.take(octets)

    def end(self) -> None:
        """Refuse anything that is left."""
        if self.offset != len(self.message):
            raise SpdmError(f"{len(self.message) - self.offset} octets are left after the message")


@dataclass(frozen=True, slots=True)
class Header:
    """First four octets of every message."""

    code: int
    param1: int = 0
    param2: int = 0
    version: int = FIRST_VERSION_OCTET

    def encode(self) -> bytes:
        """Give the four octets."""
        return bytes((self.version, self.code, self.param1, self.param2))


def open_message(message: bytes, code: Code, *, version: int) -> tuple[Header, Reader]:
    """Read the header of a message that must be `code`.

    Raises:
        SpdmError: too short, an ERROR, another code, or another version.

    """
    reader = Reader(message)
    version_octet, code_octet, param1, param2 = reader.take(HEADER_OCTETS)
    header = Header(code_octet, param1, param2, version_octet)
    if header.code == Code.ERROR and code != Code.ERROR:
        raise SpdmError(f"the device answers with ERROR {describe_error(param1)}")
    if header.code != code:
        raise SpdmError(f"message has code 0x{header.code:02x}, expected is {code.name}")
    if header.version != version:
        raise SpdmError(f"message has version 0x{header.version:02x}, expected is 0x{version:02x}")
    return header, reader


def describe_error(code: int) -> str:
    """Name an error code for a message to people."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"0x{code:02x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """ERROR (10.17)."""

    code: int
    data: int = 0
    extended: bytes = b""
    version: int

    def encode(self) -> bytes:
        """Give the message."""
        return Header(Code.ERROR, self.code, self.data, self.version).encode() + self.extended


@dataclass(frozen=True, slots=True, kw_only=True)
class GetVersion:
    """GET_VERSION (10.3): starts every session."""

    def encode(self) -> bytes:
        """Give the message."""
        return Header(Code.GET_VERSION).encode()

    @classmethod
    def decode(cls, message: bytes) -> GetVersion:
        """Read the message; SpdmError when malformed."""
        _, reader = open_message(message, Code.GET_VERSION, version=FIRST_VERSION_OCTET)
        reader.end()
        return cls()


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """VERSION (10.3)."""

    entries: tuple[int, ...]
    """Like 0x1200 for 1.2; the low octet counts updates and alphas."""

    def encode(self) -> bytes:
        """Give the message."""
        header = Header(Code.VERSION).encode()
        entries = b"".join(entry.to_bytes(2, "little") for entry in self.entries)
        return header + bytes((0, len(self.entries))) + entries

    @classmethod
    def decode(cls, message: bytes) -> Version:
        """Read the message; SpdmError when malformed."""
        _, reader = open_message(message, Code.VERSION, version=FIRST_VERSION_OCTET)
        reader.take(1)
        entries = tuple(reader.number(2) for _ in range(reader.number(1)))
        reader.end()
        return cls(entries=entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CapabilitiesFields:
    """What GET_CAPABILITIES and CAPABILITIES have in common."""

    version: int
    flags: int
    timeout_exponent: int = 0
    """Cryptographic operations take at most 2^exponent microseconds."""
    transfer_octets: int = TRANSFER_OCTETS
    message_octets: int = TRANSFER_OCTETS

    def _encode(self, code: Code) -> bytes:
        sizes = self.transfer_octets.to_bytes(4, "little") + self.message_octets.to_bytes(4, "little")
        return b"".join(
            (
                Header(code, version=self.version).encode(),
                bytes((0, self.timeout_exponent, 0, 0)),
                self.flags.to_bytes(4, "little"),
                sizes if self.version >= _SIZES_SINCE else b"",
            )
        )

    @staticmethod
    def _read(message: bytes, code: Code, version: int) -> tuple[int, int, int, int]:
        _, reader = open_message(message, code, version=version)
        reader.take(1)
        exponent = reader.number(1)
        reader.take(2)
        flags = reader.number(4)
        transfer = whole = TRANSFER_OCTETS
        if version >= _SIZES_SINCE:
            transfer, whole = reader.number(4), reader.number(4)
        reader.end()
        if transfer < TRANSFER_MINIMUM_OCTETS or whole < transfer:
            raise SpdmError(f"{code.name} offers messages of {transfer} and {whole} octets")
        return flags, exponent, transfer, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class GetCapabilities(_CapabilitiesFields):
    """GET_CAPABILITIES (10.4)."""

    def encode(self) -> bytes:
        """Give the message."""
        return self._encode(Code.GET_CAPABILITIES)

    @classmethod
    def decode(cls, message: bytes, *, version: int) -> GetCapabilities:
        """Read the message; SpdmError when malformed."""
        flags, exponent, transfer, whole = cls._read(message, Code.GET_CAPABILITIES, version)
        return cls(
            version=version,
            flags=flags,
            timeout_exponent=exponent,
            transfer_octets=transfer,
            message_octets=whole,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities(_CapabilitiesFields):
    """CAPABILITIES (10.4)."""

    def encode(self) -> bytes:
        """Give the message."""
        return self._encode(Code.CAPABILITIES)

    @classmethod
    def decode(cls, message: bytes, *, version: int) -> Capabilities:
        """Read the message; SpdmError when malformed."""
        flags, exponent, transfer, whole = cls._read(message, Code.CAPABILITIES, version)
        return cls(
            version=version,
            flags=flags,
            timeout_exponent=exponent,
            transfer_octets=transfer,
            message_octets=whole,
        )
