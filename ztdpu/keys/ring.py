"""The tenant epoch keys in force: current, and for ten seconds the one before.

Owns the rule which epoch an SA may be wrapped under (protocols: the previous epoch is let in while its
successor spreads, but never after a revocation). Memory only. Used by `exchange`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ztdpu.errors import ExchangeError
from ztdpu.keys.wrapping import EPOCH_KEY_OCTETS
from ztdpu.model.sa import SaWant

PREVIOUS_EPOCH_S: Final = 10.0


@dataclass(slots=True)
class _Network:
    generation: int
    epoch: int
    key: bytes = field(repr=False)
    before: tuple[int, bytes] | None = field(default=None, repr=False)
    before_until_s: float = 0.0


class EpochKeyRing:
    """Epoch keys of the networks that this device hosts."""

    __slots__ = ("_networks",)

    def __init__(self) -> None:
        self._networks: dict[bytes, _Network] = {}

    def set_key(self, network_id: bytes, generation: int, epoch: int, key: bytes, now_s: float | None) -> None:
        """Put a key in force. Without `now_s` the one before it is dropped at once.

        The same key again changes nothing. Raises ExchangeError for an older generation or epoch, or another
        key for the epoch in force; ValueError for a key that is not 32 octets.
        """
        if len(key) != EPOCH_KEY_OCTETS:
            raise ValueError(f"an epoch key has {EPOCH_KEY_OCTETS} octets, not {len(key)}")
        known = self._networks.get(network_id)
        fresh = _Network(generation, epoch, key)
        if known is not None:
            if (generation, epoch) == (known.generation, known.epoch):
                if key != known.key:
                    raise ExchangeError("another key for the epoch in force")
                return
            if (generation, epoch) < (known.generation, known.epoch):
                raise ExchangeError("the epoch goes back")
            if now_s is not None and generation == known.generation:
                fresh.before = (known.epoch, known.key)
                fresh.before_until_s = now_s + PREVIOUS_EPOCH_S
        self._networks[network_id] = fresh

    def key_for(self, want: SaWant, now_s: float) -> bytes:
        """Return the key that an SA for `want` is wrapped under.

        Raises ExchangeError when the network is not hosted here, is of another generation, or the epoch is
        neither the current one nor its predecessor within ten seconds.
        """
        network = self._networks.get(want.network_id)
        if network is None:
            raise ExchangeError("the network is not hosted here")
        if network.generation != want.network_generation:
            raise ExchangeError("the network is of another generation")
        if want.key_epoch == network.epoch:
            return network.key
        if network.before and network.before[0] == want.key_epoch and now_s < network.before_until_s:
            return network.before[1]
        raise ExchangeError("the key epoch is not in force")

    def current(self, network_id: bytes) -> tuple[int, int] | None:
        """Return (network generation, epoch) in force, None for a network that is not hosted here."""
        network = self._networks.get(network_id)
        return None if network is None else (network.generation, network.epoch)

    def forget_previous(self) -> None:
        """After a revocation: no earlier epoch is let in."""
        for network in self._networks.values():
            network.before = None

    def remove(self, network_id: bytes) -> None:
        """The network is gone from this device."""
        self._networks.pop(network_id, None)

    def clear(self) -> None:
        """The lease ended: no offer can be made or used."""
        self._networks.clear()
