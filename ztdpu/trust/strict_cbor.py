"""CBOR with maps and tags as other people's formats use it (CWT, CoRIM), read without building anything that tags name.

For formats that ztdpu does not define; what it signs itself is the smaller dialect of `canonical`. A tag is a `Tag` and
nothing more: no dates, no shared values, no big numbers. Refused: floats, indefinite lengths, numbers and lengths not
in their shortest form, a key that stands twice, text that is no UTF-8, octets after the end; and, if asked, keys out
of their order (RFC 8949 section 4.2.1). Every caller gives its own limits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ztdpu.errors import RefusedError

DEPTH_LIMIT: Final = 24
"""Of arrays, maps and tags inside each other, at most, whatever the caller says."""
_UINT, _NINT, _BYTES, _TEXT, _ARRAY, _MAP, _TAG = range(7)
_SIMPLE: Final[Mapping[int, Any]] = {0xF4: False, 0xF5: True, 0xF6: None}
_LAST_DIRECT: Final = 23
_SIZES: Final = {24: 1, 25: 2, 26: 4, 27: 8}


@dataclass(frozen=True, slots=True)
class Tag:
    """A value under a tag number; a fixed form, compared by both."""

    number: int
    value: Any


def decode(
    blob: bytes, *, refusal: type[RefusedError], limit_octets: int, depth_limit: int = 12, is_deterministic: bool = True
) -> Any:
    """Read one item that is all of `blob`: int, bytes, str, bool, None, list, dict, `Tag`.

    Args:
        blob: as received; at most `limit_octets` long.
        refusal: error to raise.
        limit_octets: anything longer is not looked at.
        depth_limit: of arrays, maps and tags inside each other.
        is_deterministic: keys of maps must stand in bytewise order.

    Raises:
        refusal: it is none of that. The message says where, in octets from the start.

    """
    if len(blob) > limit_octets:
        raise refusal(f"CBOR of {len(blob)} octets, at most {limit_octets} are read")
    reader = _Reader(blob, refusal, is_deterministic=is_deterministic)
    value = reader.item(min(depth_limit, DEPTH_LIMIT))
    if reader.offset != len(blob):
        raise reader.fault("octets after the end")
    return value


class _Reader:
    """One pass over the octets; the cost is linear in their number."""

    def __init__(self, blob: bytes, refusal: type[RefusedError], *, is_deterministic: bool) -> None:
        self._blob = blob
        self._refusal = refusal
        self._is_deterministic = is_deterministic
        self.offset = 0

    def fault(self, what: str) -> RefusedError:
        return self._refusal(f"CBOR has {what} at octet {self.offset}")

    def item(self, depth: int) -> Any:
        first = self._take(1)[0]
        if first in _SIMPLE:
            return _SIMPLE[first]
        major, argument = first >> 5, self._argument(first)
        if major == _UINT:
            return argument
        if major == _NINT:
            return -1 - argument
        if major == _BYTES:
            return self._take(argument)
        if major == _TEXT:
            return self._text(argument)
        if depth == 0:
            raise self.fault("values nested too deep")
        if major == _TAG:
            return Tag(argument, self.item(depth - 1))
        if argument > len(self._blob) - self.offset:
            raise self.fault("more items announced than there are octets")
        if major == _ARRAY:
            return [self.item(depth - 1) for _ in range(argument)]
        return self._map(argument, depth - 1)

    def _argument(self, first: int) -> int:
        if first >> 5 > _TAG:
            raise self.fault("a float or a simple value that is not read")
        low = first & 0x1F
        if low <= _LAST_DIRECT:
            return low
        size = _SIZES.get(low)
        if size is None:
            raise self.fault("an indefinite length or a reserved one")
        value = int.from_bytes(self._take(size), "big")
        if value <= _LAST_DIRECT or (size > 1 and value < 1 << (4 * size)):
            raise self.fault("a number that is not in its shortest form")
        return value

    def _text(self, size: int) -> str:
        try:
            return self._take(size).decode()
        except UnicodeDecodeError as error:
            raise self.fault("text that is no UTF-8") from error

    def _map(self, pairs: int, depth: int) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        before = b""
        for _ in range(pairs):
            start = self.offset
            key = self.item(0)
            if isinstance(key, bool) or not isinstance(key, int | str):
                raise self.fault("a key that is neither a number nor text")
            if key in result:
                raise self.fault("a key that stands twice")
            spelt = self._blob[start : self.offset]
            if self._is_deterministic and spelt <= before:
                raise self.fault("keys out of order")
            before = spelt
            result[key] = self.item(depth)
        return result

    def _take(self, size: int) -> bytes:
        if size > len(self._blob) - self.offset:
            raise self.fault("an end before it should")
        start, self.offset = self.offset, self.offset + size
        return self._blob[start : self.offset]


def encode(value: Any) -> bytes:
    """The one deterministic spelling of a value (RFC 8949 section 4.2.1).

    Raises:
        ValueError: a type that is not written, or a number past 64 bits.

    """
    simple = {False: b"\xf4", True: b"\xf5"} if isinstance(value, bool) else {None: b"\xf6"} if value is None else {}
    if simple:
        return simple[value]
    if isinstance(value, int):
        return _head(_UINT, value) if value >= 0 else _head(_NINT, -1 - value)
    if isinstance(value, bytes):
        return _head(_BYTES, len(value)) + value
    if isinstance(value, str):
        octets = value.encode()
        return _head(_TEXT, len(octets)) + octets
    if isinstance(value, Tag):
        return _head(_TAG, value.number) + encode(value.value)
    if isinstance(value, list | tuple):
        return _head(_ARRAY, len(value)) + b"".join(map(encode, value))
    if isinstance(value, dict):
        pairs = sorted((encode(key), encode(one)) for key, one in value.items())
        return _head(_MAP, len(pairs)) + b"".join(key + one for key, one in pairs)
    raise ValueError(f"{type(value).__name__} is not written as CBOR here")


def _head(major: int, argument: int) -> bytes:
    if argument <= _LAST_DIRECT:
        return bytes([major << 5 | argument])
    octets = max(1, 1 << math.ceil(math.log2((argument.bit_length() + 7) // 8)))
    if octets > max(_SIZES.values()):
        raise ValueError("a number past 64 bits")
    low = next(low for low, size in _SIZES.items() if size == octets)
    return bytes([major << 5 | low]) + argument.to_bytes(octets, "big")
