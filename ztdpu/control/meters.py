"""Control's counters in Prometheus' registry of its own, and the port that shows them.

Servicers count; `run` measures and serves. Names and their meaning stand in `ztdpu.telemetry.Metric`.

The port is plain HTTP and open to whoever reaches it, so it answers few at a time and hangs up on the silent: what is
done to it costs a scrape, never control.
"""

from __future__ import annotations

import collections
import socket
import threading
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app

from ztdpu.control.fleet import Fleet
from ztdpu.errors import ConfigurationError
from ztdpu.model.policy_source import PolicyStanding
from ztdpu.model.verdict import Reason
from ztdpu.telemetry import Metric

SCRAPES_LIMIT: Final = 16
"""Connections that are served at the same time; a further one is closed at once."""
SILENCE_LIMIT_S: Final = 5.0
_REASONS: Final = frozenset(str(reason) for reason in Reason)


class Meters:
    """All metrics of one control process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.attestations = Counter(Metric.ATTESTATIONS, "Attestations by result.", ["result"], registry=self.registry)
        self.attestation_seconds = Histogram(
            Metric.ATTESTATION_SECONDS, "From the first message to the result.", registry=self.registry
        )
        self.rpc = Counter(Metric.RPC, "Calls by method and code word.", ["method", "code"], registry=self.registry)
        self.refusals_summarised = Counter(
            Metric.REFUSALS_SUMMARISED, "Refusals without an audit leaf of their own.", registry=self.registry
        )
        self.relayed = Counter(
            Metric.RELAYED_ENVELOPES, "Envelopes between agents by result.", ["result"], registry=self.registry
        )
        self.workloads = Counter(
            Metric.WORKLOADS,
            "Requests for workload identities by action and result.",
            ["action", "result"],
            registry=self.registry,
        )
        self.revocation_seconds = Histogram(
            Metric.REVOCATION_SECONDS, "From commit to a peer's answer.", registry=self.registry
        )
        self.devices = Gauge(Metric.DEVICES, "Devices by state.", ["state"], registry=self.registry)
        self.connected_agents = Gauge(Metric.CONNECTED_AGENTS, "Open agent streams.", registry=self.registry)
        self.generation = Gauge(Metric.GENERATION, "Fleet generation.", registry=self.registry)

        self.identity_seconds = Gauge(
            Metric.IDENTITY_SECONDS,
            "What certificates have left.",
            ["kind", "name"],
            registry=self.registry,
        )
        self.identity_alarms = Counter(
            Metric.IDENTITY_ALARMS, "Identities shown by somebody else.", registry=self.registry
        )
        self.policy_faults = Gauge(Metric.POLICY_FAULTS, "Faults of the last policy sync.", registry=self.registry)
        self.policy_standing = Gauge(
            Metric.POLICY_STANDING, "How the newest policy stands.", ["standing"], registry=self.registry
        )
        self.policy_refusals = Counter(
            Metric.POLICY_REFUSALS, "Refused commits by code word.", ["code"], registry=self.registry
        )
        self.policy_tests_failed = Gauge(
            Metric.POLICY_TESTS_FAILED, "Policy tests that fail now.", registry=self.registry
        )
        self.policy_audited = Counter(
            Metric.POLICY_AUDITED,
            "First packets that a policy in audit mode would decide otherwise.",
            ["device", "policy", "would"],
            registry=self.registry,
        )
        self.packets = Gauge(
            Metric.PACKETS, "Packets as agents count them, by reason.", ["device", "reason"], registry=self.registry
        )

    def measure(self, fleet: Fleet, *, policy_faults: int, policy_standing: PolicyStanding) -> None:
        """Set every gauge to what is now. What agents say becomes a label only if it is a word of ours."""
        connections = fleet.hub.list()
        self.connected_agents.set(len(connections))
        self.generation.set(fleet.generation)
        self.policy_faults.set(policy_faults)
        for standing in PolicyStanding:
            self.policy_standing.labels(standing=str(standing)).set(standing is policy_standing)
        self.devices.clear()
        for state, devices in collections.Counter(str(fleet.record(name).state) for name in fleet.names()).items():
            self.devices.labels(state=state).set(devices)
        self.packets.clear()
        for connection in connections:
            for reason, packets in connection.packets_by_reason.items():
                if reason in _REASONS:
                    self.packets.labels(device=connection.device, reason=reason).set(packets)

    def serve(self, host: str, port: int) -> int:
        """Show them over plain HTTP, in a thread that ends with the process; returns the port.

        Raises:
            ConfigurationError: the address cannot be had.

        """
        try:
            server = _Server(host, port)
        except OSError as error:
            raise ConfigurationError(
                f"cannot show metrics on {host}:{port}: {error.strerror}",
                remedy="change metricsListen, or free the port",
            ) from error
        server.set_app(make_wsgi_app(self.registry))
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
        return server.server_port


class _Handler(WSGIRequestHandler):
    timeout = SILENCE_LIMIT_S

    def handle(self) -> None:
        with suppress(TimeoutError, ConnectionError):
            super().handle()

    def log_message(self, *_: object) -> None:
        """Scrapes are no news."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 4 * SCRAPES_LIMIT

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._room = threading.BoundedSemaphore(SCRAPES_LIMIT)
        super().__init__((host, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()
