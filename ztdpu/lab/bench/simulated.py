"""Devices without a machine: real attestation, real mutual TLS, real protocol, many of them in one event loop.

The root of trust answers in this process instead of behind its doors; attester, uplink and identity keeper are the
agent's own. There is no worker, so nothing is enforced: this is load for control, and nothing else.
"""

from __future__ import annotations

import asyncio
import io
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, redirect_stderr, redirect_stdout, suppress
from types import TracebackType
from typing import Any, Self

from ztdpu.agent.attester import Answer, Attester, Identity, Session
from ztdpu.agent.identity_keeper import IdentityKeeper
from ztdpu.agent.own_keys import LeaseKemKeys
from ztdpu.agent.supervisor import Doors
from ztdpu.agent.uplink import Uplink
from ztdpu.errors import StateError
from ztdpu.keys.kem import kem_public_octets
from ztdpu.lab.bench.plant import PROFILE, Plant
from ztdpu.trust.firmware import default_firmware
from ztdpu.trust.root import EmulatedRoot, decode_bind_request, encode_bind_answer


class _Door:
    """Door one, in this process."""

    def __init__(self, root: EmulatedRoot) -> None:
        self._root = root

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def ask(self, question: bytes) -> tuple[bytes, list[int]]:
        return self._root.spdm(question), []


class _SimulatedAttester(Attester):
    def __init__(self, root: EmulatedRoot, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._root = root

    def _visit(self) -> AbstractAsyncContextManager[Session]:
        return _Door(self._root)

    async def _ask_binding(self, request: bytes) -> bytes:
        return encode_bind_answer(self._root.bind_keys(decode_bind_request(request)))


class SimulatedDevice:
    """One device and its agent."""

    def __init__(self, plant: Plant, name: str, *, join_token: str = "") -> None:
        spec = plant.spec(name)
        root = EmulatedRoot(
            secrets=plant.devices[name],
            profile=PROFILE,
            firmware=default_firmware(PROFILE),
            boot_counter=1,
            boot_nonce=secrets.token_bytes(16),
            random=secrets.token_bytes,
        )
        self.name = name
        self.keeper = IdentityKeeper(spec, spec.control.bundle_file.read_bytes())
        believed = self.keeper.trust.pem
        doors = Doors(spdm_socket=spec.state_dir / "no", binding_socket=spec.state_dir / "no")
        self.attester = _SimulatedAttester(root, spec, doors=doors, bundle_pem=believed, join_token=join_token)
        self._kem_keys = LeaseKemKeys()
        self._worker_instance = secrets.token_bytes(16)
        self._attested = False
        self._attesting = asyncio.Lock()
        self._identity: Identity | None = None
        self.opened = asyncio.Event()
        self.bundles: list[tuple[int, float]] = []
        """(sequence, CLOCK_MONOTONIC in seconds when it came in)."""
        self.losses = 0
        """Times that control ended the stream."""
        self.on_message: Callable[[Any], None] = lambda _: None
        self.uplink = Uplink(
            spec.control.main,
            trust_domain=spec.trust_domain,
            bundle_pem=believed,
            hello=lambda identity: self.keeper.hello(identity, self._worker_instance),
            on_message=self._take,
            on_open=self.opened.set,
            on_denied=self._lost,
        )

    async def attest(self) -> Answer:
        """Attest, one after the other: there is one root of trust. StateError without a lease."""
        async with self._attesting:
            answer = await self.attester.attest(
                applied_generation=1 << 62,
                kem_public_key=kem_public_octets(self._kem_keys.ask()),
                afresh=not self._attested,
            )
        if answer.grant is None:
            raise StateError(f"{self.name} is {answer.state}: {answer.reason} {answer.findings}")
        self._attested = True
        self._kem_keys.granted()
        self._identity = answer.identity or self._identity
        return answer

    def connect(self) -> None:
        """Open the stream with the newest identity."""
        if self._identity is None:
            raise StateError("nothing was issued")
        self.opened.clear()
        self.uplink.open(self._identity)

    def report(self) -> None:
        """Tell control which bundle is believed, as a status does."""
        from ztdpu.agent.statement import bundle_status

        self.uplink.send(bundle_status(self.keeper.trust.sequence, self._worker_instance))

    async def keep(self, interval_s: float) -> None:
        """Attest every interval and follow new SVIDs, until cancelled."""
        while True:
            await asyncio.sleep(interval_s * (0.8 + 0.2 * secrets.randbelow(100) / 100))
            if (await self.attest()).identity is not None:
                self.connect()

    def close(self) -> None:
        """Hang up."""
        self.uplink.close()

    def _lost(self) -> None:
        self.losses += 1

    def _take(self, message: Any) -> None:
        if self.keeper.accept(message, self.attester, self.uplink):
            if message.HasField("bundle"):
                self.bundles.append((self.keeper.trust.sequence, time.monotonic()))
                self.report()
            return
        self.on_message(message)


@contextmanager
def quiet_agents() -> Iterator[None]:
    """What agents write into their logs is no part of the bench's output."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield


async def in_parallel(work: list[Callable[[], Any]], *, limit: int) -> list[float]:
    """Run all with at most `limit` at once; seconds that each took. The first error ends it."""
    gate, took_s = asyncio.Semaphore(limit), []

    async def one(make: Callable[[], Any]) -> None:
        async with gate:
            start = time.monotonic()
            await make()
            took_s.append(time.monotonic() - start)

    tasks = [asyncio.create_task(one(make)) for make in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        with suppress(Exception):
            await asyncio.gather(*tasks, return_exceptions=True)
    return took_s
