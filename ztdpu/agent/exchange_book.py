"""What is known for SA exchanges: as whom we speak, peers, networks, epoch keys, and which send SAs there are.

Keeps `keys.exchange` told of every change, and itself apart from it, since the machine knows nothing of what the
worker installed. No I/O: `agent.exchange_shell` asks and answers on top of it. Told by `agent.conversation` (what
control says) and `agent.daemon` (lease, worker).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec

from ztdpu.agent.hints import Hints
from ztdpu.keys.epoch import EpochKey
from ztdpu.keys.exchange import Exchange
from ztdpu.keys.messages import Party
from ztdpu.keys.parties import Peer
from ztdpu.model.sa import SaEnd, SaUse
from ztdpu.packet.tables import NetworkTable

Use = tuple[bytes, int]
"""Network id and SA use."""
SELF_ASKED_S: Final = 0.5
"""A peer that is new, or gets to know of our new worker, asks by itself; only if it does not is it hinted."""
_BOTH_WAYS: Final = frozenset({SaEnd.LEASE_ENDED, SaEnd.CLOCK_DOUBT, SaEnd.NETWORK_GONE})
"""Ends of a receive SA that took the send SAs of the peer along."""


@dataclass(slots=True, kw_only=True)
class Outstanding:
    """A request that waits for its offer."""

    envelope: bytes
    generation: int
    """Fleet generation and epochs that it was made under: once they moved on, it is made anew."""
    epochs: tuple[int, ...]
    asked_s: float
    resend_at_s: float
    resend_pause_s: float


@dataclass(slots=True)
class PeerState:
    """What we know of one peer's SAs."""

    peer: Peer
    installed: set[Use]
    wanted: set[Use]
    """To ask for although it may be installed: the worker or the peer said so."""
    outstanding: Outstanding | None = None
    not_before_s: float = 0.0


class ExchangeBook:
    """Everything about exchanges that is not a message under way."""

    def __init__(self, *, trust_domain: str, on_change: Callable[[], None]) -> None:
        self._trust_domain = trust_domain
        self._on_change = on_change
        self._machine: Exchange | None = None
        self._peers: dict[str, PeerState] = {}
        self._networks: dict[bytes, NetworkTable] = {}
        self._epoch_keys: dict[bytes, EpochKey] = {}
        self._keys_generation = 0
        """Of the newest delivery of epoch keys: an older one that comes later is not what control wants now."""
        self._lost: dict[str, set[bytes]] = {}
        """Peer -> networks withheld since the worker was told last."""
        self._generation = 0
        self._revocation_generation = 0
        self._hints = Hints()
        self._awake = asyncio.Event()
        """Set when something may have to be asked for."""

    # --- what the daemon tells ---

    def renew(self, me: Party, offer_key: ec.EllipticCurvePrivateKey) -> None:
        """Speak as `me` from now on; a new worker instance voids what is under way, a new binding does not."""
        if self._machine is None:
            self._machine = Exchange(trust_domain=self._trust_domain, me=me, offer_key=offer_key)
            self._machine.set_generation(self._generation)
            self._machine.set_revocation_generation(self._revocation_generation)
            for key in self._epoch_keys.values():
                self._machine.set_epoch_key(key.network_id, key.network_generation, key.epoch, key.key)
            for state in self._peers.values():
                self._machine.set_peer(state.peer)
        else:
            self._machine.set_me(me, offer_key, now_s=read_clock_s())
        self._awake.set()

    def set_generation(self, generation: int) -> None:
        """Note a newer fleet generation; an older one is ignored."""
        self._generation = max(self._generation, generation)
        if self._machine is not None:
            self._machine.set_generation(self._generation)

    def set_revocation(self, generation: int) -> None:
        """From now on refuse peers that have not heard of this revocation."""
        self._revocation_generation = max(self._revocation_generation, generation)
        if self._machine is not None:
            self._machine.set_revocation_generation(self._revocation_generation)
        self.set_generation(generation)

    def set_networks(self, networks: Sequence[NetworkTable]) -> None:
        """Take the networks of the tables in force."""
        self._networks = {network.network_id: network for network in networks}
        self._forget_networks(self._epoch_keys.keys() - self._networks.keys())
        self._awake.set()

    def set_epoch_keys(self, keys: Sequence[EpochKey], *, generation: int, after_revocation: bool = False) -> None:
        """Take the keys of all networks; one not named is forgotten. After a revocation earlier epochs end."""
        if generation < self._keys_generation:
            return
        self._keys_generation = generation
        self._forget_networks(self._epoch_keys.keys() - {key.network_id for key in keys})
        grace_s = None if after_revocation else read_clock_s()
        for key in keys:
            known = self._epoch_keys.get(key.network_id)
            if known is not None and (known.network_generation, known.epoch) > (key.network_generation, key.epoch):
                continue
            self._epoch_keys[key.network_id] = key
            if self._machine is not None:
                self._machine.set_epoch_key(key.network_id, key.network_generation, key.epoch, key.key, now_s=grace_s)
        self._awake.set()

    def _forget_networks(self, network_ids: Iterable[bytes]) -> None:
        for network_id in network_ids:
            del self._epoch_keys[network_id]
            if self._machine is not None:
                self._machine.remove_network(network_id)

    def withhold(self, networks: frozenset[bytes], device: str | None = None) -> None:
        """From now on nothing of these networks is asked, answered or installed with `device` (None: with anybody)."""
        for name, state in self._peers.items():
            if device in (None, name) and state.peer.networks & networks:
                lost = state.peer.networks & networks
                peer = replace(state.peer, networks=state.peer.networks - lost, withheld=state.peer.withheld | lost)
                if self._machine is not None:
                    self._machine.set_peer(peer, now_s=read_clock_s())
                self._renew_peer(name, state, peer)
        self._awake.set()

    def take_lost(self) -> dict[str, set[bytes]]:
        """Peers and networks whose SAs the worker must delete, since the last call."""
        lost, self._lost = self._lost, {}
        return lost

    def _renew_peer(self, device: str, state: PeerState, peer: Peer) -> None:
        """The same worker as before, perhaps in fewer networks."""
        gone = state.peer.networks - peer.networks
        if gone:
            self._lost.setdefault(device, set()).update(gone)
            state.installed = {use for use in state.installed if use[0] not in gone}
            state.wanted = {use for use in state.wanted if use[0] not in gone}
        if gone or state.peer.offer_public_key.public_numbers() != peer.offer_public_key.public_numbers():
            state.outstanding = None
        state.peer = peer

    def clear_epoch_keys(self) -> None:
        """The lease ended: nothing is offered or taken until keys come with a new one."""
        self._epoch_keys.clear()
        if self._machine is not None:
            self._machine.clear_epoch_keys()

    def set_peers(self, peers: Mapping[str, Peer]) -> list[str]:
        """Take the live peers. Returns those whose SAs end: gone, or with another worker than before."""
        ended = [name for name in self._peers if name not in peers]
        for name in ended:
            self.remove_peer(name)
        for name, peer in peers.items():
            known = self._peers.get(name)
            if self._machine is not None:
                self._machine.set_peer(peer, now_s=read_clock_s())
            if known is None or known.peer.party.instance != peer.party.instance:
                if known is not None:
                    ended.append(name)
                self._peers[name] = PeerState(peer, set(), set())
                # What it may still hold from before, nobody opens here.
                self._hints.owe(name, "restart", read_clock_s() + SELF_ASKED_S)
            else:
                self._renew_peer(name, known, peer)
        self._awake.set()
        return ended

    def remove_peer(self, device: str) -> None:
        """Forget a peer that is no longer live."""
        self._hints.forget(device)
        if self._peers.pop(device, None) is not None and self._machine is not None:
            self._machine.remove_peer(device)

    def forget_installed(self, device: str | None = None) -> None:
        """The SAs towards `device` (or everybody) are gone or doubtful: ask again."""
        for name, state in self._peers.items():
            if device in (None, name):
                state.installed.clear()
                state.outstanding = None
        self._awake.set()
        self._on_change()

    def hint_all(self, cause: str, *, after_s: float = 0.0) -> None:
        """Have every peer ask us again, `rotate` or `restart`: sent until it does."""
        for device in self._peers:
            self._hints.owe(device, cause, read_clock_s() + after_s)
        self._awake.set()

    def uplink_opened(self) -> None:
        """Envelopes reach control (again)."""
        self._hints.hasten(read_clock_s())
        self._awake.set()

    def sa_ended(self, device: str, end: SaEnd) -> None:
        """A receive SA of `device` ended at the worker: see that it does not go on sealing to it."""
        if device not in self._peers or end in (SaEnd.DRAINED, SaEnd.PEER_REMOVED):
            return
        if end in _BOTH_WAYS:
            self.forget_installed(device)
            if self._machine is not None:
                self._machine.void_offers(device)
        # It may have installed the offer without our hearing of it, so that one is hinted too.
        cause = "rotate" if end is SaEnd.OFFER_UNANSWERED else "restart"
        self._hints.owe(device, cause, read_clock_s())
        self._awake.set()

    def want(self, device: str, network_id: bytes, use: int) -> None:
        """Ask for one SA (again): packets wait for it, or the one in use is near its end."""
        state = self._peers.get(device)
        if state is not None and network_id in state.peer.networks:
            state.wanted.add((network_id, use))
            self._awake.set()

    # --- what the daemon asks ---

    @property
    def epochs(self) -> dict[str, int]:
        """Epoch in use by network id in hexadecimal."""
        return {network_id.hex(): key.epoch for network_id, key in self._epoch_keys.items()}

    @property
    def devices(self) -> tuple[str, ...]:
        """Live peers."""
        return tuple(self._peers)

    def missing(self) -> list[tuple[str, bytes]]:
        """Peers and networks without a send SA, in order of name."""
        return [
            (name, network_id)
            for name, state in sorted(self._peers.items())
            for network_id in sorted(state.peer.networks)
            if network_id in self._networks and (network_id, SaUse.DATAGRAM) not in state.installed
        ]

    # --- what the shell asks ---

    def epochs_of(self, state: PeerState) -> tuple[int, ...]:
        """Epochs of all networks shared with a peer."""
        keys = (self._epoch_keys.get(network_id) for network_id in sorted(state.peer.networks))
        return tuple(key.epoch if key is not None else -1 for key in keys)

    def uses_to_ask(self, state: PeerState) -> list[Use]:
        """What to ask a peer for: every shared network ahead of need, and whatever is wanted beside; at most 64."""
        ahead = {(network_id, int(SaUse.DATAGRAM)) for network_id in state.peer.networks}
        wanted = (ahead - state.installed) | state.wanted
        return sorted(use for use in wanted if use[0] in self._networks and use[0] in self._epoch_keys)[:64]


def read_clock_s() -> float:
    """Seconds of CLOCK_BOOTTIME, the clock of all exchanges."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) / 1e9
