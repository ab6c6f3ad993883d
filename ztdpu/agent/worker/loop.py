"""The worker's only thread: wait, ask the clocks, read, let the pipeline work, write, tell the daemon.

    wake-up -> mailbox messages -> up to 16 frames per endpoint -> up to 16 runs from the underlay -> flush -> tick

Owns the links and the pipeline; makes no decision about a packet. Before each read the lease deadline, the
clocks and the process id are compared (`Pipeline.begin_batch`), so nothing here needs to be told to stop. The
loop outlives anything a tenant or the underlay sends; it ends with the mailbox.
"""

from __future__ import annotations

import os
import select
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Final

from ztdpu.agent import mailbox
from ztdpu.agent.worker.channel import Channel, ChannelClosedError, close_all
from ztdpu.agent.worker.commands import Commands
from ztdpu.agent.worker.links.link import EndpointLink, LinkDownError, UnderlayLink
from ztdpu.errors import StateError
from ztdpu.model.verdict import Reason
from ztdpu.packet.audit_book import AuditRows
from ztdpu.packet.pipeline import Pipeline

READS_PER_WAKE_UP: Final = 16
TICK_S: Final = 0.5
"""Longest sleep; what only time brings is this late at most."""
_SPINS: Final = 8
"""Looks at the descriptors before sleeping after a busy wake-up: a cross-CPU wake-up costs more than these."""
_TRACEBACK_LIMIT: Final = 10
_BROKEN: Final = select.EPOLLERR | select.EPOLLHUP


class Worker:
    """One run of the worker, from its mailbox to its end. Implements `packet.sink.Sink`."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.underlay: UnderlayLink | None = None
        """None until Configure."""
        self.pipeline: Pipeline | None = None
        self.revision = b""
        """Of the tables in force."""
        self._endpoints: dict[bytes, EndpointLink] = {}
        self._poll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._commands = Commands(self)
        self._next_tick_s = 0.0
        self._is_in_doubt = False
        self._tracebacks = 0

    def run(self) -> None:
        """Move packets until the daemon closes the mailbox. Raises StateError for a message that is none."""
        self._poll.register(self.channel.fileno(), select.EPOLLIN)
        self._handlers[self.channel.fileno()] = self._read_mailbox
        try:
            self.channel.send(mailbox.WorkerReady(os.urandom(16)))
            while True:
                self._wake_up()
        except ChannelClosedError:
            pass
        finally:
            self._close()

    # --- one wake-up --------------------------------------------------------------------------

    def _wake_up(self) -> None:
        for descriptor, events in self._wait():
            handler = self._handlers.get(descriptor)
            if handler is not None:
                self._guard(handler, events)
        if self.pipeline is not None:
            self.pipeline.flush()
            self._look_at_time(self.pipeline)
        if self.channel.has_waiting:
            self.channel.flush()

    def _wait(self) -> list[tuple[int, int]]:
        for _ in range(_SPINS):
            ready = self._poll.poll(0)
            if ready:
                return ready
            os.sched_yield()
        return self._poll.poll(TICK_S)

    def _guard(self, handler: Callable[[int], None], events: int) -> None:
        """A defect in the packet path costs the packet, not the tenants of this device."""
        try:
            handler(events)
        except (ChannelClosedError, StateError):
            raise
        except Exception:  # noqa: BLE001  the loop must outlive whatever a stranger sends
            if self.pipeline is not None:
                self.pipeline.counters.count(Reason.MALFORMED, 0)
            if self._tracebacks < _TRACEBACK_LIMIT:
                self._tracebacks += 1
                traceback.print_exc(file=sys.stderr)

    def begin_batch(self) -> None:
        """Compare clocks and process with what the lease was given for."""
        if self.pipeline is not None:
            self.pipeline.begin_batch(
                boottime_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME),
                realtime_ns=time.clock_gettime_ns(time.CLOCK_REALTIME),
                pid=os.getpid(),
            )

    def _look_at_time(self, pipeline: Pipeline) -> None:
        self.begin_batch()
        now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        if now_s >= self._next_tick_s:
            self._next_tick_s = now_s + TICK_S
            pipeline.tick()
        step_ns = pipeline.clock_step_ns
        if step_ns and not self._is_in_doubt:
            self.channel.send(mailbox.ClockDoubt(step_ns // 1_000_000))
        self._is_in_doubt = bool(step_ns)
        for line in pipeline.take_wanted():
            self.channel.send(mailbox.SasWanted(line.peer, line.network_id, int(line.use)))
        if not self.channel.has_waiting:  # a daemon that is behind gets them later, added up
            self.tell_audits(pipeline.take_audits())
        for gone in pipeline.take_deletions():
            self.channel.send(mailbox.SaDeleted(gone.line.peer, gone.spi, gone.cause))

    def tell_audits(self, audits: AuditRows | None) -> None:
        """Tell the daemon what policies in audit mode would treat otherwise."""
        if audits is None:
            return
        rows = [
            [
                tenant,
                endpoint,
                str(seen.direction),
                seen.peer,
                seen.protocol,
                seen.port,
                str(seen.reason),
                seen.rule_id,
                n,
            ]
            for tenant, endpoint, seen, n in audits.rows
        ]
        self.channel.send(mailbox.AuditNoted(self.revision, rows, audits.uncounted))

    # --- readers ------------------------------------------------------------------------------

    def _read_mailbox(self, events: int) -> None:
        del events
        received = self.channel.receive()
        if received is None:
            return
        message, descriptors = received
        self.begin_batch()
        try:
            self._commands.run(message, descriptors)
        except (ChannelClosedError, StateError):
            raise
        except Exception as error:
            # Half a command may be in force: dark is better than unknown.
            raise StateError(f"{message.WORD} failed: {error!r}", remedy="the agent starts a new worker") from error
        finally:
            close_all(descriptors)

    def _read_underlay(self, events: int) -> None:
        del events
        pipeline, underlay = self.pipeline, self.underlay
        if pipeline is None or underlay is None:
            return
        for _ in range(READS_PER_WAKE_UP):
            received = underlay.receive_into(pipeline.receive_buffer)
            if received is None:
                return
            self.begin_batch()
            pipeline.inbound(received.octets, received.segment_octets, received.source)

    def _read_endpoint(self, endpoint_id: bytes, events: int) -> None:
        pipeline, link = self.pipeline, self._endpoints.get(endpoint_id)
        if pipeline is None or link is None:
            return
        try:
            for _ in range(READS_PER_WAKE_UP):
                octets = link.read_into(pipeline.read_buffer)
                if not octets:
                    break
                self.begin_batch()
                pipeline.outbound(endpoint_id, octets)
        except LinkDownError as error:
            self._lose(endpoint_id, str(error))
            return
        if events & _BROKEN:
            # Nothing to read and an error that stays: polling it again would spin.
            self._lose(endpoint_id, "poll reports an error")

    def _lose(self, endpoint_id: bytes, cause: str) -> None:
        self.detach(endpoint_id)
        self.channel.send(mailbox.EndpointDown(endpoint_id, cause))

    # --- links --------------------------------------------------------------------------------

    def set_underlay(self, underlay: UnderlayLink, pipeline: Pipeline) -> None:
        """Configure: where packets come from and go to."""
        self.underlay, self.pipeline = underlay, pipeline
        self._poll.register(underlay.fileno(), select.EPOLLIN)
        self._handlers[underlay.fileno()] = self._read_underlay

    def attach(self, endpoint_id: bytes, link: EndpointLink) -> None:
        """Read from and write to `link` for this endpoint; an earlier one is closed."""
        self.detach(endpoint_id)
        self._endpoints[endpoint_id] = link
        self._poll.register(link.fileno(), select.EPOLLIN)
        self._handlers[link.fileno()] = lambda events: self._read_endpoint(endpoint_id, events)

    def detach(self, endpoint_id: bytes) -> None:
        """Close the endpoint's link, if there is one."""
        link = self._endpoints.pop(endpoint_id, None)
        if link is not None:
            self._handlers.pop(link.fileno(), None)
            self._poll.unregister(link.fileno())
            link.close()
            if self.pipeline is not None:
                self.pipeline.cut_endpoint(endpoint_id)

    def _close(self) -> None:
        for endpoint_id in tuple(self._endpoints):
            self.detach(endpoint_id)
        if self.underlay is not None:
            self.underlay.close()
        self._poll.close()
        self.channel.close()

    # --- sink ---------------------------------------------------------------------------------

    def transmit(self, destination: bytes, datagrams: memoryview, segment_octets: int) -> bool:
        """See `Sink.transmit`."""
        return self.underlay is not None and self.underlay.send(destination, datagrams, segment_octets)

    def deliver(self, endpoint_id: bytes, buffers: Sequence[bytes | bytearray | memoryview]) -> Reason | None:
        """See `Sink.deliver`."""
        link = self._endpoints.get(endpoint_id)
        return link.write(buffers) if link is not None else Reason.ENDPOINT_DOWN
