"""The sockets: per endpoint a directory with `api.sock`, and a gRPC server of its own behind it.

Who can reach a directory is who the caller is, so it must be nobody's to change but the agent's: one that others could
write to is not served. gRPC does not show a server the peer's credentials (SO_PEERCRED), and a tenant in a user
namespace of its own would show the overflow uid anyway. Everything ends with the daemon. Called by the daemon.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from grpc import aio
from grpc_reflection.v1alpha import reflection

from ztdpu.agent.configuration import NAME_PATTERN
from ztdpu.agent.journal import log, warn
from ztdpu.agent.sidecar.asker import Asker
from ztdpu.agent.sidecar.book import Book
from ztdpu.agent.sidecar.gate import OPEN_CALLS_LIMIT, Gate
from ztdpu.agent.sidecar.service import SidecarServicer
from ztdpu.agent.sidecar.workload_api import WorkloadApi
from ztdpu.v1 import agent_pb2, sidecar_pb2, sidecar_pb2_grpc
from ztdpu.workloadapi import workload_pb2, workload_pb2_grpc

API_SOCKET: Final = "api.sock"
SOCKET_PATH_LIMIT_OCTETS: Final = 107
CONNECTIONS_LIMIT: Final = 16
PAUSE_AFTER_FLOOD_S: Final = 5.0
RETRY_S: Final = 2.0
_NAME: Final = re.compile(NAME_PATTERN)
_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 16 * 1024),
    ("grpc.max_metadata_size", 8 * 1024),
    ("grpc.absolute_max_metadata_size", 8 * 1024),
    ("grpc.max_concurrent_streams", 32),
    ("grpc.max_allowed_incoming_connections", CONNECTIONS_LIMIT),
    ("grpc.server_handshake_timeout_ms", 5000),
    ("grpc.max_connection_idle_ms", 60_000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
)


class Sidecar:
    """All sockets of one device."""

    def __init__(self, folder: Path, send: Callable[[agent_pb2.AgentMessage], bool]) -> None:
        self._folder = folder
        self._asker = Asker(send)
        self.book = Book(self._asker)
        self._serving: dict[str, asyncio.Task[None]] = {}

    # --- what the daemon tells ---

    def begin(self) -> None:
        """Serve the directories that are there: their endpoints hear that things are starting."""
        names = [one.name for one in self._folder.iterdir() if one.is_dir()] if self._folder.is_dir() else []
        self.set_endpoints(names)

    def set_endpoints(self, names: Iterable[str]) -> None:
        """Serve these endpoints and no others."""
        wanted = {name for name in names if _NAME.fullmatch(name)}
        for gone in set(self._serving) - wanted:
            self._serving.pop(gone).cancel()
            self.book.forget(gone)
        for name in wanted - set(self._serving):
            self._serving[name] = asyncio.create_task(self._serve(name), name=f"sidecar-{name}")

    def accept(self, message: agent_pb2.ControlMessage) -> bool:
        """Take what control says to the sidecar; False for anything else."""
        match message.WhichOneof("message"):
            case "workload_answer":
                self._asker.take(message.workload_answer)
            case "workloads":
                self.book.take_workloads(message.workloads)
            case _:
                return False
        return True

    def uplink_opened(self) -> None:
        """Another stream: what was asked on the one before gets no answer."""
        self._asker.hang_up()

    async def close(self) -> None:
        """Withdraw every identity, close every socket."""
        self.book.close()
        tasks = list(self._serving.values())
        self._serving.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- one endpoint ---

    async def _serve(self, name: str) -> None:
        """Keep a server behind the endpoint's socket, until cancelled."""
        folder = self._folder / name
        api, service = WorkloadApi(name, self.book, self._asker), SidecarServicer(name, self.book, self._asker)
        while True:
            flooded = asyncio.Event()
            try:
                check_folder(folder)
                server = self._open(folder / API_SOCKET, Gate(flooded.set), api, service)
            except (OSError, RuntimeError) as error:
                warn("sidecar-not-served", endpoint=name, cause=str(error)[:200])
                await asyncio.sleep(RETRY_S)
                continue
            try:
                await server.start()
                log("sidecar-open", endpoint=name)
                await flooded.wait()
                warn("sidecar-flooded", endpoint=name, closed_for_s=PAUSE_AFTER_FLOOD_S)
            finally:
                (folder / API_SOCKET).unlink(missing_ok=True)
                await server.stop(None)
            await asyncio.sleep(PAUSE_AFTER_FLOOD_S)

    def _open(self, path: Path, gate: Gate, api: WorkloadApi, service: SidecarServicer) -> aio.Server:
        """OSError or RuntimeError when the socket cannot be had."""
        server = aio.server(interceptors=[gate], options=_OPTIONS, maximum_concurrent_rpcs=2 * OPEN_CALLS_LIMIT)
        workload_pb2_grpc.add_SpiffeWorkloadAPIServicer_to_server(api, server)
        sidecar_pb2_grpc.add_SidecarServiceServicer_to_server(service, server)
        names = (
            workload_pb2.DESCRIPTOR.services_by_name["SpiffeWorkloadAPI"].full_name,
            sidecar_pb2.DESCRIPTOR.services_by_name["SidecarService"].full_name,
            reflection.SERVICE_NAME,
        )
        reflection.enable_server_reflection(names, server)
        path.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{path}")
        path.chmod(0o666)  # the directory decides who reaches it
        return server


def check_folder(folder: Path) -> None:
    """Make the directory (0700) if it is not there; OSError when it is not ours alone to change."""
    if len(os.fsencode(folder / API_SOCKET)) > SOCKET_PATH_LIMIT_OCTETS:
        raise OSError(f"{folder / API_SOCKET} is too long for a UNIX socket")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise OSError(f"{folder} is no directory of ours alone: others could put a socket of theirs there")
