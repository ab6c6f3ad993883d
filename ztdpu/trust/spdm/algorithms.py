"""SPDM algorithm negotiation (DSP0274 1.1 and 1.2, 10.5): NEGOTIATE_ALGORITHMS and ALGORITHMS.

Nothing is really negotiated here: the profile fixes the algorithms, the requester offers those alone
and refuses any other selection. Used by requester and responder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ztdpu.errors import SpdmError
from ztdpu.trust.spdm.messages import DMTF_MEASUREMENTS, Code, Header, Reader, open_message

_TABLE_COUNT: Final = 0x20
_TABLES_LIMIT: Final = 8
_REQUEST_FIXED_OCTETS: Final = 32
_RESPONSE_FIXED_OCTETS: Final = 36


@dataclass(frozen=True, slots=True)
class AlgorithmTable:
    """One AlgStructure: a kind of algorithm (DHE, AEAD, ...) and its bits."""

    kind: int
    bits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NegotiateAlgorithms:
    """NEGOTIATE_ALGORITHMS."""

    version: int
    asymmetric: int
    hash: int
    measurement_specification: int = DMTF_MEASUREMENTS
    other_parameters: int = 0
    """OPAQUE_FORMAT_1 or nothing; 1.1 has no such parameters."""
    tables: tuple[AlgorithmTable, ...] = ()

    def encode(self) -> bytes:
        """Give the message."""
        tables = _encode_tables(self.tables)
        return b"".join(
            (
                Header(Code.NEGOTIATE_ALGORITHMS, len(self.tables), version=self.version).encode(),
                (_REQUEST_FIXED_OCTETS + len(tables)).to_bytes(2, "little"),
                bytes((self.measurement_specification, self.other_parameters)),
                self.asymmetric.to_bytes(4, "little"),
                self.hash.to_bytes(4, "little"),
                bytes(16),
                tables,
            )
        )

    @classmethod
    def decode(cls, message: bytes, *, version: int) -> NegotiateAlgorithms:
        """Read the message; SpdmError when malformed or with extended algorithms."""
        header, reader = open_message(message, Code.NEGOTIATE_ALGORITHMS, version=version)
        _check_length(reader)
        specification, other = reader.take(2)
        asymmetric, digest = reader.number(4), reader.number(4)
        reader.take(12)
        _refuse_extended(reader)
        return cls(
            version=version,
            asymmetric=asymmetric,
            hash=digest,
            measurement_specification=specification,
            other_parameters=other,
            tables=_read_tables(reader, header.param1),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithms:
    """ALGORITHMS: one bit selected of each kind."""

    version: int
    asymmetric: int
    hash: int
    measurement_hash: int
    measurement_specification: int = DMTF_MEASUREMENTS
    other_parameters: int = 0
    """OPAQUE_FORMAT_1 or nothing; 1.1 has no such parameters."""
    tables: tuple[AlgorithmTable, ...] = ()

    def encode(self) -> bytes:
        """Give the message."""
        tables = _encode_tables(self.tables)
        return b"".join(
            (
                Header(Code.ALGORITHMS, len(self.tables), version=self.version).encode(),
                (_RESPONSE_FIXED_OCTETS + len(tables)).to_bytes(2, "little"),
                bytes((self.measurement_specification, self.other_parameters)),
                self.measurement_hash.to_bytes(4, "little"),
                self.asymmetric.to_bytes(4, "little"),
                self.hash.to_bytes(4, "little"),
                bytes(16),
                tables,
            )
        )

    @classmethod
    def decode(cls, message: bytes, *, version: int) -> Algorithms:
        """Read the message; SpdmError when malformed or with extended algorithms."""
        header, reader = open_message(message, Code.ALGORITHMS, version=version)
        _check_length(reader)
        specification, other = reader.take(2)
        measurement_hash, asymmetric, digest = (reader.number(4) for _ in range(3))
        reader.take(12)
        _refuse_extended(reader)
        return cls(
            version=version,
            asymmetric=asymmetric,
            hash=digest,
            measurement_hash=measurement_hash,
            measurement_specification=specification,
            other_parameters=other,
            tables=_read_tables(reader, header.param1),
        )


def _encode_tables(tables: tuple[AlgorithmTable, ...]) -> bytes:
    return b"".join(bytes((table.kind, _TABLE_COUNT)) + table.bits.to_bytes(2, "little") for table in tables)


def _check_length(reader: Reader) -> None:
    if reader.number(2) != len(reader.message):
        raise SpdmError("algorithms name another length than the message has")


def _refuse_extended(reader: Reader) -> None:
    if any(reader.take(2)):
        raise SpdmError("extended algorithms are not read")
    reader.take(2)


def _read_tables(reader: Reader, count: int) -> tuple[AlgorithmTable, ...]:
    if count > _TABLES_LIMIT:
        raise SpdmError(f"{count} algorithm tables are more than there are kinds")
    tables = []
    for _ in range(count):
        kind, size = reader.take(2)
        if size != _TABLE_COUNT:
            raise SpdmError("an algorithm table has another shape than two octets of bits")
        tables.append(AlgorithmTable(kind, reader.number(2)))
    reader.end()
    return tuple(tables)
