"""The control process: store, fleet, listeners, a sweeper, a clean end.

SIGHUP: the policy is read again. SIGTERM: health says not serving, streams are closed, gone within 5 s.
What each port serves is in `listeners`.
Called by `ztdpu control run`; tests start a `ControlProcess` in their own loop.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import resource
import signal
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

from ztdpu.control.authority.issue import Issuer, ensure_ear_key, load_standing
from ztdpu.control.authority.key_store import FileKeyStore
from ztdpu.control.change_steps import ChangeRequest
from ztdpu.control.clock import Clock, SystemClock
from ztdpu.control.configuration import ControlConfiguration, Specification
from ztdpu.control.doors.authorisation import Caller, Role
from ztdpu.control.doors.hub import Hub
from ztdpu.control.doors.listeners import Listeners, split_listener
from ztdpu.control.fleet import Fleet
from ztdpu.control.generation_floor import FLOOR_FILE, GenerationFloor
from ztdpu.control.meters import Meters
from ztdpu.control.policy.git_changes import GitState
from ztdpu.control.policy.git_start import begin_git
from ztdpu.control.source import Desired, load_desired
from ztdpu.control.source.git_source import GitSource
from ztdpu.control.store.sql import SqlStore, open_sqlite
from ztdpu.errors import StateError, UnreachableError, ZtdpuError
from ztdpu.telemetry import configure_logging, get_logger

SWEEP_S: Final = 0.2


class ControlProcess:
    """Everything of one control process; `start`, then `stop`."""

    def __init__(self, configuration: ControlConfiguration, *, clock: Clock | None = None) -> None:
        self.spec: Specification = configuration.spec
        self.meters = Meters()
        self.hub = Hub()
        self._clock = clock or SystemClock()
        self._store: SqlStore
        self._lock: int | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._git: tuple[GitSource, GitState] | None = None
        self.fleet: Fleet
        self.issuer: Issuer
        self._listeners: Listeners

    @property
    def enrolment_port(self) -> int:
        """TCP port in use."""
        return self._listeners.enrolment_port

    @property
    def main_port(self) -> int:
        """TCP port in use."""
        return self._listeners.main_port

    async def start(self) -> None:
        """Open the store, load policy, listen.

        Raises:
            ConfigurationError, PolicyRefusedError, StateError: nothing was started.

        """
        spec = self.spec
        spec.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        spec.state_dir.chmod(0o700)
        self._lock = _take_lock(spec.state_dir / "control.lock")
        self._store = open_sqlite(spec.state_dir / "control.db")
        lifetime = timedelta(seconds=spec.authority_life_s)
        with self._store.transaction() as transaction:
            standing = load_standing(
                transaction, spec.state_dir, spec.trust_domain, clock=self._clock, lifetime=lifetime
            )
        self.issuer = Issuer(
            standing,
            ensure_ear_key(spec.state_dir),
            self._clock,
            trust_domain=spec.trust_domain,
            keys=FileKeyStore(spec.state_dir),
            state_dir=spec.state_dir,
            lifetime=lifetime,
        )
        with self._store.transaction() as transaction:
            lowest_serial = transaction.get_number("roster-serial")
        desired = await self._read_policy(lowest_serial)
        self.fleet = Fleet(
            store=self._store,
            clock=self._clock,
            desired=desired,
            hub=self.hub,
            attestation_interval_ms=round(spec.attestation.interval_s * 1000),
            floor=GenerationFloor(spec.floor_file or spec.state_dir / FLOOR_FILE),
        )
        self.fleet.start()
        self._listeners = Listeners(spec, self.fleet, self.issuer, self.meters, self._git)
        await self._listeners.open()
        self._tasks = [asyncio.create_task(self._sweep(), name="sweeper")]
        if spec.policy_git is not None:
            self._tasks.append(asyncio.create_task(self._poll(spec.policy_git.poll_s), name="policy poll"))
        if spec.metrics_listen:
            host, port = split_listener(spec.metrics_listen)
            self.meters.serve(host, port)

    async def _read_policy(self, lowest_serial: int) -> Desired:
        spec = self.spec
        if spec.policy_git is None:
            return load_desired(spec, lowest_roster_serial=lowest_serial)
        source = GitSource(spec)
        begin = partial(begin_git, source, self._store, self._clock, lowest_roster_serial=lowest_serial)
        state, desired = await asyncio.to_thread(begin)
        self._git = (source, state)
        return desired

    def reload(self) -> None:
        """Read the policy again, as `policy sync` does; the log says how it ended."""
        task = asyncio.create_task(self._reload(), name="reload")
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)

    async def _reload(self) -> None:
        logger = get_logger()
        try:
            answer = await self._listeners.sync_policy(
                ChangeRequest(
                    caller=Caller(role=Role.OPERATOR, name="operator:SIGHUP", is_local=True),
                    method="sync-policy",
                    subject=self.spec.policy_source,
                    reason="SIGHUP",
                )
            )
        except ZtdpuError as error:
            logger.error("policy-not-reloaded", cause=str(error))  # noqa: TRY400 - a fault of files, no defect
            return
        for fault in answer.faults:
            logger.error("policy-fault", where=str(fault.where), cause=fault.message)
        if answer.faults:
            logger.error(
                "policy-not-reloaded", cause=f"{len(answer.faults)} fault(s): the policy before stays in force"
            )
        else:
            logger.info("policy-reloaded", generation=answer.status.generation, changed=list(answer.changed_devices))

    async def stop(self) -> None:
        """End streams, stop servers, close the store."""
        await self._listeners.announce_end()
        self.hub.close_all(UnreachableError("control goes down"))
        if self._git is not None:
            self._git[0].close()  # else a thread that waits for git would outlive us
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._listeners.close()
        self._store.close()
        if self._lock is not None:
            os.close(self._lock)

    async def _sweep(self) -> None:
        """Time alone ends leases; nobody has to call for it."""
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                self.fleet.sweep()
                self._listeners.sweep()
                await self._listeners.renew()
                self.meters.measure(
                    self.fleet,
                    policy_faults=self._listeners.policy_faults,
                    policy_standing=self._listeners.policy_standing,
                )
            except ZtdpuError as error:  # disk full, say: deadlines are compared everywhere anyway
                get_logger().error("sweep-failed", cause=str(error))
            except Exception as error:  # noqa: BLE001 - a defect must not end the only task that ends leases
                get_logger().error("sweep-defect", exc_info=error)

    async def _poll(self, poll_s: float) -> None:
        """Look at the policy repository now and then; never all controls of a site in the same moment."""
        while True:
            try:
                await self._listeners.policy_changes.poll()
            except ZtdpuError as error:
                get_logger().error("policy-poll-failed", cause=str(error))
            except Exception as error:  # noqa: BLE001 - a defect must not end the task that brings policy
                get_logger().error("policy-poll-defect", exc_info=error)
            await asyncio.sleep(poll_s * random.uniform(0.9, 1.1))  # noqa: S311 - jitter


async def serve(configuration: ControlConfiguration) -> None:
    """Run until SIGTERM or SIGINT; SIGHUP reads the policy again."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # the start reads the policy anyway
    process = ControlProcess(configuration)
    await process.start()
    loop.add_signal_handler(signal.SIGHUP, process.reload)
    get_logger().info("control-started", enrolment=process.enrolment_port, main=process.main_port)
    await ended.wait()
    await process.stop()
    get_logger().info("control-stopped")


def run(configuration: ControlConfiguration) -> None:
    """Blocking form of `serve`. Forbids core dumps: epoch keys and the authority's key are in memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    configure_logging("control")
    asyncio.run(serve(configuration))


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
