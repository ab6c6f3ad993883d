"""The shell around `keys.exchange`: carries envelopes between uplink, exchange machine and worker.

1. The book underneath (`agent.exchange_book`) knows peers, networks, epoch keys and installed SAs.
2. `run` asks every peer for every shared network ahead of need, one request per peer at a time, and repeats an
   unanswered one verbatim (a receiver answers a repeated request from memory, without a new SPI).
3. `receive` takes an envelope: a request makes the worker derive keys, an offer makes it install them, a
   confirmation activates, a hint makes us ask again.
4. A peer whose SAs ended here by anything but its own doing is hinted until it asks (`agent.hints`).

Knows which send SAs the worker holds, not their keys. Called by `agent.daemon`, on its event loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from ztdpu.agent import mailbox
from ztdpu.agent.exchange_book import ExchangeBook, Outstanding, PeerState, read_clock_s
from ztdpu.agent.journal import log, warn
from ztdpu.agent.mailbox_channel import MailboxChannel
from ztdpu.agent.own_keys import generate_kem_key
from ztdpu.errors import ExchangeBusyError, ExchangeError, StateError
from ztdpu.keys.events import Activate, Allocate, Hint, Install, Resend
from ztdpu.keys.exchange import Exchange
from ztdpu.model.sa import PspVersion, SaGrant, SaUse, SaWant

FIRST_RESEND_S: Final = 0.25
LAST_RESEND_S: Final = 2.0
GIVE_UP_S: Final = 8.0
"""The machine forgets a request after 10 s; a fresh one takes its place before that."""
PAUSE_S: Final = 1.1
"""Between two fresh requests to one peer: it allows one a second by its own clock."""


class ExchangeShell(ExchangeBook):
    """One per daemon: the book, and everything that goes over a wire."""

    def __init__(
        self,
        *,
        trust_domain: str,
        channel: Callable[[], MailboxChannel | None],
        send: Callable[[str, bytes], bool],
        on_change: Callable[[], None],
    ) -> None:
        super().__init__(trust_domain=trust_domain, on_change=on_change)
        self._channel = channel
        self._send = send

    # --- asking ---

    async def run(self) -> None:
        """Ask and ask again, until cancelled."""
        while True:
            due_s = self._ask_due(read_clock_s())
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
            elif self.uses_to_ask(state):
                next_s = min(next_s, state.not_before_s)
        if self._epoch_keys:  # without a lease we could give nobody an answer
            self._send_hints(self._machine, now_s)
            next_s = min(next_s, self._hints.next_s(next_s))
        return max(next_s - now_s, 0.01)

    def _send_hints(self, machine: Exchange, now_s: float) -> None:
        for device, cause in self._hints.take_due(now_s):
            try:
                self._send(device, machine.hint(device, cause, now_s=now_s))
            except ExchangeError as error:
                log("hint-not-sent", peer=device, cause=error.message)

    def _ask_again(self, device: str, state: PeerState, pending: Outstanding, now_s: float) -> None:
        """Repeat a request verbatim, or make a fresh one when it is old or was made in an older state of things."""
        outdated = pending.generation < self._generation or pending.epochs != self.epochs_of(state)
        if outdated or now_s - pending.asked_s > GIVE_UP_S:
            state.outstanding = None
            self._ask(device, state, now_s)
            return
        pending.resend_pause_s = min(pending.resend_pause_s * 2, LAST_RESEND_S)
        pending.resend_at_s = now_s + pending.resend_pause_s
        self._send(device, pending.envelope)

    def _ask(self, device: str, state: PeerState, now_s: float) -> None:
        uses = self.uses_to_ask(state)
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
        except (ExchangeError, ValueError) as error:
            log("request-not-made", peer=device, cause=str(error))
            return
        state.outstanding = Outstanding(
            envelope=envelope,
            generation=self._generation,
            epochs=self.epochs_of(state),
            asked_s=now_s,
            resend_at_s=now_s + FIRST_RESEND_S,
            resend_pause_s=FIRST_RESEND_S,
        )
        self._send(device, envelope)

    # --- answering ---

    async def receive(self, device: str, envelope: bytes) -> None:
        """Take one envelope that control relayed. Refusals are logged and change nothing."""
        if self._machine is None:
            return
        try:
            event = self._machine.receive(device, envelope, now_s=read_clock_s())
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
        except ExchangeBusyError as error:
            log("exchange-busy", level="debug", peer=device, cause=error.message)
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
        self._send(event.device, machine.offer(event.request_hash, grants, now_s=read_clock_s()))
        self._hints.answered(event.device)

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
        state = self._peers.get(event.device)
        token = channel.next_token()
        question = mailbox.InstallSas(token, event.device, [_row(grant) for grant in event.grants])
        answer = await channel.ask(question, mailbox.SasInstalled, key=token)
        if state is None or self._peers.get(event.device) is not state:
            return  # the peer went away or restarted meanwhile, and with it what was installed
        for grant, spi in zip(event.grants, answer.spis, strict=False):
            if spi and grant.network_id in state.peer.networks:
                state.installed.add((grant.network_id, int(grant.use)))
                state.wanted.discard((grant.network_id, int(grant.use)))
        state.outstanding = None
        self._send(event.device, machine.installed(event.offer_hash, answer.spis, now_s=read_clock_s()))
        self._awake.set()
        self._on_change()

    def _hinted(self, event: Hint) -> None:
        """Ask again, unless control has yet to tell us of the peer's new worker."""
        state = self._peers.get(event.device)
        if state is None or state.peer.party.instance != event.instance:
            return
        if event.cause == "restart":
            state.installed.clear()
            state.outstanding = None  # an answer to it would be one from before the restart
            self._on_change()
        state.wanted |= {(network_id, int(SaUse.DATAGRAM)) for network_id in state.peer.networks}
        self._awake.set()

    def _worker(self) -> MailboxChannel:
        channel = self._channel()
        if channel is None:
            raise StateError("the worker is not there", remedy="it is restarted by itself")
        return channel


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
