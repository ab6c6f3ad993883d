"""SPDM messages about certificates, challenge and measurements (DSP0274 1.1 and 1.2, 10.6 to 10.11).

Sizes of digests and signatures come from the suite. Measurement blocks are read by `evidence.decode_blocks`.
Used by requester and responder; holds no state and verifies nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ztdpu.errors import SpdmError
from ztdpu.trust.spdm.messages import HEADER_OCTETS, Code, Header, Reader, open_message
from ztdpu.trust.spdm.suite import Suite

NONCE_OCTETS: Final = 32
ALL_MEASUREMENTS: Final = 0xFF
NO_SUMMARY: Final = 0
ALL_SUMMARY: Final = 0xFF
OPAQUE_LIMIT_OCTETS: Final = 1024
_SIGNED: Final = 1
_RAW: Final = 2
_SLOT_MASK: Final = 0x0F
_CONTENT_CHANGED_SHIFT: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GetDigests:
    """GET_DIGESTS."""

    version: int

    def encode(self) -> bytes:
        """Give the message."""
        return Header(Code.GET_DIGESTS, version=self.version).encode()

    @classmethod
    def decode(cls, message: bytes, *, version: int) -> GetDigests:
        """Read the message; SpdmError when malformed."""
        _, reader = open_message(message, Code.GET_DIGESTS, version=version)
        reader.end()
        return cls(version=version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests:
    """DIGESTS: one digest of a whole chain per slot that has one."""

    version: int
    slots: dict[int, bytes]

    def encode(self) -> bytes:
        """Give the message."""
        mask = sum(1 << slot for slot in self.slots)
        return Header(Code.DIGESTS, 0, mask, version=self.version).encode() + b"".join(
            self.slots[slot] for slot in sorted(self.slots)
        )

    @classmethod
    def decode(cls, message: bytes, *, suite: Suite) -> Digests:
        """Read the message; SpdmError when malformed."""
        header, reader = open_message(message, Code.DIGESTS, version=suite.version)
        slots = {slot: reader.take(suite.hash_octets) for slot in range(8) if header.param2 >> slot & 1}
        reader.end()
        return cls(version=suite.version, slots=slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class GetCertificate:
    """GET_CERTIFICATE: a portion of a slot's chain."""

    version: int
    slot: int
    offset: int
    length: int

    def encode(self) -> bytes:
        """Give the message."""
        numbers = self.offset.to_bytes(2, "little") + self.length.to_bytes(2, "little")
        return Header(Code.GET_CERTIFICATE, self.slot, version=self.version).encode() + numbers

    @classmethod
    def decode(cls, message: bytes, *, version: int) -> GetCertificate:
        """Read the message; SpdmError when malformed."""
        header, reader = open_message(message, Code.GET_CERTIFICATE, version=version)
        offset, length = reader.number(2), reader.number(2)
        reader.end()
        return cls(version=version, slot=header.param1 & _SLOT_MASK, offset=offset, length=length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """CERTIFICATE: the portion, and how much is still to come."""

    version: int
    slot: int
    portion: bytes
    remainder: int

    def encode(self) -> bytes:
        """Give the message."""
        numbers = len(self.portion).to_bytes(2, "little") + self.remainder.to_bytes(2, "little")
        return Header(Code.CERTIFICATE, self.slot, version=self.version).encode() + numbers + self.portion

    @classmethod
    def decode(cls, message: bytes, *, version: int) -> Certificate:
        """Read the message; SpdmError when malformed."""
        header, reader = open_message(message, Code.CERTIFICATE, version=version)
        length, remainder = reader.number(2), reader.number(2)
        portion = reader.take(length)
        reader.end()
        return cls(version=version, slot=header.param1 & _SLOT_MASK, portion=portion, remainder=remainder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """CHALLENGE."""

    version: int
    slot: int
    summary: int
    """NO_SUMMARY, 1 (trusted computing base alone) or ALL_SUMMARY."""
    nonce: bytes

    def encode(self) -> bytes:
        """Give the message."""
        return Header(Code.CHALLENGE, self.slot, self.summary, version=self.version).encode() + self.nonce

    @classmethod
    def decode(cls, message: bytes, *, version: int) -> Challenge:
        """Read the message; SpdmError when malformed."""
        header, reader = open_message(message, Code.CHALLENGE, version=version)
        nonce = reader.take(NONCE_OCTETS)
        reader.end()
        return cls(version=version, slot=header.param1, summary=header.param2, nonce=nonce)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChallengeAuth:
    """CHALLENGE_AUTH."""

    version: int
    slot: int
    slot_mask: int
    chain_hash: bytes
    nonce: bytes
    """The responder's."""
    summary_hash: bytes
    """Of all measurement blocks joined; empty when none was asked for."""
    opaque: bytes = b""
    signature: bytes

    def encode_unsigned(self) -> bytes:
        """Give the message without its signature: the last part of M1."""
        return b"".join(
            (
                Header(Code.CHALLENGE_AUTH, self.slot, self.slot_mask, version=self.version).encode(),
                self.chain_hash,
                self.nonce,
                self.summary_hash,
                len(self.opaque).to_bytes(2, "little"),
                self.opaque,
            )
        )

    def encode(self) -> bytes:
        """Give the message."""
        return self.encode_unsigned() + self.signature

    @classmethod
    def decode(cls, message: bytes, *, summary: int, suite: Suite) -> ChallengeAuth:
        """Read the answer to a CHALLENGE that asked for `summary`; SpdmError when malformed."""
        header, reader = open_message(message, Code.CHALLENGE_AUTH, version=suite.version)
        value = cls(
            version=suite.version,
            slot=header.param1 & _SLOT_MASK,
            slot_mask=header.param2,
            chain_hash=reader.take(suite.hash_octets),
            nonce=reader.take(NONCE_OCTETS),
            summary_hash=b"" if summary == NO_SUMMARY else reader.take(suite.hash_octets),
            opaque=_read_opaque(reader),
            signature=reader.take_signature(suite.signature_octets),
        )
        reader.end()
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMeasurements:
    """GET_MEASUREMENTS; signed when there is a nonce."""

    version: int
    operation: int
    """0 the number of measurements, ALL_MEASUREMENTS, or one index."""
    nonce: bytes = b""
    slot: int = 0
    raw: bool = False

    def encode(self) -> bytes:
        """Give the message."""
        attributes = (_SIGNED if self.nonce else 0) | (_RAW if self.raw else 0)
        header = Header(Code.GET_MEASUREMENTS, attributes, self.operation, version=self.version).encode()
        return header + self.nonce + bytes((self.slot,)) if self.nonce else header

    @classmethod
    def decode(cls, message: bytes, *, version: int) -> GetMeasurements:
        """Read the message; SpdmError when malformed."""
        header, reader = open_message(message, Code.GET_MEASUREMENTS, version=version)
        signed = bool(header.param1 & _SIGNED)
        nonce = reader.take(NONCE_OCTETS) if signed else b""
        slot = reader.number(1) & _SLOT_MASK if signed else 0
        reader.end()
        return cls(version=version, operation=header.param2, nonce=nonce, slot=slot, raw=bool(header.param1 & _RAW))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """MEASUREMENTS."""

    version: int
    total: int = 0
    """Number of measurements; only in answer to operation 0."""
    slot: int = 0
    content_changed: int = 0
    """0 not looked for, 1 changed while read, 2 not changed."""
    count: int
    """Number of blocks in the record."""
    record: bytes
    nonce: bytes
    """The responder's."""
    opaque: bytes = b""
    signature: bytes = b""

    def encode_unsigned(self) -> bytes:
        """Give the message without its signature: the last part of L1."""
        param2 = self.slot | self.content_changed << _CONTENT_CHANGED_SHIFT
        return b"".join(
            (
                Header(Code.MEASUREMENTS, self.total, param2, version=self.version).encode(),
                bytes((self.count,)),
                len(self.record).to_bytes(3, "little"),
                self.record,
                self.nonce,
                len(self.opaque).to_bytes(2, "little"),
                self.opaque,
            )
        )

    def encode(self) -> bytes:
        """Give the message."""
        return self.encode_unsigned() + self.signature

    @classmethod
    def decode(cls, message: bytes, *, is_signed: bool, suite: Suite) -> Measurements:
        """Read the answer to a request that asked for a signature or did not; SpdmError when malformed."""
        header, reader = open_message(message, Code.MEASUREMENTS, version=suite.version)
        count, record_octets = reader.number(1), reader.number(3)
        value = cls(
            version=suite.version,
            total=header.param1,
            slot=header.param2 & _SLOT_MASK,
            content_changed=header.param2 >> _CONTENT_CHANGED_SHIFT & 0b11,
            count=count,
            record=reader.take(record_octets),
            nonce=reader.take(NONCE_OCTETS),
            opaque=_read_opaque(reader),
            signature=reader.take_signature(suite.signature_octets) if is_signed else b"",
        )
        reader.end()
        return value


def slice_unsigned(message: bytes, suite: Suite) -> bytes:
    """Give a signed message without its signature, as it was sent."""
    if len(message) < HEADER_OCTETS + suite.signature_octets:
        raise SpdmError("message is too short to carry a signature")
    return message[: -suite.signature_octets]


def _read_opaque(reader: Reader) -> bytes:
    octets = reader.number(2)
    if octets > OPAQUE_LIMIT_OCTETS:
        raise SpdmError(f"opaque data of {octets} octets, at most {OPAQUE_LIMIT_OCTETS} are allowed")
    return reader.take(octets)
