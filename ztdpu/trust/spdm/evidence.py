"""Evidence: what one measurement session left behind, enough to appraise it again without the device.

Made by `requester.MeasurementSession`, stored by control, read by the appraisal. Blocks and nonce are
not stored beside the signed messages but read from them, so they cannot disagree. Nothing here
verifies a signature: `transcript.verify_measurements` does, and the appraisal calls it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ztdpu.errors import EvidenceError, SpdmError
from ztdpu.trust import canonical

EVIDENCE_LABEL: Final = "spdm-evidence"
EVIDENCE_FORMAT: Final = 1
CERTIFICATES_LIMIT: Final = 10
_DMTF_SPECIFICATION: Final = 1
_BLOCK_HEADER_OCTETS: Final = 7
_RAW: Final = 0x80
_MEASUREMENTS_FIXED_OCTETS: Final = 8
_NONCE_OCTETS: Final = 32
_REQUEST_OCTETS: Final = 4
_SIGNED_REQUEST_OCTETS: Final = 37
_MESSAGES_LIMIT: Final = 2 * (3 + 256)
_ALL: Final = 0xFF
_NEGOTIATION: Final = [(b"\x84", b"\x04"), (b"\xe1", b"\x61"), (b"\xe3", b"\x63")]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementBlock:
    """One DMTF measurement block (DSP0274 1.1 and 1.2, 10.11.1)."""

    index: int
    value_type: int
    """Low seven bits of DMTFSpecMeasurementValueType."""
    raw: bool
    """True: the value itself; False: a digest of it."""
    value: bytes

    @property
    def dmtf_type(self) -> int:
        """Value type as on the wire, raw bit included."""
        return self.value_type | (_RAW if self.raw else 0)

    def encode(self) -> bytes:
        """Give the block as it stands in a measurement record."""
        size = len(self.value)
        return b"".join(
            (
                bytes((self.index, _DMTF_SPECIFICATION)),
                (size + 3).to_bytes(2, "little"),
                bytes((self.dmtf_type,)),
                size.to_bytes(2, "little"),
                self.value,
            )
        )


def decode_blocks(record: bytes, *, count: int) -> tuple[MeasurementBlock, ...]:
    """Read a measurement record of `count` blocks, in the order sent.

    Raises:
        SpdmError: a size does not fit, an index is 0, 255 or there twice, another specification, or another count.

    """
    blocks: list[MeasurementBlock] = []
    offset = 0
    while offset < len(record):
        header = record[offset : offset + _BLOCK_HEADER_OCTETS]
        if len(header) < _BLOCK_HEADER_OCTETS:
            raise SpdmError("measurement block is cut short")
        block_octets = int.from_bytes(header[2:4], "little")
        value_octets = int.from_bytes(header[5:7], "little")
        if header[1] != _DMTF_SPECIFICATION:
            raise SpdmError(f"measurement block {header[0]} is not of the DMTF specification")
        if block_octets != value_octets + 3 or offset + 4 + block_octets > len(record):
            raise SpdmError(f"measurement block {header[0]} has sizes that do not fit")
        if not 1 <= header[0] <= 0xFE or any(block.index == header[0] for block in blocks):
            raise SpdmError(f"measurement index {header[0]} is reserved or there twice")
        start = offset + _BLOCK_HEADER_OCTETS
        blocks.append(
            MeasurementBlock(
                index=header[0],
                value_type=header[4] & ~_RAW,
                raw=bool(header[4] & _RAW),
                value=record[start : start + value_octets],
            )
        )
        offset = start + value_octets
    if len(blocks) != count:
        raise SpdmError(f"{len(blocks)} measurement blocks where {count} are announced")
    return tuple(blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A signed set of measurements with the chain of the key that signed it."""

    profile: str
    """Name of the profile that the session followed."""
    certificates: tuple[bytes, ...]
    """DER, root first, as the device sent them. Not trusted yet."""
    root_hash: bytes
    """Hash of the root certificate as the device claims it in its chain header."""
    messages: tuple[bytes, ...]
    """What is signed (L1): GET_VERSION, VERSION, ... GET_MEASUREMENTS, MEASUREMENTS without its signature;
    SPDM 1.1 begins with the first GET_MEASUREMENTS.

    Requests are those that the requester itself sent, never what the device says it got.
    """
    signature: bytes
    """r || s, by the last certificate's key."""
    nonce: bytes
    """32 octets: the requester's, as sent in GET_MEASUREMENTS."""
    blocks: tuple[MeasurementBlock, ...]
    """In the order sent."""

    @property
    def l1(self) -> bytes:
        """Octets that the signature covers."""
        return b"".join(self.messages)

    def encode(self) -> bytes:
        """Give the form for the store: canonical CBOR.

        Raises:
            ValueError: larger than 64 KiB.

        """
        return canonical.encode(
            [
                EVIDENCE_LABEL,
                EVIDENCE_FORMAT,
                self.profile,
                list(self.certificates),
                self.root_hash,
                list(self.messages),
                self.signature,
            ]
        )


def make_evidence(
    *, profile: str, certificates: tuple[bytes, ...], root_hash: bytes, messages: tuple[bytes, ...], signature: bytes
) -> Evidence:
    """Put evidence together; nonce and blocks are read from the measurement exchanges at the end of `messages`.

    Raises:
        SpdmError: these messages are not a negotiation (or none) and measurement exchanges, the last one signed; an
            answer has other blocks than its request asked for, or an index stands in two of them.

    """
    exchanges = _find_exchanges(messages)
    blocks: list[MeasurementBlock] = []
    for request, response in exchanges:
        for block in _read_exchange(request, response, is_last=response is messages[-1]):
            if any(block.index == other.index for other in blocks):
                raise SpdmError(f"measurement index {block.index} is in two answers")
            blocks.append(block)
    return Evidence(
        profile=profile,
        certificates=certificates,
        root_hash=root_hash,
        messages=messages,
        signature=signature,
        nonce=messages[-2][4:36],
        blocks=tuple(blocks),
    )


def _find_exchanges(messages: tuple[bytes, ...]) -> list[tuple[bytes, bytes]]:
    """Pairs of GET_MEASUREMENTS and MEASUREMENTS, after the negotiation where there is one."""
    if len(messages) < 2 or len(messages) % 2 or len(messages) > _MESSAGES_LIMIT:
        raise SpdmError("transcript is not a sequence of requests and responses")
    pairs = list(zip(messages[::2], messages[1::2], strict=True))
    codes = [(request[1:2], response[1:2]) for request, response in pairs]
    if codes[:3] == _NEGOTIATION:
        pairs = pairs[3:]
    if not pairs:
        raise SpdmError("transcript does not end with measurements")
    return pairs


def _read_exchange(request: bytes, response: bytes, *, is_last: bool) -> tuple[MeasurementBlock, ...]:
    octets = _SIGNED_REQUEST_OCTETS if is_last else _REQUEST_OCTETS
    if len(request) != octets or request[1] != 0xE0 or bool(request[2] & 1) is not is_last:
        raise SpdmError("transcript does not end with a request for signed measurements, the only signed one")
    if len(response) < _MEASUREMENTS_FIXED_OCTETS or response[1] != 0x60:
        raise SpdmError("transcript does not end with measurements")
    record_octets = int.from_bytes(response[5:8], "little")
    rest = len(response) - _MEASUREMENTS_FIXED_OCTETS - record_octets - _NONCE_OCTETS - 2
    opaque_at = len(response) - rest - 2
    if rest < 0 or int.from_bytes(response[opaque_at : opaque_at + 2], "little") != rest:
        raise SpdmError("measurements have sizes that do not fit")
    record = response[_MEASUREMENTS_FIXED_OCTETS : _MEASUREMENTS_FIXED_OCTETS + record_octets]
    blocks = decode_blocks(record, count=response[4])
    operation = request[3]
    if operation != _ALL and [block.index for block in blocks] != ([operation] if operation else []):
        raise SpdmError(f"answer to a request for measurement {operation} has other measurements in it")
    return blocks


def decode_evidence(blob: bytes) -> Evidence:
    """Read evidence from the store.

    Raises:
        EvidenceError: malformed, another format, or messages that are no measurement session.

    """
    match canonical.decode(blob, refusal=EvidenceError):
        case [label, form, str(profile), [*certificates], bytes(root_hash), [*messages], bytes(signature)] if (
            (label, form) == (EVIDENCE_LABEL, EVIDENCE_FORMAT)
            and 1 <= len(certificates) <= CERTIFICATES_LIMIT
            and all(isinstance(item, bytes) for item in (*certificates, *messages))
        ):
            return make_evidence(
                profile=profile,
                certificates=tuple(certificates),
                root_hash=root_hash,
                messages=tuple(messages),
                signature=signature,
            )
    raise EvidenceError("evidence is not of a known format")
