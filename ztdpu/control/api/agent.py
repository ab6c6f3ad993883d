"""AgentService: the stream of a leased device. State of the device is checked for each message that it sends."""

# ruff: noqa: N802 - gRPC fixes the names of methods
from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, Final

from ztdpu.control.api.workload import answer_to_message, read_action, workloads_to_message
from ztdpu.control.authority.followers import Followers
from ztdpu.control.authority.issue import Issuer
from ztdpu.control.doors.authorisation import ACCESS, Caller
from ztdpu.control.doors.hub import (
    SA_ENVELOPE_LIMIT_OCTETS,
    BundlePush,
    ConfigPush,
    Connection,
    EpochKeysPush,
    IdentityAlarmPush,
    PeersPush,
    Push,
    RevocationPush,
    RosterPush,
    RotatePush,
    SaPush,
    WithholdingPush,
)
from ztdpu.control.doors.identity_proof import IdentityProof
from ztdpu.control.fleet import Fleet
from ztdpu.control.meters import Meters
from ztdpu.control.policy.audit_mode import AuditModeLog
from ztdpu.control.workloads.identities import Workloads
from ztdpu.control.workloads.push import WorkloadAnswerPush, WorkloadsPush
from ztdpu.errors import ConflictError, PermissionDeniedError, UnreachableError, UsageError, ZtdpuError
from ztdpu.telemetry import get_logger
from ztdpu.v1 import agent_pb2, agent_pb2_grpc

HELLO_LIMIT_S: Final = 10.0
INSTANCE_OCTETS: Final = 16
COUNTERS_LIMIT: Final = 256
TEXT_LIMIT: Final = 256


class AgentServicer(agent_pb2_grpc.AgentServiceServicer):
    """One Connect stream per device; a newer one takes over from an older one."""

    def __init__(
        self,
        fleet: Fleet,
        meters: Meters,
        workloads: Workloads,
        followers: Followers,
        issuer: Issuer,
        proof: IdentityProof,
    ) -> None:
        self._fleet = fleet
        self._meters = meters
        self._workloads = workloads
        self._followers = followers
        self._issuer = issuer
        self._audit_mode = AuditModeLog(fleet, meters)
        self._proof = proof

    async def Connect(
        self, request_iterator: AsyncIterator[agent_pb2.AgentMessage], context: Any
    ) -> AsyncIterator[agent_pb2.ControlMessage]:
        """See agent.proto."""
        fleet = self._fleet
        connection = await self._greet(request_iterator, ACCESS.get().caller, str(context.peer()))
        fleet.hub.connect(connection, superseded=ConflictError("a newer stream of this device took over"))
        reader = asyncio.create_task(self._read(request_iterator, connection))
        try:
            fleet.set_worker_instance(connection.device, connection.worker_instance)
            fleet.hub.deliver(connection.device, BundlePush(document=self._issuer.bundle_document))
            fleet.push_first(connection.device)
            while True:
                yield push_to_message(await connection.outbox.get())
        finally:
            reader.cancel()
            fleet.hub.disconnect(connection)

    async def _greet(self, messages: AsyncIterator[agent_pb2.AgentMessage], caller: Caller, peer: str) -> Connection:
        connection = Connection(
            device=caller.device,
            tls_spki_sha256=caller.tls_spki_sha256,
            certificate_expires_unix_s=caller.certificate_expires_unix_s,
            authority=caller.authority,
            since_unix_ms=self._fleet.now().unix_ms,
        )
        if caller.device not in self._fleet.desired.cluster.devices:
            raise PermissionDeniedError("no such device in the policy in force")
        self._fleet.require_connected(connection)
        async with asyncio.timeout(HELLO_LIMIT_S):
            first = await anext(messages, None)
        if first is None or first.WhichOneof("message") != "hello":
            raise UsageError("the first message is hello")
        # The wait for it may have been long enough for the lease to end.
        self._fleet.require_connected(connection)
        hello, binding = first.hello, self._fleet.binding(caller.device)
        if hello.device != caller.device or binding is None or hello.binding_sha256 != binding.binding_sha256:
            raise PermissionDeniedError("hello does not fit the identity or the live binding", remedy="attest again")
        _check_instance(hello.worker_instance)
        self._proof.require(
            caller,
            binding,
            worker_instance=hello.worker_instance,
            number=hello.number,
            signature=hello.offer_signature,
            peer=peer,
        )
        is_new = hello.worker_instance != self._fleet.record(caller.device).worker_instance
        if is_new and not self._fleet.hub.take_worker(caller.device, now_s=time.monotonic()):
            raise UnreachableError("too many new workers of this device", remedy="wait a moment")
        connection.worker_instance = hello.worker_instance
        return connection

    async def _read(self, messages: AsyncIterator[agent_pb2.AgentMessage], connection: Connection) -> None:
        """Take what the agent says until it stops or says something it may not."""
        try:
            async for message in messages:
                self._fleet.require_connected(connection)
                self._take(message, connection)
            connection.outbox.close(UnreachableError("the agent hung up"))
        except ZtdpuError as error:
            connection.outbox.close(error)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - a defect ends this stream, not control
            get_logger().error("connect-defect", device=connection.device, exc_info=error)
            connection.outbox.close(UnreachableError("internal"))

    def _take(self, message: agent_pb2.AgentMessage, connection: Connection) -> None:
        match message.WhichOneof("message"):
            case "status":
                self._take_status(message.status, connection)
            case "sa":
                self._meters.relayed.labels(result=self._relay(message.sa, connection)).inc()
            case "revocation_applied":
                self._fleet.hub.note_applied(connection.device, message.revocation_applied.generation)
            case "workload":
                asked = message.workload
                answer = self._workloads.answer(
                    connection.device, number=asked.number, endpoint=asked.endpoint, action=read_action(asked)
                )
                self._fleet.hub.deliver(connection.device, answer)
            case "audit_mode":
                self._audit_mode.take(connection.device, message.audit_mode, now_s=time.monotonic())
            case _:
                raise UsageError("message out of turn")

    def _take_status(self, status: agent_pb2.AgentStatus, connection: Connection) -> None:
        if max(len(status.key_epochs), len(status.packets_by_reason)) > COUNTERS_LIMIT:
            raise UsageError("too many counters in a status")
        now_ms = self._fleet.now().unix_ms
        if connection.applied_revision != status.applied_revision[:32]:
            connection.applied_since_unix_ms = now_ms
        if connection.ready != status.ready or not connection.ready_since_unix_ms:
            connection.ready_since_unix_ms = now_ms
        connection.applied_generation = status.applied_generation
        connection.applied_revision = status.applied_revision[:32]
        connection.ready = status.ready
        connection.waiting_for = status.waiting_for[:TEXT_LIMIT]
        connection.key_epochs = dict(status.key_epochs)
        connection.packets_by_reason = dict(status.packets_by_reason)
        if status.bundle_sequence <= self._issuer.standing.sequence:
            self._followers.note(connection.device, status.bundle_sequence)
        connection.sealed_packets = status.sealed_packets
        connection.opened_packets = status.opened_packets
        self._fleet.hub.note_applied(connection.device, status.applied_generation)
        if status.worker_instance and status.worker_instance != connection.worker_instance:
            _check_instance(status.worker_instance)
            if not self._fleet.hub.take_worker(connection.device, now_s=time.monotonic()):
                return  # the next status tells of it again
            connection.worker_instance = status.worker_instance
            self._fleet.set_worker_instance(connection.device, status.worker_instance)

    def _relay(self, envelope: agent_pb2.SaEnvelope, connection: Connection) -> str:
        """Pass an envelope on, unread. Returns what became of it; a refusal is silent, the sender asks again."""
        fleet, sender, receiver = self._fleet, connection.device, envelope.device
        if len(envelope.envelope) > SA_ENVELOPE_LIMIT_OCTETS:
            return "size"
        if receiver not in fleet.desired.peers_of(sender) or not (
            fleet.is_leased(sender) and fleet.is_leased(receiver)
        ):
            return "no_peer"
        if not fleet.hub.take_budget(sender, receiver, now_s=time.monotonic()):
            return "rate"
        delivered = fleet.hub.deliver(receiver, SaPush(device=sender, envelope=envelope.envelope))
        return "relayed" if delivered else "not_connected"


def _check_instance(worker_instance: bytes) -> None:
    if len(worker_instance) != INSTANCE_OCTETS:
        raise UsageError(f"a worker instance has {INSTANCE_OCTETS} octets")


def push_to_message(push: Push) -> agent_pb2.ControlMessage:
    """Message for a push."""
    match push:
        case RosterPush():
            roster = agent_pb2.Roster(roster=push.roster, signature=push.signature)
            return agent_pb2.ControlMessage(roster=roster)
        case PeersPush():
            return agent_pb2.ControlMessage(peers=_peers(push))
        case ConfigPush():
            config = agent_pb2.Config(generation=push.generation, revision=push.revision, tables=push.tables)
            return agent_pb2.ControlMessage(config=config)
        case SaPush():
            return agent_pb2.ControlMessage(sa=agent_pb2.SaEnvelope(device=push.device, envelope=push.envelope))
        case RevocationPush():
            revocation = agent_pb2.Revocation(
                generation=push.generation,
                device=push.device,
                ueid=push.ueid,
                cause=push.cause,
                sealed_epoch_keys=push.sealed_epoch_keys,
            )
            return agent_pb2.ControlMessage(revocation=revocation)
        case WithholdingPush():
            withholding = agent_pb2.Withholding(
                generation=push.generation,
                device=push.device,
                networks=push.networks,
                sealed_epoch_keys=push.sealed_epoch_keys,
            )
            return agent_pb2.ControlMessage(withholding=withholding)
        case EpochKeysPush():
            keys = agent_pb2.EpochKeys(
                generation=push.generation, sealed=push.sealed, withheld_networks=push.withheld_networks
            )
            return agent_pb2.ControlMessage(epoch_keys=keys)
        case WorkloadsPush():
            return agent_pb2.ControlMessage(workloads=workloads_to_message(push))
        case WorkloadAnswerPush():
            return agent_pb2.ControlMessage(workload_answer=answer_to_message(push))
        case BundlePush():
            return agent_pb2.ControlMessage(bundle=agent_pb2.Bundle(document=push.document))
        case IdentityAlarmPush():
            alarm = agent_pb2.IdentityAlarm(cause=push.cause, peer=push.peer, unix_ms=push.unix_ms)
            return agent_pb2.ControlMessage(identity_alarm=alarm)
        case RotatePush():
            return agent_pb2.ControlMessage(rotate=agent_pb2.RotateKeys(force=push.force))


def _peers(push: PeersPush) -> agent_pb2.Peers:
    return agent_pb2.Peers(
        generation=push.generation,
        peers=[
            agent_pb2.Peer(
                device=peer.device,
                key_binding=peer.key_binding,
                chain=peer.chain,
                ear=peer.ear,
                worker_instance=peer.worker_instance,
                profile=peer.profile,
                withheld_networks=peer.withheld_networks,
            )
            for peer in push.peers
        ],
    )
