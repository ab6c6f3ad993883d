"""What control says on the stream, message by message, and what this device knows because of it.

| message     | what happens                                                                                          |
|-------------|-------------------------------------------------------------------------------------------------------|
| roster      | operator's signature, rising serial; peers and tables are judged again                                |
| peers       | each verified on its own; who is gone (stale) or changed loses its SAs, not its flows; the rest goes  |
|             | to the exchange                                                                                       |
| config      | checked against revision, generation and roster; to the worker; then virtual functions                |
| sa          | to the exchange                                                                                       |
| revocation  | worker deletes everything of that device, then newer epoch keys, then the acknowledgement             |
| withholding | the same, of some networks of a peer or of this device, which keeps its lease                         |
| epoch_keys  | opened with the KEM keys of the last lease requests                                                   |
| rotate      | to the worker                                                                                         |
| workloads,  | to the sidecar, at once                                                                               |
| their answer|                                                                                                       |

`agent.uplink` hands messages to `accept`. A revocation starts at once in a task of its own, in order among
revocations, so neither a worker that is slow to answer something else nor a connection that is replaced holds it up.
Everything else waits in one queue that `run` works off in the order control sent it. What is refused is logged and
changes nothing: whatever was in force stays. Called by `agent.daemon`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

from ztdpu.agent import mailbox, tables_delivery
from ztdpu.agent.attester import Grant
from ztdpu.agent.configuration import AgentSpec
from ztdpu.agent.exchange_shell import ExchangeShell
from ztdpu.agent.floors import load_floors, raise_floors
from ztdpu.agent.journal import log, warn
from ztdpu.agent.mailbox_channel import MailboxChannel
from ztdpu.agent.own_keys import LeaseKemKeys
from ztdpu.agent.peer_book import PeerBook
from ztdpu.agent.sidecar.server import Sidecar
from ztdpu.agent.start_files import StartFiles
from ztdpu.agent.supervisor import Supervisor
from ztdpu.agent.tables_delivery import Delivery
from ztdpu.agent.virtual_functions import VirtualFunctions
from ztdpu.agent.withheld import Withheld
from ztdpu.errors import RefusedError, RosterError, StateError, ZtdpuError
from ztdpu.trust.roster import Roster, verify_roster
from ztdpu.v1 import agent_pb2

REMOVE_LIMIT_S = 0.8
"""A worker that has not removed a peer by then is ended: a revocation does not wait."""
JUDGED_FOR: Final = timedelta(seconds=60)
"""How long a judgement of all peers stands: it costs some signatures for each of them."""
WAITING_LIMIT: Final = 4096
"""Messages of control that wait; with more the connection that brings them ends."""


class Conversation:
    """State that control's messages build up. One per daemon."""

    def __init__(
        self,
        spec: AgentSpec,
        files: StartFiles,
        *,
        supervisor: Supervisor,
        channel: Callable[[], MailboxChannel | None],
        exchange: ExchangeShell,
        functions: VirtualFunctions,
        kem_keys: LeaseKemKeys,
        send: Callable[[agent_pb2.AgentMessage], bool],
        on_change: Callable[[], None],
        sidecar: Sidecar | None = None,
    ) -> None:
        self._spec = spec
        self._files = files
        self._supervisor = supervisor
        self._channel = channel
        self._exchange = exchange
        self._functions = functions
        self._kem_keys = kem_keys
        self._send = send
        self._on_change = on_change
        self._sidecar = sidecar
        self._floors = load_floors(spec.floors_folder)
        self._book = PeerBook(spec, manufacturer_roots=files.manufacturer_roots, floors=self._floors.peers)
        self._roster: Roster | None = None
        self._peers: agent_pb2.Peers | None = None
        self._peers_received = datetime.now(UTC)
        self._judged = self._peers_received
        """As of when peers were judged last."""
        self._delivery: Delivery | None = None
        """The newest tables that passed every check, whether a worker has them or not."""
        self._in_force: Delivery | None = None
        """What the present worker enforces."""
        self._applying = asyncio.Lock()
        """Control's message and a fresh worker may both want tables applied."""
        self._withheld = Withheld()
        self._revoked: dict[str, int] = {}
        """Device -> generation of its newest revocation."""
        self._seen_generation = 0
        """Newest generation of peers and revocations that was carried out."""
        self._heard_generation = 0
        """Newest generation of any list of peers that came in, carried out or still waiting."""
        self._waiting: asyncio.Queue[agent_pb2.ControlMessage] = asyncio.Queue(WAITING_LIMIT)
        self._changing = asyncio.Lock()
        """Control's messages, attestations and fresh workers judge and drop peers from tasks of their own."""
        self._revoking = asyncio.Lock()
        self._revocations: set[asyncio.Task[None]] = set()

    # --- what the daemon asks and tells ---

    @property
    def applied_generation(self) -> int:
        """Highest generation whose tables and revocations are carried out."""
        return max(self._seen_generation, self._in_force.generation if self._in_force else 0)

    @property
    def applied_revision(self) -> bytes:
        """Revision of the tables in force; empty before the first."""
        return self._in_force.revision if self._in_force else b""

    def missing(self) -> str:
        """Name what control has yet to say, or the worker to apply; empty when nothing."""
        if self._roster is None:
            return "roster"
        if self._delivery is None:
            return "tables"
        if self._in_force is not self._delivery:
            return f"tables of generation {self._delivery.generation} in the worker"
        if self._peers is None:
            return "list of peers"
        epochs = self._exchange.epochs
        networks = [one for one in self._delivery.tables.networks if one.network_id not in self._withheld.own]
        keyless = [one.tenant for one in networks if one.network_id.hex() not in epochs]
        return f"epoch key of {', '.join(sorted(keyless)[:8])}" if keyless else ""

    async def set_ear_key(self, public_key: bytes) -> None:
        """Take the key that signs attestation results, as control named it on the authenticated enrolment port."""
        async with self._changing:
            if self._book.set_ear_key(public_key):
                await self._judge_peers()

    def worker_gone(self) -> None:
        """Nothing is in force any more."""
        self._in_force = None

    async def judge_again(self, now: datetime) -> None:
        """Judge all peers by the present clock: whose attestation result or binding ended loses its SAs."""
        async with self._changing:
            if abs(now - self._judged) >= JUDGED_FOR:
                await self._judge_peers(now)

    async def drop_peers(self, *, cut_flows: bool) -> None:
        """Delete every SA, as a device that starts: no lease runs. Flows too when control shut this device out."""
        async with self._changing:
            devices = set(self._exchange.devices)
            if cut_flows and self._delivery is not None:
                devices |= {peer.device for peer in self._delivery.tables.peers}
            for device in sorted(devices):
                await self._remove_at_worker(device, cut_flows=cut_flows)
            self._exchange.forget_installed()

    # --- what control says ---

    def accept(self, message: agent_pb2.ControlMessage) -> None:
        """Begin a revocation, queue anything else. Raises StateError when too much waits."""
        kind = message.WhichOneof("message")
        if kind in ("revocation", "withholding"):
            step = self._revoke(message.revocation) if kind == "revocation" else self._withhold(message.withholding)
            task = asyncio.create_task(step, name=kind)
            self._revocations.add(task)
            task.add_done_callback(self._revocations.discard)
            return
        if self._sidecar is not None and self._sidecar.accept(message):
            return  # it changes nothing that the queue's order protects, and an endpoint waits for it
        if self._waiting.full():
            raise StateError("control says more than this device can carry out", remedy="look for a worker that hangs")
        if message.HasField("peers"):
            self._heard_generation = max(self._heard_generation, message.peers.generation)
        self._waiting.put_nowait(message)

    async def run(self) -> None:
        """Carry out what was queued, until cancelled."""
        while True:
            await self._carry_out(await self._waiting.get())

    async def _carry_out(self, message: agent_pb2.ControlMessage) -> None:
        kind = str(message.WhichOneof("message"))
        with self._noting(kind):
            match kind:
                case "sa":  # changes nothing here, and may wait long for the worker
                    await self._exchange.receive(message.sa.device, message.sa.envelope)
                case "rotate":
                    self._tell_worker(mailbox.RotateMasterKey(message.rotate.force))
                case _:
                    async with self._changing:
                        await self._change(message)

    async def _change(self, message: agent_pb2.ControlMessage) -> None:
        match message.WhichOneof("message"):
            case "roster":
                await self._take_roster(message.roster)
            case "peers":
                await self._take_peers(message.peers)
            case "config":
                await self._take_config(message.config)
            case "epoch_keys":
                keys = message.epoch_keys
                await self._take_epoch_keys(keys.sealed, keys.generation, keys.withheld_networks)
            case _:
                warn("message-unknown")

    async def _revoke(self, message: agent_pb2.Revocation) -> None:
        # Whatever list came before it, waiting ones included, does not bring the device back; nor does an open offer.
        # Both happen before anything is awaited, so no message behind it in the stream is carried out earlier.
        generation = max(message.generation, self._heard_generation)
        self._revoked[message.device] = max(generation, self._revoked.get(message.device, 0))
        self._exchange.remove_peer(message.device)
        with self._noting("revocation"):
            async with self._revoking:
                await self._take_revocation(message)

    async def _withhold(self, message: agent_pb2.Withholding) -> None:
        # As with a revocation, what is behind it in the stream is carried out later than this.
        networks, is_own = frozenset(message.networks), message.device == self._spec.device
        if is_own:
            self._withheld.withhold_own(networks, message.generation)
        else:
            self._withheld.withhold(message.device, networks, message.generation)
        self._exchange.withhold(networks, None if is_own else message.device)
        with self._noting("withholding"):
            async with self._revoking:
                self.tell_worker_withheld()
                await self._remove_lost()
                self._settle(message.generation, message.sealed_epoch_keys)
                log("networks-withheld", device=message.device, generation=message.generation, networks=len(networks))

    @contextmanager
    def _noting(self, kind: str) -> Iterator[None]:
        """Log what goes wrong with one message; the next one is carried out all the same."""
        try:
            yield
        except RefusedError as error:
            warn("refused", message=kind, code=error.code, cause=error.message)
        except ZtdpuError as error:
            warn("not-carried-out", message=kind, cause=error.message)
        except Exception as error:  # noqa: BLE001 - a defect ends this message, never the agent
            warn("message-defect", message=kind, cause=repr(error))
        self._on_change()

    async def _take_roster(self, message: agent_pb2.Roster) -> None:
        roster = verify_roster(
            message.roster,
            message.signature.decode("ascii", "replace"),
            self._files.operator_keys,
            self._floors.roster_serial,
            trust_domain=self._spec.trust_domain,
            current_sha256=bytes.fromhex(self._floors.roster_sha256) or None,
        )
        self._floors = raise_floors(
            self._spec.floors_folder,
            self._floors,
            roster_serial=roster.serial,
            roster_sha256=hashlib.sha256(message.roster).hexdigest(),
        )
        self._roster = roster
        await self._judge_peers()

    async def _take_peers(self, message: agent_pb2.Peers) -> None:
        if self._peers is not None and message.generation < self._peers.generation:
            raise RefusedError(f"peers of generation {message.generation} are older than {self._peers.generation}")
        self._peers, self._peers_received = message, datetime.now(UTC)
        await self._judge_peers()
        self._exchange.set_generation(message.generation)
        self._seen_generation = max(self._seen_generation, message.generation)

    async def _judge_peers(self, now: datetime | None = None) -> None:
        """Verify the list as of its arrival, or `now`; tell worker and exchange who changed."""
        if self._peers is None or self._roster is None or self._delivery is None:
            return
        # A list made before a revocation may arrive after it: it does not bring the revoked device back.
        generation, self._judged = self._peers.generation, now or self._peers_received
        standing = [one for one in self._peers.peers if generation > self._revoked.get(one.device, -1)]
        withheld = {
            one.device: self._withheld.between(one.device, one.withheld_networks, generation) for one in standing
        }
        live = self._book.judge(
            standing, roster=self._roster, tables=self._delivery.tables, now=self._judged, withheld=withheld
        )
        try:
            self._floors = raise_floors(self._spec.floors_folder, self._floors, peers=self._book.floors)
        except StateError as error:
            warn("floors-not-written", cause=error.message)
            live = self._book.settle(live, self._floors.peers, roster=self._roster)
        for device in self._exchange.set_peers(live):
            # Stale or restarted, nothing was found against it: its flows outlive the outage. A revocation says so.
            await self._remove_at_worker(device, cut_flows=False)
        await self._remove_lost()

    async def _take_config(self, message: agent_pb2.Config) -> None:
        delivery = tables_delivery.open_delivery(
            generation=message.generation,
            revision=message.revision,
            blob=message.tables,
            device=self._spec.device,
            lowest_generation=self._floors.generation,
        )
        if self._roster is None:
            raise RosterError("tables came before a roster that verifies")
        tables_delivery.check_against_roster(delivery.tables, self._roster)
        self._floors = raise_floors(self._spec.floors_folder, self._floors, generation=delivery.generation)
        self._delivery = delivery
        await self.apply_tables()
        self._exchange.set_generation(delivery.generation)
        await self._judge_peers()

    async def apply_tables(self) -> None:
        """Give the newest tables to the worker that runs, then see to the virtual functions they name.

        Raises TablesError when the worker refuses them, StateError when there is none.
        """
        async with self._applying:
            delivery, channel = self._delivery, self._channel()
            if delivery is None or channel is None:
                return
            cut = await tables_delivery.apply(delivery, channel)
            self._in_force = delivery
        log("tables-applied", generation=delivery.generation, revision=delivery.revision.hex()[:12], flows_cut=cut)
        self._exchange.set_networks(delivery.tables.networks)
        self._functions.set_endpoints({one.endpoint_id: one.name for one in delivery.tables.endpoints})
        if self._sidecar is not None:
            self._sidecar.set_endpoints(one.name for one in delivery.tables.endpoints)

    async def _take_revocation(self, message: agent_pb2.Revocation) -> None:
        await self._remove_at_worker(message.device, cut_flows=True)
        self._settle(message.generation, message.sealed_epoch_keys)
        log("peer-revoked", peer=message.device, cause=message.cause, generation=message.generation)

    def _settle(self, generation: int, sealed_epoch_keys: bytes) -> None:
        """SAs are deleted: newer epoch keys, and then the acknowledgement."""
        self._exchange.set_revocation(generation)
        if sealed_epoch_keys:
            keys = self._kem_keys.open_epoch_keys(sealed_epoch_keys, self._spec.device)
            self._exchange.set_epoch_keys(keys, generation=generation, after_revocation=True)
        self._seen_generation = max(self._seen_generation, generation)
        acknowledgement = agent_pb2.RevocationApplied(generation=generation)
        self._send(agent_pb2.AgentMessage(revocation_applied=acknowledgement))

    async def take_grant(self, grant: Grant) -> None:
        """Take the keys that came with a lease, and what is not for this device. Raises the last refusal."""
        async with self._changing:
            await self._take_epoch_keys(grant.sealed_epoch_keys, grant.generation, grant.withheld_networks)

    async def _take_epoch_keys(self, sealed: bytes, generation: int, withheld: Iterable[bytes]) -> None:
        """Open epoch keys with the key of one of the last lease requests; networks that are withheld end here."""
        keys = self._kem_keys.open_epoch_keys(sealed, self._spec.device)
        self._exchange.set_epoch_keys(keys, generation=generation)
        if self._withheld.set_own(withheld, generation):
            self.tell_worker_withheld()
            self._exchange.withhold(self._withheld.own)
            await self._judge_peers()
            await self._remove_lost()

    def tell_worker_withheld(self) -> None:
        """Have the worker (a fresh one too) move nothing in networks that are not for this device."""
        self._tell_worker(mailbox.SetWithheld(sorted(self._withheld.own)))

    async def _remove_lost(self) -> None:
        """Delete SAs of networks that peers lost; their flows wait, as through an outage."""
        for device, networks in self._exchange.take_lost().items():
            await self._remove_at_worker(device, cut_flows=False, networks=sorted(networks))

    async def _remove_at_worker(self, device: str, *, cut_flows: bool, networks: Sequence[bytes] = ()) -> None:
        """Return once nothing of `device` (in `networks`, if any) is accepted; a silent worker is ended for it."""
        channel = self._channel()
        if channel is None:
            await self._supervisor.end_leaving_worker()
            return
        token = channel.next_token()
        try:
            question = mailbox.RemovePeer(token, device, cut_flows, list(networks))
            await channel.ask(question, mailbox.PeerRemoved, key=token, limit_s=REMOVE_LIMIT_S)
            if not networks:
                self._exchange.forget_installed(device)  # what was installed before the worker removed it is gone too
        except StateError as error:
            warn("worker-ended-for-a-peer", peer=device, cause=error.message)
            await self._supervisor.end_worker()

    def _tell_worker(self, message: mailbox.Message) -> None:
        channel = self._channel()
        if channel is not None:
            channel.send(message)
