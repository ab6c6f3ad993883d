"""Epoch keys of networks: which is current, since when, why. Memory only; a restart begins new epochs.

Pure: keys and numbers come from the caller (the number is durable before the key is used, protocols.md 5.3).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ztdpu.keys.epoch import EpochKey
from ztdpu.model.tenant import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """The current epoch of one network."""

    network: Network
    key: EpochKey
    created_unix_ms: int
    cause: str


class Epochs:
    """Current epoch of every network."""

    def __init__(self) -> None:
        self._current: dict[bytes, Epoch] = {}

    def begin(self, network: Network, *, epoch: int, key: bytes, cause: str, now_unix_ms: int) -> Epoch:
        """Make `epoch` the current one of `network`; the key before it is gone with this."""
        begun = Epoch(
            network=network,
            key=EpochKey(network_id=network.network_id, network_generation=network.generation, epoch=epoch, key=key),
            created_unix_ms=now_unix_ms,
            cause=cause,
        )
        self._current[network.network_id] = begun
        return begun

    def forget(self, keep: Iterable[bytes]) -> None:
        """Drop every network that is not in `keep`."""
        wanted = set(keep)
        self._current = {network_id: epoch for network_id, epoch in self._current.items() if network_id in wanted}

    def get(self, network_id: bytes) -> Epoch | None:
        """The current epoch of a network."""
        return self._current.get(network_id)

    def list(self) -> tuple[Epoch, ...]:
        """All, by tenant."""
        return tuple(sorted(self._current.values(), key=lambda epoch: epoch.network.tenant))

    def keys_of(self, networks: Iterable[str]) -> tuple[EpochKey, ...]:
        """Current keys of the networks of these tenants and Peerings."""
        wanted = set(networks)
        return tuple(epoch.key for epoch in self.list() if epoch.network.tenant in wanted)
