"""Control's counters in Prometheus' registry of its own, and the port that shows them.

Servicers count; `run` serves. Names and their meaning stand in `ztdpu.telemetry.Metric`.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from ztdpu.telemetry import Metric


class Meters:
    """All metrics of one control process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.attestations = Counter(Metric.ATTESTATIONS, "Attestations by result.", ["result"], registry=self.registry)
        self.attestation_seconds = Histogram(
            Metric.ATTESTATION_SECONDS, "From the first message to the result.", registry=self.registry
        )
        self.rpc = Counter(Metric.RPC, "Calls by method and code word.", ["method", "code"], registry=self.registry)
        self.relayed = Counter(
            Metric.RELAYED_ENVELOPES, "Envelopes between agents by result.", ["result"], registry=self.registry
        )
        self.revocation_seconds = Histogram(
            Metric.REVOCATION_SECONDS, "From commit to a peer's answer.", registry=self.registry
        )
        self.devices = Gauge(Metric.DEVICES, "Devices by state.", ["state"], registry=self.registry)
        self.connected_agents = Gauge(Metric.CONNECTED_AGENTS, "Open agent streams.", registry=self.registry)
        self.generation = Gauge(Metric.GENERATION, "Fleet generation.", registry=self.registry)

    def serve(self, host: str, port: int) -> None:
        """Show them over plain HTTP, in a thread that ends with the process."""
        start_http_server(port, addr=host, registry=self.registry)
