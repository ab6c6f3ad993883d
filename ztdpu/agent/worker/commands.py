"""What each mailbox message does. One method per message; `loop` calls `run` between packets.

Descriptors that came with a message are closed by the loop afterwards: what is kept is duplicated here.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ztdpu.agent import mailbox
from ztdpu.agent.worker.links.opening import open_link
from ztdpu.agent.worker.links.udp import UdpUnderlay
from ztdpu.agent.worker.process import resident_octets
from ztdpu.errors import StateError, TablesError
from ztdpu.model.sa import PspVersion, SaGrant, SaUse
from ztdpu.packet.pipeline import Pipeline
from ztdpu.packet.sa_table import Line
from ztdpu.packet.tables import DeviceTables, decode_tables
from ztdpu.psp import HEADER_OCTETS, ICV_OCTETS, MASTER_KEY_OCTETS

if TYPE_CHECKING:
    from ztdpu.agent.worker.loop import Worker

_TABLES_LIMIT_OCTETS: Final = 16 * 1024 * 1024
_UDP_OCTETS: Final = 8
_ROWS_LIMIT: Final = 512
"""SAs of each direction listed in one answer, so that it fits a message; counters are complete."""


class Commands:
    """The daemon's side of the worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._device = ""
        self._tunnel_mtu_octets = 0
        """The longest inner packet that fits the underlay, sealed."""
        self._run: dict[type[mailbox.Message], Callable[[Any, list[int]], None]] = {
            mailbox.Configure: self._configure,
            mailbox.AttachEndpoint: self._attach_endpoint,
            mailbox.DetachEndpoint: self._detach_endpoint,
            mailbox.ApplyTables: self._apply_tables,
            mailbox.SetLease: self._set_lease,
            mailbox.AllocateSas: self._allocate_sas,
            mailbox.InstallSas: self._install_sas,
            mailbox.ActivateSas: self._activate_sas,
            mailbox.RemovePeer: self._remove_peer,
            mailbox.SetWithheld: self._set_withheld,
            mailbox.RotateMasterKey: self._rotate_master_key,
            mailbox.GetStatistics: self._get_statistics,
        }

    def run(self, message: mailbox.Message, descriptors: list[int]) -> None:
        """Do what `message` says. Raises StateError for one that the daemon may not send (now)."""
        command = self._run.get(type(message))
        if command is None or (self._worker.pipeline is None and not isinstance(message, mailbox.Configure)):
            raise StateError(f"mailbox message {message.WORD} out of place", remedy="restart the agent")
        command(message, descriptors)

    @property
    def _pipeline(self) -> Pipeline:
        pipeline = self._worker.pipeline
        if pipeline is None:
            raise StateError("the worker is not configured", remedy="restart the agent")
        return pipeline

    def _configure(self, message: mailbox.Configure, _: list[int]) -> None:
        if self._worker.pipeline is not None:
            raise StateError("the worker is configured already", remedy="restart the agent")
        try:
            underlay = UdpUnderlay(message.underlay_address, port=message.underlay_port)
        except OSError as error:
            port = message.underlay_port
            remedy = f"give the device this address before the agent starts, and free UDP port {port}"
            raise StateError(f"cannot bind {message.underlay_address} port {port}: {error}", remedy=remedy) from error
        self._device = message.device
        outer_octets = 40 if ":" in message.underlay_address else 20
        self._tunnel_mtu_octets = message.underlay_mtu_octets - outer_octets - _UDP_OCTETS - HEADER_OCTETS - ICV_OCTETS
        pipeline = Pipeline(
            device=message.device,
            sink=self._worker,
            new_master_key=lambda: os.urandom(MASTER_KEY_OCTETS),
            pid=os.getpid(),
        )
        self._worker.set_underlay(underlay, pipeline)
        self._worker.begin_batch()

    def _attach_endpoint(self, message: mailbox.AttachEndpoint, descriptors: list[int]) -> None:
        if len(descriptors) != 1:
            raise StateError("attach-endpoint needs one descriptor", remedy="restart the agent")
        self._worker.attach(message.endpoint_id, open_link(descriptors[0]))

    def _detach_endpoint(self, message: mailbox.DetachEndpoint, _: list[int]) -> None:
        self._worker.detach(message.endpoint_id)

    def _apply_tables(self, message: mailbox.ApplyTables, descriptors: list[int]) -> None:
        if len(descriptors) != 1:
            raise StateError("apply-tables needs one descriptor", remedy="restart the agent")
        try:
            tables = self._read_tables(descriptors[0], message.revision)
            self._worker.tell_audits(self._pipeline.take_audits(is_last=True))
            cut = self._pipeline.apply_tables(tables)
        except (TablesError, OSError) as error:
            self._worker.channel.send(mailbox.TablesRefused(message.generation, str(error)))
            return
        self._worker.revision = message.revision
        if self._worker.underlay is not None:
            self._worker.underlay.forget_peers()
        self._worker.channel.send(mailbox.TablesApplied(message.generation, message.revision, cut))

    def _read_tables(self, descriptor: int, revision: bytes) -> DeviceTables:
        size = os.fstat(descriptor).st_size
        if size > _TABLES_LIMIT_OCTETS:
            raise TablesError(f"{size} octets of tables exceed 16 MiB", remedy="split the policy")
        blob = os.pread(descriptor, size, 0)
        if hashlib.sha256(blob).digest() != revision:
            raise TablesError("the tables do not have the revision announced", remedy="send them again")
        tables = decode_tables(blob)
        if tables.device != self._device:
            raise TablesError(f"tables for {tables.device}, but this is {self._device}", remedy="check the device name")
        for endpoint in tables.endpoints:
            if endpoint.mtu_octets > self._tunnel_mtu_octets:
                raise TablesError(
                    f"packets of {endpoint.mtu_octets} octets from {endpoint.name} do not fit the underlay, which "
                    f"carries {self._tunnel_mtu_octets}",
                    remedy="make underlay.mtuOctets here and underlayMtuOctets of control the MTU that there is",
                )
        return tables

    def _set_lease(self, message: mailbox.SetLease, _: list[int]) -> None:
        self._pipeline.set_lease(
            message.deadline_boottime_ns,
            boottime_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME),
            realtime_ns=time.clock_gettime_ns(time.CLOCK_REALTIME),
        )
        self._worker.begin_batch()

    def _allocate_sas(self, message: mailbox.AllocateSas, _: list[int]) -> None:
        try:
            wants = [(network, SaUse(use), lane, PspVersion(version)) for network, use, lane, version in message.wants]
        except ValueError:
            wants = []
        grants = self._pipeline.allocate(message.peer, wants)
        rows = [
            [
                grant.network_id,
                int(grant.use),
                grant.lane,
                int(grant.psp_version),
                grant.spi,
                grant.key,
                grant.ttl_s,
                grant.soft_limit_octets,
            ]
            for grant in grants
        ]
        self._worker.channel.send(mailbox.SasAllocated(message.token, rows))

    def _install_sas(self, message: mailbox.InstallSas, _: list[int]) -> None:
        spis = []
        for network_id, use, lane, version, spi, key, ttl_s, soft_limit_octets in message.grants:
            try:
                grant = SaGrant(
                    network_id=network_id,
                    use=SaUse(use),
                    lane=lane,
                    psp_version=PspVersion(version),
                    spi=spi,
                    key=key,
                    ttl_s=ttl_s,
                    soft_limit_octets=soft_limit_octets,
                )
            except ValueError:
                spis.append(0)
                continue
            spis += self._pipeline.install(message.peer, [grant])
        self._worker.channel.send(mailbox.SasInstalled(message.token, spis))

    def _activate_sas(self, message: mailbox.ActivateSas, _: list[int]) -> None:
        self._pipeline.activate(message.peer, message.spis)

    def _remove_peer(self, message: mailbox.RemovePeer, _: list[int]) -> None:
        last_ns = self._pipeline.remove_peer(message.peer, cut_flows=message.cut_flows, networks=message.networks)
        self._worker.channel.send(mailbox.PeerRemoved(message.token, message.peer, last_ns))

    def _set_withheld(self, message: mailbox.SetWithheld, _: list[int]) -> None:
        self._pipeline.withhold(message.networks)

    def _rotate_master_key(self, message: mailbox.RotateMasterKey, _: list[int]) -> None:
        refused = self._pipeline.rotate(is_forced=message.force)
        self._worker.channel.send(mailbox.MasterKeyRotated(refused))

    def _get_statistics(self, message: mailbox.GetStatistics, _: list[int]) -> None:
        self._worker.channel.send(statistics(self._pipeline, message.token))


def statistics(pipeline: Pipeline, token: int) -> mailbox.Statistics:
    """Return the answer to GetStatistics."""
    counters, now_s = pipeline.counters, pipeline.now_s
    packets, octets = counters.by_reason()
    return mailbox.Statistics(
        token=token,
        packets_by_reason=packets,
        octets_by_reason=octets,
        sealed_packets=counters.sealed_packets,
        sealed_octets=counters.sealed_octets,
        opened_packets=counters.opened_packets,
        opened_octets=counters.opened_octets,
        flows=pipeline.flow_count,
        send_sas=[
            [*_words(line), sa.key.spi, sa.packets, sa.octets, int((now_s - sa.installed_s) * 1000)]
            for line, sa in islice(pipeline.sas.send.items(), _ROWS_LIMIT)
        ],
        receive_sas=[
            [*_words(sa.line), spi, sa.state.value, sa.packets, sa.octets, int((now_s - sa.offered_s) * 1000)]
            for spi, sa in islice(pipeline.sas.receive.items(), _ROWS_LIMIT)
        ],
        resident_octets=resident_octets(),
    )


def _words(line: Line) -> list[Any]:
    return [line.peer, line.network_id, int(line.use), line.lane]
