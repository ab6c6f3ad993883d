"""What stands inside signatures and seals of the exchange: `trust.canonical`'s dialect, and the shapes in it.

Used by the other modules of `keys`; knows nothing of what the values mean. Every field of a decoded message goes
through one of the `take_` functions, which refuse the types that this protocol does not use.
"""

from __future__ import annotations

from typing import Any, Final

from ztdpu.errors import WireError
from ztdpu.trust import canonical
from ztdpu.trust.canonical import LIMIT_OCTETS, encode

__all__ = [
    "LIMIT_OCTETS", "WireError", "decode", "encode", "take_array", "take_blob", "take_bytes", "take_rows", "take_text",
    "take_unsigned",
]  # fmt: skip

_U64_MAX: Final = (1 << 64) - 1


def decode(octets: bytes, *, limit_octets: int = LIMIT_OCTETS) -> Any:
    """Return the value that `octets` encode. Raises WireError unless they are its one encoding, whole."""
    return canonical.decode(octets, refusal=WireError, limit_octets=limit_octets)


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
