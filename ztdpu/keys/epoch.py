"""Tenant epoch keys on their way from control to a leased device.

Control seals the keys of all networks that a device hosts to the KEM key of its lease request; a revocation
push carries the next epoch sealed to the last granted request's key. The context ties the sealed octets to one
device and one KEM key, so they open nowhere else. Called by `control.fleet` (seal) and `agent.conversation` (open).
Never stored by anyone: epoch keys are in memory only, and never encrypt volumes of data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ztdpu.errors import EpochKeyError
from ztdpu.keys import kem, wire
from ztdpu.keys.kem import KemKey, kem_key_from_parts, kem_public_octets
from ztdpu.keys.messages import ID_OCTETS
from ztdpu.keys.wrapping import EPOCH_KEY_OCTETS

EPOCH_KEYS_MAX: Final = 512
"""Networks of one device."""
_CONTEXT_LABEL: Final = b"ztdpu/v1/epoch-keys\0"

__all__ = [
    "EPOCH_KEYS_MAX", "EpochKey", "KemKey", "epoch_context", "kem_key_from_parts", "kem_public_octets",
    "open_epoch_keys", "seal_epoch_keys",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochKey:
    """The key under which SAs of one network are wrapped during one epoch."""

    network_id: bytes
    network_generation: int
    epoch: int
    key: bytes = field(repr=False)
    """32 octets. Secret."""


def epoch_context(device: str, kem_public_key: bytes) -> bytes:
    """Return what sealed epoch keys are bound to: the device's name and the KEM key of its lease request."""
    return _CONTEXT_LABEL + hashlib.sha256(device.encode() + b"\0" + kem_public_key).digest()


def seal_epoch_keys(keys: Sequence[EpochKey], *, kem_public_key: bytes, context: bytes) -> bytes:
    """Return the keys sealed to one lease request. `context` is that of `epoch_context`.

    Raises EpochKeyError when the device's KEM key is unusable, ValueError for a key of another length, a
    network named twice, or more than 512 networks.
    """
    if len(keys) > EPOCH_KEYS_MAX or len({key.network_id for key in keys}) != len(keys):
        raise ValueError("more than 512 networks, or one named twice")
    if any(len(key.key) != EPOCH_KEY_OCTETS or len(key.network_id) != ID_OCTETS for key in keys):
        raise ValueError("an epoch key or network id of another length")
    rows = [[key.network_id, key.network_generation, key.epoch, key.key] for key in keys]
    try:
        return kem.seal_to(kem_public_key, wire.encode(rows), info=context)
    except kem.KemError:
        raise EpochKeyError("the device's KEM key is not usable") from None


def open_epoch_keys(sealed: bytes, *, kem_private_key: KemKey, context: bytes) -> tuple[EpochKey, ...]:
    """Return the keys. Raises EpochKeyError for anything that was not sealed to this key in this context."""
    if len(sealed) > wire.LIMIT_OCTETS:
        raise EpochKeyError("sealed epoch keys are too large")
    try:
        opened = kem.open_with(kem_private_key, sealed, info=context)
        keys = tuple(_take_key(row) for row in wire.take_rows(wire.decode(opened), 0, EPOCH_KEYS_MAX))
    except kem.KemError:
        raise EpochKeyError("sealed epoch keys do not open") from None
    except wire.WireError:
        raise EpochKeyError("sealed epoch keys are malformed") from None
    if len({key.network_id for key in keys}) != len(keys):
        raise EpochKeyError("sealed epoch keys name a network twice")
    return keys


def _take_key(row: Any) -> EpochKey:
    network_id, generation, epoch, key = wire.take_array(row, 4)
    return EpochKey(
        network_id=wire.take_bytes(network_id, ID_OCTETS),
        network_generation=wire.take_unsigned(generation),
        epoch=wire.take_unsigned(epoch),
        key=wire.take_bytes(key, EPOCH_KEY_OCTETS),
    )
