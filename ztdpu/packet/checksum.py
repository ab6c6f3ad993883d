"""The Internet checksum (RFC 1071), as fast as an interpreter allows.

A ones' complement sum of 16-bit words is the number itself modulo 65,535, because 2^16 is 1 there. So a
short run of octets is summed by one big-integer remainder; a long one by numpy, which is imported at the
first long sum only. Called by `packet.segment` and `packet.join`; keeps no state.

Two spellings of zero exist (0 and 0xFFFF). `checksum` gives what a sender writes; compare sums modulo
65,535, never bit by bit.
"""

from __future__ import annotations

from typing import Final

MODULUS: Final = 0xFFFF
_LONG_OCTETS: Final = 1024
"""Below this the big integer wins over the fixed cost of a numpy call (measured)."""


def residue(data: bytes | bytearray | memoryview) -> int:
    """Return the ones' complement sum of `data` modulo 65,535; an odd last octet is padded with zero."""
    if len(data) > _LONG_OCTETS:
        return _residue_long(data)
    value = int.from_bytes(data, "big")
    if len(data) & 1:
        value <<= 8
    return value % MODULUS


def _residue_long(data: bytes | bytearray | memoryview) -> int:
    import numpy as np

    whole = len(data) & ~3
    words = np.frombuffer(data, dtype=np.uint32, count=whole >> 2)
    # Summing native words gives the sum with its octets swapped (RFC 1071, section 2(B)): swap back once.
    total = int(np.add.reduce(words, dtype=np.uint64)) % MODULUS
    swapped = (total & 0xFF) << 8 | total >> 8
    rest = bytes(data[whole:]).ljust(4, b"\0")
    return (swapped + int.from_bytes(rest, "big")) % MODULUS


def checksum(total: int) -> int:
    """Return the checksum field for a sum `total` (any integer congruent to it)."""
    return MODULUS - (total % MODULUS or MODULUS)


def pseudo_header(source_and_destination: bytes | bytearray | memoryview, protocol: int, length_octets: int) -> int:
    """Return the sum of the TCP or UDP pseudo-header (RFC 9293 section 3.1, RFC 8200 section 8.1), below 65,535."""
    return (int.from_bytes(source_and_destination, "big") + protocol + length_octets) % MODULUS
