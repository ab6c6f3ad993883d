"""Chains that were verified before, so that a device which attests every few seconds costs its signatures once.

Owned by `chain`. A key is the SHA-256 of all that the verdict depends on but time: every certificate in the order
sent, every pinned root, the profile. Refusals are not kept; dates are for the caller to check again each time.
Bounded: the chain that was not used for longest goes first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256

from ztdpu.trust.profile import Profile

CACHE_LIMIT: Final = 2048
"""Chains; about 10 KB each."""

_T = TypeVar("_T")
Key = tuple[bytes, Profile]


def make_key(certificates: Sequence[bytes], roots: Sequence[x509.Certificate], profile: Profile) -> Key:
    """Give the key of a chain; certificates count by their octets, so a changed one is another chain."""
    digest = hashlib.sha256(len(certificates).to_bytes(4, "big"))
    for der in certificates:
        digest.update(len(der).to_bytes(4, "big") + der)
    for root in roots:
        digest.update(root.fingerprint(SHA256()))
    return digest.digest(), profile


class ChainCache(Generic[_T]):
    """What was verified, by key. For one thread, as control and agents verify in one."""

    def __init__(self, limit: int = CACHE_LIMIT) -> None:
        self._limit = limit
        self._found: dict[Key, _T] = {}

    def __len__(self) -> int:
        """How many chains are kept."""
        return len(self._found)

    def find(self, key: Key) -> _T | None:
        """Give what was kept; it was used just now."""
        found = self._found.pop(key, None)
        if found is not None:
            self._found[key] = found
        return found

    def keep(self, key: Key, value: _T) -> None:
        """Keep a verified chain."""
        self._found[key] = value
        while len(self._found) > self._limit:
            del self._found[next(iter(self._found))]

    def clear(self) -> None:
        """Forget everything: for measurements of what verification costs."""
        self._found.clear()
