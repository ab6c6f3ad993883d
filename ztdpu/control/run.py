"""The control process: three gRPC servers on one fleet, a sweeper, a clean end.

1. enrolment port: server TLS, AttestationService.Attest only; 2. main port: mutual TLS with SVIDs; 3. admin socket:
UNIX, in a 0700 directory. Health and reflection on 2 and 3. SIGTERM: not serving, streams closed, gone within 5 s.
Called by `ztdpu control run`; tests start a `ControlProcess` in their own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
from pathlib import Path
from typing import Any, Final

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from ztdpu.control.api.agent import AgentServicer
from ztdpu.control.api.attestation import AttestationServicer
from ztdpu.control.api.audit import AuditServicer
from ztdpu.control.api.control import ControlServicer
from ztdpu.control.api.device import DeviceServicer
from ztdpu.control.api.key import KeyServicer
from ztdpu.control.api.policy import PolicyServicer
from ztdpu.control.api.tenant import EndpointServicer, TenantServicer
from ztdpu.control.appraisal.conclusion import Concluder
from ztdpu.control.changes import Changes
from ztdpu.control.clock import Clock, SystemClock
from ztdpu.control.configuration import ControlConfiguration, Specification
from ztdpu.control.fleet import Fleet
from ztdpu.control.guard import Guard, SvidIdentifier, identify_anyone, identify_local
from ztdpu.control.hub import Hub
from ztdpu.control.issue import Issuer, ensure_authority, ensure_ear_key
from ztdpu.control.meters import Meters
from ztdpu.control.source import load_desired
from ztdpu.control.store.sql import SqlStore, open_sqlite
from ztdpu.errors import ConfigurationError, StateError, UnreachableError
from ztdpu.telemetry import configure_logging, get_logger
from ztdpu.v1 import (
    agent_pb2,
    agent_pb2_grpc,
    attestation_pb2,
    attestation_pb2_grpc,
    audit_pb2,
    audit_pb2_grpc,
    control_pb2,
    control_pb2_grpc,
    device_pb2,
    device_pb2_grpc,
    endpoint_pb2,
    endpoint_pb2_grpc,
    key_pb2,
    key_pb2_grpc,
    policy_pb2,
    policy_pb2_grpc,
    tenant_pb2,
    tenant_pb2_grpc,
)

SWEEP_S: Final = 0.2
STOP_GRACE_S: Final = 2.0
SOCKET_PATH_LIMIT: Final = 100
ENROLMENT_MESSAGE_LIMIT_OCTETS: Final = 64 * 1024
MAIN_MESSAGE_LIMIT_OCTETS: Final = 256 * 1024
ADMIN_MESSAGE_LIMIT_OCTETS: Final = 1024 * 1024

SERVICES: Final = tuple(
    module.DESCRIPTOR.services_by_name[name].full_name
    for module, name in (
        (attestation_pb2, "AttestationService"),
        (agent_pb2, "AgentService"),
        (device_pb2, "DeviceService"),
        (tenant_pb2, "TenantService"),
        (endpoint_pb2, "EndpointService"),
        (policy_pb2, "PolicyService"),
        (key_pb2, "KeyService"),
        (audit_pb2, "AuditService"),
        (control_pb2, "ControlService"),
    )
)


class ControlProcess:
    """Everything of one control process; `start`, then `stop`."""

    def __init__(self, configuration: ControlConfiguration, *, clock: Clock | None = None) -> None:
        self.spec: Specification = configuration.spec
        self.meters = Meters()
        self.hub = Hub()
        self._clock = clock or SystemClock()
        self._store: SqlStore
        self._lock: int | None = None
        self._servers: list[aio.Server] = []
        self._sweeper: asyncio.Task[None] | None = None
        self.fleet: Fleet
        self.issuer: Issuer
        self._health = HealthServicer()
        self.enrolment_port = 0
        self.main_port = 0

    async def start(self) -> None:
        """Open the store, load policy, listen.

        Raises:
            ConfigurationError, PolicyRefusedError, StateError: nothing was started.

        """
        spec = self.spec
        spec.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        spec.state_dir.chmod(0o700)
        self._lock = _take_lock(spec.state_dir / "control.lock")
        self.issuer = Issuer(
            ensure_authority(spec.state_dir, spec.trust_domain, clock=self._clock),
            ensure_ear_key(spec.state_dir),
            self._clock,
        )
        self._store = open_sqlite(spec.state_dir / "control.db")
        with self._store.transaction() as transaction:
            lowest_serial = transaction.get_number("roster-serial")
        desired = load_desired(spec, lowest_roster_serial=lowest_serial)
        self.fleet = Fleet(store=self._store, clock=self._clock, desired=desired, hub=self.hub)
        self.fleet.start()
        await self._listen()
        self._sweeper = asyncio.create_task(self._sweep(), name="sweeper")
        for name in ("", *SERVICES):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        if spec.metrics_listen:
            host, port = split_listener(spec.metrics_listen)
            self.meters.serve(host, port)

    async def stop(self) -> None:
        """End streams, stop servers, close the store."""
        await self._health.enter_graceful_shutdown()
        self.hub.close_all(UnreachableError("control goes down"))
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await asyncio.gather(*(server.stop(STOP_GRACE_S) for server in self._servers))
        self._store.close()
        if self._lock is not None:
            os.close(self._lock)

    # --- servers ---

    async def _listen(self) -> None:
        spec, fleet, meters = self.spec, self.fleet, self.meters
        concluder = Concluder(fleet, self.issuer, spec.attestation)
        changes = Changes(fleet, spec, concluder)
        attestation = AttestationServicer(fleet, concluder, meters)
        enrolment = _make_server(Guard(identify_anyone, fleet, meters), ENROLMENT_MESSAGE_LIMIT_OCTETS)
        attestation_pb2_grpc.add_AttestationServiceServicer_to_server(attestation, enrolment)
        self.enrolment_port = _bind(enrolment, spec.listen.enrolment, self._credentials(mutual=False))

        main = _make_server(Guard(SvidIdentifier(fleet, self.issuer), fleet, meters), MAIN_MESSAGE_LIMIT_OCTETS)
        local = _make_server(Guard(identify_local, fleet, meters, is_local=True), ADMIN_MESSAGE_LIMIT_OCTETS)
        policy = PolicyServicer(fleet, changes, directory=str(spec.policy_dir))
        control = ControlServicer(fleet, spec, policy)
        for server in (main, local):
            attestation_pb2_grpc.add_AttestationServiceServicer_to_server(attestation, server)
            agent_pb2_grpc.add_AgentServiceServicer_to_server(AgentServicer(fleet, meters), server)
            device_pb2_grpc.add_DeviceServiceServicer_to_server(DeviceServicer(fleet, changes, meters), server)
            tenant_pb2_grpc.add_TenantServiceServicer_to_server(TenantServicer(fleet), server)
            endpoint_pb2_grpc.add_EndpointServiceServicer_to_server(EndpointServicer(fleet), server)
            policy_pb2_grpc.add_PolicyServiceServicer_to_server(policy, server)
            key_pb2_grpc.add_KeyServiceServicer_to_server(KeyServicer(fleet, changes), server)
            audit_pb2_grpc.add_AuditServiceServicer_to_server(AuditServicer(fleet), server)
            control_pb2_grpc.add_ControlServiceServicer_to_server(control, server)
            health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
            names = (*SERVICES, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, server)
        self.main_port = _bind(main, spec.listen.main, self._credentials(mutual=True))
        _bind_socket(local, spec.admin_socket)
        self._servers = [enrolment, main, local]
        for server in self._servers:
            await server.start()
        spec.admin_socket.chmod(0o600)

    def _credentials(self, *, mutual: bool) -> grpc.ServerCredentials:
        def fetch() -> Any:
            pair = self.issuer.control_credentials()
            return grpc.ssl_server_certificate_configuration(
                [pair], root_certificates=self.issuer.bundle_pem if mutual else None
            )

        return grpc.dynamic_ssl_server_credentials(fetch(), fetch, require_client_authentication=mutual)

    async def _sweep(self) -> None:
        """Time alone ends leases; nobody has to call for it."""
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                self.fleet.sweep()
            except StateError as error:  # disk full, for example: the deadline is compared everywhere anyway
                get_logger().error("sweep-failed", cause=str(error))
            self._measure()

    def _measure(self) -> None:
        self.meters.connected_agents.set(len(self.hub.list()))
        self.meters.generation.set(self.fleet.generation)
        self.meters.devices.clear()
        for name in self.fleet.names():
            self.meters.devices.labels(state=str(self.fleet.record(name).state)).inc()


async def serve(configuration: ControlConfiguration) -> None:
    """Run until SIGTERM or SIGINT."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    process = ControlProcess(configuration)
    await process.start()
    get_logger().info("control-started", enrolment=process.enrolment_port, main=process.main_port)
    await ended.wait()
    await process.stop()
    get_logger().info("control-stopped")


def run(configuration: ControlConfiguration) -> None:
    """Blocking form of `serve`."""
    configure_logging("control")
    asyncio.run(serve(configuration))


def split_listener(text: str) -> tuple[str, int]:
    """(address without brackets, port) of ADDRESS:PORT."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def _make_server(guard: Guard, message_limit_octets: int) -> aio.Server:
    return aio.server(
        interceptors=[guard],
        options=[
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", message_limit_octets),
            ("grpc.max_metadata_size", 16 * 1024),
            ("grpc.max_concurrent_streams", 100),
            # A connection that never finishes its handshake, and one that is idle, cost nothing for long.
            ("grpc.server_handshake_timeout_ms", 5000),
            ("grpc.max_connection_idle_ms", 20_000),
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 5000),
            ("grpc.http2.min_ping_interval_without_data_ms", 5000),
        ],
    )


def _bind(server: aio.Server, listener: str, credentials: grpc.ServerCredentials) -> int:
    try:
        port = server.add_secure_port(listener, credentials)
    except RuntimeError as error:
        raise ConfigurationError(
            f"cannot listen on {listener}", remedy="is the address this machine's, and the port free?"
        ) from error
    if not port:
        raise ConfigurationError(f"cannot listen on {listener}", remedy="is the port free?")
    return int(port)


def _bind_socket(server: aio.Server, path: Path) -> None:
    if len(str(path)) > SOCKET_PATH_LIMIT:
        raise ConfigurationError(f"{path} is too long for a UNIX socket", remedy="use a shorter path")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()  # the lock says that nobody serves it
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise ConfigurationError(f"cannot listen on {path}", remedy="look at the rights of its directory") from error


def _take_lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StateError(
            f"another control runs on {path.parent}", remedy="stop it first, or use another stateDir"
        ) from error
    return descriptor
