"""Strict CBOR for everything inside signatures and seals: one value, one encoding.

Arrays, unsigned integers up to 64 bits, byte strings and UTF-8 text; nothing else (RFC 8949 core deterministic
encoding, a subset). Decoding checks every length against what is left before it allocates, refuses any head
that is not the shortest, and finally compares the value encoded again. Used by the other modules of `keys`;
knows nothing of what the values mean.
"""

from __future__ import annotations

from typing import Any, Final

import cbor2

LIMIT_OCTETS: Final = 64 * 1024
DEPTH_MAX: Final = 6
_U64_MAX: Final = (1 << 64) - 1
_UNSIGNED, _BYTES, _TEXT, _ARRAY = 0, 2, 3, 4
_LEAST_BY_WIDTH: Final = {1: 24, 2: 1 << 8, 4: 1 << 16, 8: 1 << 32}


class WireError(ValueError):
    """The octets are not one strictly encoded value of the expected shape."""


def encode(value: Any) -> bytes:
    """Return the one encoding of `value`: lists, ints, bytes and str only, checked by the caller's types."""
    return cbor2.dumps(value, canonical=True)


def decode(octets: bytes, *, limit_octets: int = LIMIT_OCTETS) -> Any:
    """Return the value that `octets` encode. Raises WireError unless they are its one encoding, whole."""
    if len(octets) > limit_octets:
        raise WireError(f"longer than {limit_octets} octets")
    value, end = _read(octets, 0, DEPTH_MAX)
    if end != len(octets):
        raise WireError("octets behind the value")
    if encode(value) != octets:
        raise WireError("not the canonical encoding")
    return value


def _read(octets: bytes, at: int, depth: int) -> tuple[Any, int]:
    kind, argument, at = _read_head(octets, at)
    if kind == _UNSIGNED:
        return argument, at
    if kind not in (_BYTES, _TEXT, _ARRAY):
        raise WireError("a type that is not allowed")
    # Every element takes at least one octet, so this bounds arrays as well.
    if argument > len(octets) - at:
        raise WireError("cut short")
    if kind == _BYTES:
        return octets[at : at + argument], at + argument
    if kind == _TEXT:
        try:
            return octets[at : at + argument].decode(), at + argument
        except UnicodeDecodeError:
            raise WireError("text is not UTF-8") from None
    if not depth:
        raise WireError(f"nested deeper than {DEPTH_MAX}")
    items = []
    for _ in range(argument):
        item, at = _read(octets, at, depth - 1)
        items.append(item)
    return items, at


def _read_head(octets: bytes, at: int) -> tuple[int, int, int]:
    if at >= len(octets):
        raise WireError("cut short")
    kind, short = octets[at] >> 5, octets[at] & 0x1F
    at += 1
    if short < 24:
        return kind, short, at
    if short > 27:
        raise WireError("an indefinite or reserved length")
    width = 1 << (short - 24)
    if at + width > len(octets):
        raise WireError("cut short")
    argument = int.from_bytes(octets[at : at + width], "big")
    if argument < _LEAST_BY_WIDTH[width]:
        raise WireError("not the canonical encoding")
    return kind, argument, at + width


# --- shapes: each returns its argument with the type it proved -----------------------------------


def take_array(value: Any, arity: int) -> list[Any]:
    """Return a list of exactly `arity` items. Raises WireError otherwise."""
    if not isinstance(value, list) or len(value) != arity:
        raise WireError(f"expected an array of {arity}")
    return value


def take_rows(value: Any, least: int, most: int) -> list[Any]:
    """Return a list of `least` to `most` items. Raises WireError otherwise."""
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise WireError(f"expected {least} to {most} rows")
    return value


def take_bytes(value: Any, octets: int) -> bytes:
    """Return a byte string of exactly `octets`. Raises WireError otherwise."""
    if not isinstance(value, bytes) or len(value) != octets:
        raise WireError(f"expected {octets} octets")
    return value


def take_blob(value: Any) -> bytes:
    """Return a byte string of any length. Raises WireError otherwise."""
    if not isinstance(value, bytes):
        raise WireError("expected octets")
    return value


def take_unsigned(value: Any, most: int = _U64_MAX) -> int:
    """Return an integer from 0 to `most`. Raises WireError otherwise."""
    if type(value) is not int or not 0 <= value <= most:
        raise WireError(f"expected an integer up to {most}")
    return value


def take_text(value: Any, most_octets: int = 255) -> str:
    """Return text of at most `most_octets` in UTF-8. Raises WireError otherwise."""
    if not isinstance(value, str) or len(value.encode()) > most_octets:
        raise WireError(f"expected text of at most {most_octets} octets")
    return value
