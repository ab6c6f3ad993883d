"""The doors of control: three gRPC servers, what each serves, and how the TLS ones change certificates.

1. enrolment port: server TLS, AttestationService.Attest only; 2. main port: mutual TLS with SVIDs; 3. admin socket:
UNIX, in a 0700 directory. Health and reflection on 2 and 3.

Certificates change by opening the two TLS ports anew, every twelve hours and when the authority changes, while the
servers before still carry their streams. No port is ever closed; a handshake under way in that very moment is cut, and
agents repeat it at once. gRPC's own way (credentials that ask a callback at every handshake) is not used, because it
crashes a server that stops in the moment in which a handshake ends (seen with grpcio 1.85: "Check failed: prior > 0",
or a segmentation fault).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

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
from ztdpu.control.api.identity import IdentityServicer
from ztdpu.control.api.job import JobServicer
from ztdpu.control.api.key import KeyServicer
from ztdpu.control.api.policy import PolicyServicer
from ztdpu.control.api.tenant import EndpointServicer, TenantServicer
from ztdpu.control.appraisal.conclusion import Concluder
from ztdpu.control.authority.followers import Followers
from ztdpu.control.authority.issue import Issuer
from ztdpu.control.authority.rotation import AuthorityRotations
from ztdpu.control.authority.view import IdentityView
from ztdpu.control.change_steps import ChangeRequest
from ztdpu.control.changes import Changes
from ztdpu.control.configuration import Specification
from ztdpu.control.doors.guard import Guard, SvidIdentifier, identify_anyone, identify_local
from ztdpu.control.doors.identity_proof import IdentityProof
from ztdpu.control.doors.refusals import Refusals
from ztdpu.control.fleet import Fleet
from ztdpu.control.meters import Meters
from ztdpu.control.policy.changes import PolicyChanges
from ztdpu.control.policy.git_changes import GitChanges, GitState
from ztdpu.control.policy.watch import PolicyWatch
from ztdpu.control.source.git_source import GitSource
from ztdpu.control.workloads.identities import Workloads
from ztdpu.control.workloads.jobs import Jobs
from ztdpu.control.workloads.signer import WorkloadSigner, ensure_jwt_key
from ztdpu.errors import ConfigurationError, StateError
from ztdpu.model.administration import PolicySync
from ztdpu.model.policy_source import PolicyStanding
from ztdpu.trust.jwt_svid import key_id
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
    identity_pb2,
    identity_pb2_grpc,
    job_pb2,
    job_pb2_grpc,
    key_pb2,
    key_pb2_grpc,
    policy_pb2,
    policy_pb2_grpc,
    tenant_pb2,
    tenant_pb2_grpc,
)

STOP_GRACE_S: Final = 2.0
LEAVING_S: Final = 30.0
"""Calls on ports that were opened anew go on so long: agents move over when they are given new SVIDs."""
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
        (job_pb2, "JobService"),
        (audit_pb2, "AuditService"),
        (control_pb2, "ControlService"),
        (identity_pb2, "IdentityService"),
    )
)


class Listeners:
    """The three servers; `open`, then `renew` whenever time has passed, then `close`."""

    def __init__(
        self,
        spec: Specification,
        fleet: Fleet,
        issuer: Issuer,
        meters: Meters,
        git: tuple[GitSource, GitState] | None = None,
    ) -> None:
        self._spec, self._fleet, self._issuer, self._meters = spec, fleet, issuer, meters
        concluder = Concluder(fleet, issuer, spec.attestation)
        self._refusals = Refusals(fleet, meters)
        self._attestation = AttestationServicer(fleet, concluder, meters, self._refusals)
        self._changes = Changes(fleet)
        self._jobs = Jobs(fleet)
        jwt_key = ensure_jwt_key(spec.state_dir)
        issuer.jwt_keys = {key_id(jwt_key.public_key()): jwt_key.public_key()}
        signer = WorkloadSigner(issuer, jwt_key, fleet.clock, ttl_s=spec.attestation.workload_svid_s)
        self._workloads = Workloads(fleet, self._jobs, signer, meters, self._refusals)
        self.policy_changes = _policy_changes(fleet, spec, concluder, meters, git)
        self.policy_watch = PolicyWatch(fleet, meters)
        self._policy = PolicyServicer(fleet, self.policy_changes, self.policy_watch)
        self._control = ControlServicer(fleet, spec, self._policy)
        self._followers = Followers(fleet)
        self._proof = IdentityProof(fleet, meters)
        self._identities = IdentityView(fleet, issuer, self._followers, meters)
        self._rotations = AuthorityRotations(fleet, issuer, self._followers, on_change=self.renew)
        self._health = HealthServicer()
        self._tls: list[aio.Server] = []
        self._local: aio.Server | None = None
        self._shown = (b"", b"")
        """Certificate and client roots of the TLS ports."""
        self._leaving: set[asyncio.Task[None]] = set()
        self._renewal = asyncio.Lock()
        self.enrolment_port = 0
        self.main_port = 0

    async def open(self) -> None:
        """Listen on all three. Raises ConfigurationError when an address or the socket cannot be had."""
        await self._open_tls()
        local = _make_server(
            Guard(identify_local, self._refusals, self._meters, is_local=True), ADMIN_MESSAGE_LIMIT_OCTETS
        )
        self._serve_everything(local)
        _bind_socket(local, self._spec.admin_socket)
        self._local = local
        await local.start()
        self._spec.admin_socket.chmod(0o600)
        for name in ("", *SERVICES):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def renew(self) -> None:
        """Open the TLS ports anew if the certificate that they show is due, or other SVIDs are believed.

        The new servers listen before the old ones stop doing so; calls that run on these go on for LEAVING_S.
        """
        async with self._renewal:
            if self._wanted() == self._shown:
                return
            leaving = self._tls
            await self._open_tls()
            task = asyncio.create_task(_leave(leaving), name="leaving ports")
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def sync_policy(self, change: ChangeRequest) -> PolicySync:
        """Read the policy again for somebody on this machine; what `policy status` tells follows."""
        return await self._policy.answer(self.policy_changes.sync(change))

    @property
    def policy_faults(self) -> int:
        """Faults that the last sync found."""
        return len(self._policy.faults)

    @property
    def policy_standing(self) -> PolicyStanding:
        """How the newest of the policy source stands."""
        return self.policy_changes.source.standing

    def sweep(self) -> None:
        """What time alone brings: the summary of refusals without a leaf of their own, and policy tests run again."""
        self._refusals.sweep()
        self._followers.sweep()
        self._identities.sweep()
        self._workloads.sweep()
        self.policy_watch.sweep()

    async def announce_end(self) -> None:
        """Answer "not serving" to health checks from here on."""
        await self._health.enter_graceful_shutdown()

    async def close(self) -> None:
        """Let calls end for STOP_GRACE_S, then end them."""
        await self.policy_watch.close()
        servers = [*self._tls, *((self._local,) if self._local else ())]
        for task in self._leaving:
            task.cancel()
        await asyncio.gather(*self._leaving, *(server.stop(STOP_GRACE_S) for server in servers), return_exceptions=True)
        with contextlib.suppress(StateError):  # a disk that refuses: what agents said they say again
            self._followers.sweep()

    def _wanted(self) -> tuple[bytes, bytes]:
        return self._issuer.control_credentials()[1], self._issuer.client_roots_pem

    async def _open_tls(self) -> None:
        listen = self._spec.listen
        key, chain = self._issuer.control_credentials()
        roots = self._issuer.client_roots_pem
        if not self._tls:
            for listener in (listen.enrolment, listen.main):
                _require_free(listener)
        enrolment = _make_server(Guard(identify_anyone, self._refusals, self._meters), ENROLMENT_MESSAGE_LIMIT_OCTETS)
        attestation_pb2_grpc.add_AttestationServiceServicer_to_server(self._attestation, enrolment)
        credentials = grpc.ssl_server_credentials([(key, chain)])
        self.enrolment_port = _bind(enrolment, _again(listen.enrolment, self.enrolment_port), credentials)
        identifier = SvidIdentifier(self._fleet, self._issuer)
        guard = Guard(identifier, self._refusals, self._meters, on_misuse=self._proof.alarm)
        main = _make_server(guard, MAIN_MESSAGE_LIMIT_OCTETS)
        self._serve_everything(main)
        mutual = grpc.ssl_server_credentials([(key, chain)], roots, require_client_auth=True)
        self.main_port = _bind(main, _again(listen.main, self.main_port), mutual)
        self._tls, self._shown = [enrolment, main], (chain, roots)
        for server in self._tls:
            await server.start()

    def _serve_everything(self, server: aio.Server) -> None:
        fleet, changes, meters = self._fleet, self._changes, self._meters
        attestation_pb2_grpc.add_AttestationServiceServicer_to_server(self._attestation, server)
        agent_pb2_grpc.add_AgentServiceServicer_to_server(
            AgentServicer(fleet, meters, self._workloads, self._followers, self._issuer, self._proof), server
        )
        device_pb2_grpc.add_DeviceServiceServicer_to_server(DeviceServicer(fleet, changes, meters), server)
        tenant_pb2_grpc.add_TenantServiceServicer_to_server(TenantServicer(fleet), server)
        endpoint_pb2_grpc.add_EndpointServiceServicer_to_server(EndpointServicer(fleet), server)
        policy_pb2_grpc.add_PolicyServiceServicer_to_server(self._policy, server)
        key_pb2_grpc.add_KeyServiceServicer_to_server(KeyServicer(fleet, changes), server)
        job_pb2_grpc.add_JobServiceServicer_to_server(JobServicer(self._jobs), server)
        audit_pb2_grpc.add_AuditServiceServicer_to_server(AuditServicer(fleet), server)
        identity_pb2_grpc.add_IdentityServiceServicer_to_server(
            IdentityServicer(self._issuer, self._identities, self._rotations), server
        )
        control_pb2_grpc.add_ControlServiceServicer_to_server(self._control, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (*SERVICES, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)


def _policy_changes(
    fleet: Fleet, spec: Specification, concluder: Concluder, meters: Meters, git: tuple[GitSource, GitState] | None
) -> PolicyChanges:
    if git is None:
        return PolicyChanges(fleet, spec, concluder)
    source, state = git
    return GitChanges(fleet, spec, concluder, source=source, state=state, meters=meters)


def split_listener(text: str) -> tuple[str, int]:
    """(address without brackets, port) of ADDRESS:PORT."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def _make_server(guard: Guard, message_limit_octets: int) -> aio.Server:
    return aio.server(
        interceptors=[guard],
        options=[
            # So that the next server can listen before this one stops; `_require_free` keeps others away.
            ("grpc.so_reuseport", 1),
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


async def _leave(servers: Sequence[aio.Server]) -> None:
    """Stop listening at once, end what runs after LEAVING_S."""
    try:
        await asyncio.gather(*(server.stop(LEAVING_S) for server in servers))
    except asyncio.CancelledError:
        await asyncio.gather(*(server.stop(None) for server in servers))
        raise


def _require_free(listener: str) -> None:
    """Refuse a port that somebody listens on: gRPC would share it with whoever lets it. ConfigurationError."""
    host, port = split_listener(listener)
    if not port:
        return
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {listener}: {error.strerror}",
                remedy="is the address this machine's, and the port free?",
            ) from error


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


def _again(listener: str, port: int) -> str:
    """The listener with the port that the system chose the first time."""
    return f"{listener.rpartition(':')[0]}:{port}" if port else listener
