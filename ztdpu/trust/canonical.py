"""The one CBOR dialect of everything that ztdpu signs or seals: deterministic arrays.

Integers, octet strings, text, booleans, null and arrays; no maps, floats, tags or indefinite lengths;
at most 64 KiB and six levels. Called by every module that signs; never by a transport. Callers
verify the signature over the received bytes first and decode afterwards.
"""

from __future__ import annotations

from typing import Any, Final

import cbor2

from ztdpu.errors import RefusedError

LIMIT_OCTETS: Final = 64 * 1024
DEPTH_LIMIT: Final = 6


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
        value = cbor2.loads(blob, max_depth=DEPTH_LIMIT, allow_indefinite=False)
        same = encode(value) == blob
    except (cbor2.CBORDecodeError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise refusal("message is not CBOR of the signed dialect") from error
    if not same:
        raise refusal("message is not spelt canonically")
    return value


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
