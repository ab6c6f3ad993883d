"""The shell around `keys.exchange`: carries envelopes between uplink, exchange machine and worker.

1. `set_*` tell it who the peers are, which networks they share with us and which epoch keys are in force.
2. `run` asks every peer for every shared network ahead of need, one request per peer at a time, and repeats an
   unanswered one verbatim (a receiver answers a repeated request from memory, without a new SPI).
3. `receive` takes an envelope: a request makes the worker derive keys, an offer makes it install them, a
   confirmation activates, a hint makes us ask again.

Knows which send SAs the worker holds, not their keys. Called by `agent.daemon`, on its event loop.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec

from ztdpu.agent import mailbox
from ztdpu.agent.journal import log, warn
from ztdpu.agent.mailbox_channel import MailboxChannel
from ztdpu.agent.own_keys import generate_kem_key
from ztdpu.errors import ExchangeError, StateError
from ztdpu.keys.epoch import EpochKey
from ztdpu.keys.events import Activate, Allocate, Hint, Install, Resend
from ztdpu.keys.exchange import Exchange
from ztdpu.keys.messages import Party
from ztdpu.keys.parties import Peer
from ztdpu.model.sa import PspVersion, SaGrant, SaUse, SaWant
from ztdpu.packet.tables import NetworkTable

FIRST_RESEND_S: Final = 0.25
LAST_RESEND_S: Final = 2.0
GIVE_UP_S: Final = 8.0
"""The machine forgets a request after 10 s; a fresh one takes its place before that."""
PAUSE_S: Final = 1.1
"""Between two fresh requests to one peer: it allows one a second by its own clock."""

Use = tuple[bytes, int]
"""Network id and SA use."""


@dataclass(slots=True, kw_only=True)
class _Outstanding:
    """A request that waits for its offer."""

    envelope: bytes
    generation: int
    """Fleet generation and epochs that it was made under: once they moved on, it is made anew."""
    epochs: tuple[int, ...]
    asked_s: float
    resend_at_s: float
    resend_pause_s: float = FIRST_RESEND_S


@dataclass(slots=True)
class _PeerState:
    """What we know of one peer's SAs."""

    peer: Peer
    installed: set[Use]
    wanted: set[Use]
    """To ask for although it may be installed: the worker or the peer said so."""
    outstanding: _Outstanding | None = None
    not_before_s: float = 0.0


class ExchangeShell:
    """One per daemon; `renew` tells it as whom to speak."""

    def __init__(
        self,
        *,
        trust_domain: str,
        channel: Callable[[], MailboxChannel | None],
        send: Callable[[str, bytes], bool],
        on_change: Callable[[], None],
    ) -> None:
        self._trust_domain = trust_domain
        self._channel = channel
        self._send = send
        self._on_change = on_change
        self._machine: Exchange | None = None
        self._peers: dict[str, _PeerState] = {}
        self._networks: dict[bytes, NetworkTable] = {}
        self._epoch_keys: dict[bytes, EpochKey] = {}
        self._generation = 0
        self._revocation_generation = 0
        self._awake = asyncio.Event()

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
            self._machine.set_me(me, offer_key, now_s=_now_s())
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
        for network_id in [one for one in self._epoch_keys if one not in self._networks]:
            del self._epoch_keys[network_id]
            if self._machine is not None:
                self._machine.remove_network(network_id)
        self._awake.set()

    def set_epoch_keys(self, keys: Sequence[EpochKey], *, after_revocation: bool = False) -> None:
        """Take epoch keys; networks not named keep theirs. After a revocation the epochs before end at once."""
        grace_s = None if after_revocation else _now_s()
        for key in keys:
            known = self._epoch_keys.get(key.network_id)
            if known is not None and (known.network_generation, known.epoch) > (key.network_generation, key.epoch):
                continue
            self._epoch_keys[key.network_id] = key
            if self._machine is not None:
                self._machine.set_epoch_key(key.network_id, key.network_generation, key.epoch, key.key, now_s=grace_s)
        self._awake.set()

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
                self._machine.set_peer(peer, now_s=_now_s())
            if known is None:
                self._peers[name] = _PeerState(peer, set(), set())
            elif known.peer.party.instance != peer.party.instance:
                ended.append(name)
                self._peers[name] = _PeerState(peer, set(), set())
            else:
                if known.peer.offer_public_key.public_numbers() != peer.offer_public_key.public_numbers():
                    known.outstanding = None
                known.peer = peer
        self._awake.set()
        return ended

    def remove_peer(self, device: str) -> None:
        """Forget a peer that is no longer live."""
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

    def want(self, device: str, network_id: bytes, use: int) -> None:
        """Ask for one SA (again): packets wait for it, or the one in use is near its end."""
        state = self._peers.get(device)
        if state is not None and network_id in state.peer.networks:
            state.wanted.add((network_id, use))
            self._awake.set()

    def hint_all(self, cause: str) -> None:
        """Tell every peer to ask us again: `rotate` or `restart`."""
        if self._machine is None:
            return
        for device in self._peers:
            try:
                self._send(device, self._machine.hint(device, cause, now_s=_now_s()))
            except ExchangeError as error:
                log("hint-not-sent", peer=device, cause=error.message)

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

    # --- asking ---

    async def run(self) -> None:
        """Ask and ask again, until cancelled."""
        while True:
            due_s = self._ask_due(_now_s())
            try:
                async with asyncio.timeout(due_s):
                    await self._awake.wait()
            except TimeoutError:
                continue
            finally:
                self._awake.clear()

    def _ask_due(self, now_s: float) -> float:
        """Send what is due; returns seconds until something may be due again."""
        if self._machine is None or self._channel() is None:
            return PAUSE_S
        self._machine.expire(now_s)
        next_s = now_s + PAUSE_S
        for device, state in self._peers.items():
            pending = state.outstanding
            if pending is None:
                self._ask(device, state, now_s)
            elif now_s >= pending.resend_at_s:
                self._ask_again(device, state, pending, now_s)
            if state.outstanding is not None:
                next_s = min(next_s, state.outstanding.resend_at_s)
            elif self._uses_to_ask(state):
                next_s = min(next_s, state.not_before_s)
        return max(next_s - now_s, 0.01)

    def _ask_again(self, device: str, state: _PeerState, pending: _Outstanding, now_s: float) -> None:
        """Repeat a request verbatim, or make a fresh one when it is old or was made in an older state of things."""
        outdated = pending.generation < self._generation or pending.epochs != self._epochs_of(state)
        if outdated or now_s - pending.asked_s > GIVE_UP_S:
            state.outstanding = None
            self._ask(device, state, now_s)
            return
        pending.resend_pause_s = min(pending.resend_pause_s * 2, LAST_RESEND_S)
        pending.resend_at_s = now_s + pending.resend_pause_s
        self._send(device, pending.envelope)

    def _epochs_of(self, state: _PeerState) -> tuple[int, ...]:
        """Epochs of all networks shared with a peer."""
        keys = (self._epoch_keys.get(network_id) for network_id in sorted(state.peer.networks))
        return tuple(key.epoch if key is not None else -1 for key in keys)

    def _uses_to_ask(self, state: _PeerState) -> list[Use]:
        ahead = {(network_id, int(SaUse.DATAGRAM)) for network_id in state.peer.networks}
        wanted = (ahead - state.installed) | state.wanted
        return sorted(use for use in wanted if use[0] in self._networks and use[0] in self._epoch_keys)[:64]

    def _ask(self, device: str, state: _PeerState, now_s: float) -> None:
        uses = self._uses_to_ask(state)
        if not uses or now_s < state.not_before_s or self._machine is None:
            return
        wants = [
            SaWant(
                network_id=network_id,
                network_generation=self._networks[network_id].generation,
                key_epoch=self._epoch_keys[network_id].epoch,
                use=SaUse(use),
            )
            for network_id, use in uses
        ]
        state.not_before_s = now_s + PAUSE_S
        try:
            envelope = self._machine.request(
                device, wants, now_s=now_s, request_id=os.urandom(16), kem_private_key=generate_kem_key()
            )
        except ExchangeError as error:
            log("request-not-made", peer=device, cause=error.message)
            return
        state.outstanding = _Outstanding(
            envelope=envelope,
            generation=self._generation,
            epochs=self._epochs_of(state),
            asked_s=now_s,
            resend_at_s=now_s + FIRST_RESEND_S,
        )
        self._send(device, envelope)

    # --- answering ---

    async def receive(self, device: str, envelope: bytes) -> None:
        """Take one envelope that control relayed. Refusals are logged and change nothing."""
        if self._machine is None:
            return
        try:
            event = self._machine.receive(device, envelope, now_s=_now_s())
            match event:
                case Allocate():
                    await self._allocate(self._machine, event)
                case Resend():
                    self._send(event.device, event.envelope)
                case Install():
                    await self._install(self._machine, event)
                case Activate():
                    self._worker().send(mailbox.ActivateSas(event.device, list(event.spis)))
                case Hint():
                    self._hinted(event)
        except ExchangeError as error:
            warn("exchange-refused", peer=device, cause=error.message)
        except (StateError, ValueError) as error:
            log("exchange-interrupted", peer=device, cause=str(error))

    async def _allocate(self, machine: Exchange, event: Allocate) -> None:
        try:
            grants = await self._ask_for_grants(event)
        except StateError:
            machine.decline(event.request_hash)
            raise
        self._send(event.device, machine.offer(event.request_hash, grants, now_s=_now_s()))

    async def _ask_for_grants(self, event: Allocate) -> list[SaGrant]:
        """Have the worker pick SPIs and derive keys. Raises StateError when it does not."""
        channel = self._worker()
        rows: list[list[Any]] = [
            [want.network_id, int(want.use), want.lane, self._networks[want.network_id].psp_version]
            for want in event.wants
            if want.network_id in self._networks
        ]
        token = channel.next_token()
        question = mailbox.AllocateSas(token, event.device, rows)
        answer = await channel.ask(question, mailbox.SasAllocated, key=token)
        if len(answer.grants) != len(event.wants):
            raise StateError("the worker allocated nothing", remedy="it does so once it has tables and a lease")
        return [_grant(row) for row in answer.grants]

    async def _install(self, machine: Exchange, event: Install) -> None:
        channel = self._worker()
        token = channel.next_token()
        question = mailbox.InstallSas(token, event.device, [_row(grant) for grant in event.grants])
        answer = await channel.ask(question, mailbox.SasInstalled, key=token)
        state = self._peers.get(event.device)
        if state is None:
            return
        for grant, spi in zip(event.grants, answer.spis, strict=False):
            if spi:
                state.installed.add((grant.network_id, int(grant.use)))
                state.wanted.discard((grant.network_id, int(grant.use)))
        state.outstanding = None
        self._send(event.device, machine.installed(event.offer_hash, answer.spis, now_s=_now_s()))
        self._awake.set()
        self._on_change()

    def _hinted(self, event: Hint) -> None:
        """Ask again, unless control has yet to tell us of the peer's new worker."""
        state = self._peers.get(event.device)
        if state is None or state.peer.party.instance != event.instance:
            return
        if event.cause == "restart":
            state.installed.clear()
            self._on_change()
        state.wanted |= {(network_id, int(SaUse.DATAGRAM)) for network_id in state.peer.networks}
        self._awake.set()

    def _worker(self) -> MailboxChannel:
        channel = self._channel()
        if channel is None:
            raise StateError("the worker is not there", remedy="it is restarted by itself")
        return channel


def _now_s() -> float:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) / 1e9


def _grant(row: Sequence[Any]) -> SaGrant:
    network_id, use, lane, version, spi, key, ttl_s, soft_limit_octets = row
    return SaGrant(
        network_id=network_id,
        use=SaUse(use),
        lane=lane,
        psp_version=PspVersion(version),
        spi=spi,
        key=key,
        ttl_s=ttl_s,
        soft_limit_octets=soft_limit_octets,
    )


def _row(grant: SaGrant) -> list[Any]:
    return [
        grant.network_id, int(grant.use), grant.lane, int(grant.psp_version),
        grant.spi, grant.key, grant.ttl_s, grant.soft_limit_octets,
    ]  # fmt: skip
