"""The one CBOR dialect of everything that ztdpu signs or seals: deterministic arrays.

Integers, octet strings, text, booleans, null and arrays; no maps, floats, tags or indefinite lengths;
at most 64 KiB and six levels. Called by every module that signs; never by a transport. Callers
verify the signature over the received bytes first and decode afterwards. The envelope around a signature is
decoded before anything is verified, so nothing that a stranger writes may cost more than its length.
"""

from __future__ import annotations

from typing import Any, Final

import cbor2

from ztdpu.errors import RefusedError

LIMIT_OCTETS: Final = 64 * 1024
DEPTH_LIMIT: Final = 6
_STRINGS: Final = frozenset({2, 3})
_COUNTED: Final = frozenset({0, 1, 4})
_SIMPLE: Final = frozenset({0xF4, 0xF5, 0xF6})
"""False, true, null."""
_LAST_DIRECT: Final = 23
_ARGUMENT_OCTETS: Final = {24: 1, 25: 2, 26: 4, 27: 8}


def encode(value: Any) -> bytes:
    """Encode `value`, the only spelling there is.

    Raises:
        ValueError: a type, a size or a depth that the dialect does not have.

    """
    _check(value, DEPTH_LIMIT)
    blob: bytes = cbor2.dumps(value, canonical=True)
    if len(blob) > LIMIT_OCTETS:
        raise ValueError(f"{len(blob)} octets are more than the {LIMIT_OCTETS} a signed message may have")
    return blob


def decode(blob: bytes, *, refusal: type[RefusedError], limit_octets: int = LIMIT_OCTETS) -> Any:
    """Decode `blob` and require that it is spelt the only way (`encode` gives the same octets).

    Raises:
        refusal: too long, malformed, another dialect, or another spelling.

    """
    if len(blob) > limit_octets:
        raise refusal(f"message of {len(blob)} octets, at most {limit_octets} are read")
    try:
        _scan(blob)
        value = cbor2.loads(blob, max_depth=DEPTH_LIMIT, allow_indefinite=False)
        same = encode(value) == blob
    except (cbor2.CBORDecodeError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise refusal("message is not CBOR of the signed dialect") from error
    if not same:
        raise refusal("message is not spelt canonically")
    return value


def _scan(blob: bytes) -> None:
    """Raise ValueError for a kind of item outside the dialect, in one pass and before the library sees any of it.

    The library builds what tags name, and some build more than was sent: a shared array that is referred to a hundred
    times, on three levels, is a megabyte of values out of a few hundred octets.
    """
    offset, end = 0, len(blob)
    while offset < end:
        first = blob[offset]
        major, argument = first >> 5, first & 0x1F
        offset += 1
        if major in _STRINGS or major in _COUNTED:
            if argument > _LAST_DIRECT:
                octets = _ARGUMENT_OCTETS.get(argument)
                if octets is None:
                    raise ValueError("an item of indefinite length")
                argument = int.from_bytes(blob[offset : offset + octets], "big")
                offset += octets
            if major in _STRINGS:
                offset += argument
        elif first not in _SIMPLE:
            raise ValueError("a map, a tag, a float or another simple value")


def _check(value: Any, depth: int) -> None:
    if isinstance(value, list | tuple):
        if depth == 0:
            raise ValueError(f"nested deeper than {DEPTH_LIMIT}")
        for item in value:
            _check(item, depth - 1)
    elif isinstance(value, bool | bytes | str) or value is None:
        return
    elif not isinstance(value, int) or not -(1 << 64) <= value < 1 << 64:
        raise ValueError(f"no place in the signed dialect for {type(value).__name__}")
