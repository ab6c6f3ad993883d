"""The agent daemon: one event loop that joins life cycle, supervisor, attester, uplink, exchange and worker.

A reader's path: `run` starts everything; `_feed` gives an event to the life cycle and carries out its commands;
`_worker_said` takes what the worker says; `Conversation` (agent.conversation) takes what control says; `_reattach`
brings a fresh worker to where the old one stood; `_report` tells control how we stand.

Started by `agent.run` after both children run. Decides nothing about trust itself: it asks `trust` and `keys`.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from ztdpu.agent import lifecycle_words as words
from ztdpu.agent import mailbox, statement
from ztdpu.agent.attester import Answer, Attester, DeniedError, Identity
from ztdpu.agent.audit_mode import tell_audits
from ztdpu.agent.configuration import AgentSpec
from ztdpu.agent.conversation import Conversation
from ztdpu.agent.door import DoorClosedError
from ztdpu.agent.exchange_book import SELF_ASKED_S
from ztdpu.agent.exchange_shell import ExchangeShell
from ztdpu.agent.identity_keeper import IdentityKeeper
from ztdpu.agent.journal import log, warn
from ztdpu.agent.lifecycle import Lifecycle, Phase
from ztdpu.agent.mailbox_channel import MailboxChannel
from ztdpu.agent.own_keys import LeaseKemKeys
from ztdpu.agent.sidecar.server import Sidecar
from ztdpu.agent.start_files import StartFiles
from ztdpu.agent.supervisor import Child, Programs, Supervisor
from ztdpu.agent.uplink import Uplink
from ztdpu.agent.virtual_functions import VirtualFunctions
from ztdpu.errors import StateError, ZtdpuError
from ztdpu.keys.kem import kem_public_octets
from ztdpu.keys.messages import Party
from ztdpu.model.sa import SaEnd
from ztdpu.v1 import agent_pb2

REPORT_INTERVAL_S: Final = 1.0
REPORT_PAUSE_S: Final = 0.02
"""Several changes in a row make one report."""
DOOR_FAILURES_LIMIT: Final = 3
"""Attestations in a row that the root of trust itself may spoil."""


class Daemon:
    """One per process."""

    def __init__(self, spec: AgentSpec, files: StartFiles, wanted: Programs) -> None:
        self._spec = spec
        self._life = Lifecycle(max_lease_s=spec.max_lease_s)
        self._supervisor = Supervisor(
            wanted,
            on_worker_message=self._worker_said,
            on_worker_down=self._worker_down,
            on_root_up=lambda: self._feed(words.RootUp()),
            on_root_down=lambda: self._feed(words.RootDown()),
        )
        self._keeper = IdentityKeeper(spec, files.bundle_pem)
        believed = self._keeper.trust.pem
        self._attester = Attester(spec, doors=wanted.doors, bundle_pem=believed, join_token=files.join_token)
        self._kem_keys = LeaseKemKeys()
        self._exchange = ExchangeShell(
            trust_domain=spec.trust_domain, channel=self._channel, send=self._send_envelope, on_change=self._changed
        )
        self._functions = VirtualFunctions(
            spec.virtual_functions.factory_socket, channel=self._channel, on_change=self._changed
        )
        self._sidecar = Sidecar(spec.sidecar_folder, self._send)
        self._conversation = Conversation(
            spec,
            files,
            supervisor=self._supervisor,
            channel=self._channel,
            exchange=self._exchange,
            functions=self._functions,
            kem_keys=self._kem_keys,
            send=self._send,
            on_change=self._changed,
            sidecar=self._sidecar,
        )
        self._uplink = Uplink(
            spec.control.main,
            trust_domain=spec.trust_domain,
            bundle_pem=believed,
            hello=self._hello,
            on_message=self._control_said,
            on_open=self._uplink_opened,
            on_denied=lambda: self._feed(words.UplinkDenied()),
        )
        self._doors, self._door_failures = wanted.doors, 0
        self._instance = b""
        """Of the worker that runs; empty between two."""
        self._identity: Identity | None = None
        self._attempt: asyncio.Task[None] | None = None
        self._attach: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._report_due = asyncio.Event()
        self._stopping = asyncio.Event()

    async def run(self, root: Child | None = None, worker: Child | None = None) -> None:
        """Run until `stop`; takes over children that run already."""
        log("agent-started", device=self._spec.device)
        self._sidecar.begin()
        tasks = [
            asyncio.create_task(self._supervisor.keep_root(root), name="root-of-trust"),
            asyncio.create_task(self._supervisor.keep_worker(worker), name="worker"),
            asyncio.create_task(self._exchange.run(), name="exchange"),
            asyncio.create_task(self._conversation.run(), name="conversation"),
            asyncio.create_task(self._report(), name="report"),
        ]
        stop: asyncio.Task[object] = asyncio.create_task(self._stopping.wait(), name="stop")
        try:
            done, _ = await asyncio.wait([*tasks, stop], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stop}:
                await task
        finally:
            await self._stop([*tasks, stop])

    def stop(self) -> None:
        """Ask `run` to end."""
        self._stopping.set()

    async def _stop(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        self._feed(words.Stopping())
        if self._timer is not None:
            self._timer.cancel()
        running = [*tasks, *(task for task in (self._attempt, self._attach) if task is not None)]
        for task in running:
            task.cancel()
        self._functions.worker_gone()
        await asyncio.gather(self._sidecar.close(), *running, return_exceptions=True)
        await self._supervisor.stop()
        statement.write_health(self._spec.state_dir, statement.Health(phase=str(self._life.phase), ready=False))
        log("agent-stopped", device=self._spec.device)

    # --- life cycle ---

    def _feed(self, event: words.Event) -> None:
        """Give an event to the machine, carry out what it says, arm the one timer."""
        before = (self._life.phase, self._life.reason)
        for command in self._life.handle(event, now_ns=_boottime_ns(), jitter=random.random()):  # noqa: S311
            self._execute(command)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ns = self._life.next_timer_ns()
        if due_ns is not None:
            # The loop's clock stands still in suspend, BOOTTIME does not: look at least once a second.
            delay_s = min(max((due_ns - _boottime_ns()) / 1e9, 0.0), 1.0)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._feed, words.TimerFired())
        if before != (self._life.phase, self._life.reason):
            self._changed()

    def _execute(self, command: words.Command) -> None:
        match command:
            case words.BeginAttestation():
                self._attempt = asyncio.create_task(self._attest(afresh=command.afresh), name="attest")
                self._attempt.add_done_callback(self._attempt_ended)
            case words.AbandonAttestation():
                if self._attempt is not None:
                    self._attempt.cancel()
            case words.SetLease():
                self._tell_worker(mailbox.SetLease(command.deadline_ns))
                self._sidecar.book.set_lease(command.deadline_ns)
                if not command.deadline_ns:
                    self._exchange.clear_epoch_keys()
            case words.OpenUplink():
                if self._identity is not None:
                    self._uplink.open(self._identity)
            case words.CloseUplink():
                self._uplink.close()
            case words.RenewExchange():
                self._exchange.forget_installed()
                self._exchange.hint_all("restart")
            case words.RebootRoot():
                self._identity = None
                self._attester.forget_keys()
                self._supervisor.reboot_root()
            case words.Note():
                log(command.event, detail=command.detail)

    async def _attest(self, *, afresh: bool) -> None:
        """Run one attempt and feed its end to the life cycle."""
        event: words.Event
        try:
            if afresh:
                await self._conversation.drop_peers(cut_flows=self._life.phase is Phase.REFUSED)
            answer = await self._attester.attest(
                applied_generation=self._conversation.applied_generation,
                kem_public_key=kem_public_octets(self._kem_keys.ask()),
                afresh=afresh,
            )
            event = await self._take_answer(answer)
        except DeniedError as error:
            event = words.Refused(state="denied", reason=error.message, interval_ms=0)
        except DoorClosedError as error:
            event = words.Failed(cause=error.message)
            self._door_failed(error.message)
        except ZtdpuError as error:
            event = words.Failed(cause=error.message)
        else:
            self._door_failures = 0
        self._attempt = None
        self._feed(event)

    def _door_failed(self, cause: str) -> None:
        """A root of trust that cannot be reached any more, or keeps failing, is started anew."""
        self._door_failures += 1
        if self._door_failures < DOOR_FAILURES_LIMIT and self._doors.are_open:
            return
        warn("root-of-trust-unreachable", cause=cause)
        self._door_failures = 0
        self._supervisor.reboot_root(hangs=True)

    def _attempt_ended(self, attempt: asyncio.Task[None]) -> None:
        """A defect in an attempt is a failed attempt: it must not be the last one."""
        error = None if attempt.cancelled() else attempt.exception()
        if error is not None:
            warn("attestation-defect", cause=repr(error))
            self._feed(words.Failed(cause="internal"))

    async def _take_answer(self, answer: Answer) -> words.Event:
        for finding in answer.findings:
            warn("finding", detail=finding)
        await self._conversation.set_ear_key(answer.ear_public_key)
        if answer.identity is not None:
            self._take_identity(answer.identity)
        if answer.grant is None:
            return words.Refused(state=answer.state, reason=answer.reason, interval_ms=answer.interval_ms)
        self._kem_keys.granted()
        await self._conversation.take_grant(answer.grant)
        await self._conversation.judge_again(datetime.now(UTC))
        return words.Granted(
            duration_ms=answer.grant.duration_ms,
            interval_ms=answer.interval_ms,
            new_svid=answer.identity is not None,
        )

    def _take_identity(self, identity: Identity) -> None:
        changed = self._identity is None or self._identity.binding_sha256 != identity.binding_sha256
        self._identity = identity
        if changed:
            self._renew_exchange()

    def _renew_exchange(self) -> None:
        """Exchange as whom we are now: this binding, this worker."""
        if self._identity is not None and self._instance:
            me = Party(ueid=self._identity.ueid, binding_sha256=self._identity.binding_sha256, instance=self._instance)
            self._exchange.renew(me, self._identity.keys.offer_key)

    # --- worker ---

    def _channel(self) -> MailboxChannel | None:
        channel = self._supervisor.channel
        return channel if channel is not None and channel.is_open and self._instance else None

    def _tell_worker(self, message: mailbox.Message) -> None:
        channel = self._channel()
        if channel is not None:
            channel.send(message)

    def _worker_said(self, message: mailbox.Message) -> None:
        match message:
            case mailbox.WorkerReady():
                self._instance = message.instance
                log("worker-ready", instance=message.instance.hex()[:8])
                underlay = self._spec.underlay
                place = (str(underlay.address), underlay.mtu_octets, underlay.port)
                self._tell_worker(mailbox.Configure(self._spec.device, *place))
                self._attach = asyncio.create_task(self._reattach(), name="attach")
            case mailbox.SasWanted():
                self._exchange.want(message.peer, message.network_id, message.use)
            case mailbox.EndpointDown():
                self._functions.endpoint_down(message.endpoint_id, message.cause)
            case mailbox.AuditNoted():
                self._send(tell_audits(message))
            case mailbox.SaDeleted():
                self._exchange.sa_ended(message.peer, SaEnd(message.cause))
            case mailbox.ClockDoubt():
                warn("clock-doubt", step_ms=message.step_ms)
                self._exchange.forget_installed()
                self._feed(words.ClockDoubted(step_ms=message.step_ms))
            case mailbox.MasterKeyRotated():
                if message.refused:
                    warn("rotation-refused", lagging=message.refused)
                else:
                    self._exchange.hint_all("rotate")
            case _:
                pass

    def _worker_down(self) -> None:
        self._instance = b""
        if self._attach is not None:
            self._attach.cancel()
        self._functions.worker_gone()
        self._conversation.worker_gone()
        self._exchange.forget_installed()
        self._feed(words.WorkerDown())

    async def _reattach(self) -> None:
        """Bring a fresh worker to where the old one stood: tables, virtual functions, exchange, lease."""
        try:
            await self._conversation.apply_tables()
        except ZtdpuError as error:
            warn("tables-not-applied", cause=error.message)
        self._conversation.tell_worker_withheld()
        self._renew_exchange()
        self._exchange.hint_all("restart", after_s=SELF_ASKED_S)
        self._feed(words.WorkerUp())

    # --- control ---

    def _hello(self, identity: Identity) -> agent_pb2.AgentHello:
        return self._keeper.hello(identity, self._instance)

    def _control_said(self, message: agent_pb2.ControlMessage) -> None:
        if self._keeper.accept(message, self._attester, self._uplink):
            self._changed()
        else:
            self._conversation.accept(message)

    def _uplink_opened(self) -> None:
        self._exchange.uplink_opened()
        self._sidecar.uplink_opened()
        self._changed()

    def _send(self, message: agent_pb2.AgentMessage) -> bool:
        return self._uplink.send(message)

    def _send_envelope(self, device: str, envelope: bytes) -> bool:
        return self._send(agent_pb2.AgentMessage(sa=agent_pb2.SaEnvelope(device=device, envelope=envelope)))

    def _changed(self) -> None:
        self._report_due.set()

    async def _report(self) -> None:
        """Tell control how we stand, every second and on every change; note it for the health check too."""
        while True:
            try:
                async with asyncio.timeout(REPORT_INTERVAL_S):
                    await self._report_due.wait()
                await asyncio.sleep(REPORT_PAUSE_S)
            except TimeoutError:
                pass
            self._report_due.clear()
            await self._report_once()

    async def _report_once(self) -> None:
        counters: mailbox.Statistics | None = None
        channel = self._channel()
        if channel is not None:
            token = channel.next_token()
            try:
                counters = await channel.ask(mailbox.GetStatistics(token), mailbox.Statistics, key=token)
            except StateError as error:
                warn("worker-silent", cause=error.message)
                self._supervisor.replace_worker()
        waiting_for = statement.waiting_for(
            self._life, self._conversation, self._exchange, self._functions, worker_up=self._channel() is not None
        )
        self._send(
            statement.status(
                self._conversation,
                self._exchange,
                instance=self._instance,
                waiting_for=waiting_for,
                counters=counters,
                bundle_sequence=self._keeper.trust.sequence,
            )
        )
        health = statement.Health(
            phase=str(self._life.phase), ready=not waiting_for, waiting_for=waiting_for,
            lease_deadline_ns=self._life.lease_deadline_ns, boottime_ns=_boottime_ns(), pid=os.getpid(),
        )  # fmt: skip
        statement.write_health(self._spec.state_dir, health)


def _boottime_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
