"""Connected agents: what is on its way to each, what each last said, and the relay between two of them.

Called by the AgentService servicer (connect, receive) and by whoever pushes. Pushes are values; turning them into
messages is the servicer's business. An outbox keeps the newest of everything that replaces what was before it, so a
slow agent costs bounded memory and never sees old state after new. Revocations overtake everything.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ztdpu.control.workloads.push import WorkloadAnswerPush, WorkloadsPush
from ztdpu.errors import UnreachableError, ZtdpuError

SA_ENVELOPE_LIMIT_OCTETS: Final = 64 * 1024
SA_WAITING_LIMIT: Final = 256
REVOCATIONS_WAITING_LIMIT: Final = 1024
SA_RATE_PER_S: Final = 10.0
SA_BURST: Final = 40.0
INSTANCE_RATE_PER_S: Final = 0.5
INSTANCE_BURST: Final = 8.0
"""New workers of one device: each makes every peer ask for SAs anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterPush:
    """The operator-signed roster."""

    roster: bytes
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerView:
    """A leased device as its peers need it."""

    device: str
    key_binding: bytes
    chain: tuple[bytes, ...]
    ear: str
    worker_instance: bytes
    profile: str
    withheld_networks: tuple[bytes, ...] = ()
    """Ids of networks shared with the receiver that one of the two may not use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersPush:
    """All live peers; replaces the list before it."""

    generation: int
    peers: tuple[PeerView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigPush:
    """Compiled tables."""

    generation: int
    revision: bytes
    tables: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SaPush:
    """An envelope from a peer, unread."""

    device: str
    envelope: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationPush:
    """A device is not to be trusted any more."""

    generation: int
    device: str
    ueid: bytes
    cause: str
    sealed_epoch_keys: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochKeysPush:
    """Current epoch keys, sealed to the agent's last granted KEM key."""

    generation: int
    sealed: bytes
    withheld_networks: tuple[bytes, ...] = ()
    """Ids of the receiver's networks that are not for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WithholdingPush:
    """A device may not use some of its networks any more; it keeps its lease."""

    generation: int
    device: str
    networks: tuple[bytes, ...]
    sealed_epoch_keys: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RotatePush:
    """Rotate the master key."""

    force: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BundlePush:
    """Whom to believe from now on."""

    document: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityAlarmPush:
    """Somebody else showed the device's identity."""

    cause: str
    peer: str
    unix_ms: int


Push = (
    RosterPush
    | PeersPush
    | ConfigPush
    | SaPush
    | RevocationPush
    | WithholdingPush
    | EpochKeysPush
    | RotatePush
    | BundlePush
    | IdentityAlarmPush
    | WorkloadsPush
    | WorkloadAnswerPush
)

_REPLACED: Final = (
    BundlePush,
    IdentityAlarmPush,
    EpochKeysPush,
    RosterPush,
    PeersPush,
    ConfigPush,
    RotatePush,
    WorkloadsPush,
)
"""Kinds of which only the newest counts, in the order in which they go out."""


class Outbox:
    """What is on its way to one agent."""

    def __init__(self) -> None:
        self._revocations: deque[RevocationPush | WithholdingPush] = deque()
        self._newest: dict[type[Push], Push] = {}
        self._envelopes: deque[SaPush | WorkloadAnswerPush] = deque()
        self._filled = asyncio.Event()
        self._end: ZtdpuError | None = None
        self.dropped_envelopes = 0

    def put(self, push: Push) -> None:
        """Queue it; an envelope or answer too many is dropped and counted (whoever wants it asks again)."""
        if isinstance(push, (RevocationPush, WithholdingPush)):
            self._revocations.append(push)
        elif isinstance(push, (SaPush, WorkloadAnswerPush)):
            if len(self._envelopes) >= SA_WAITING_LIMIT:
                self.dropped_envelopes += 1
                return
            self._envelopes.append(push)
        else:
            waiting = self._newest.get(type(push))
            if isinstance(push, RotatePush) and isinstance(waiting, RotatePush) and waiting.force:
                return
            self._newest[type(push)] = push
        self._filled.set()

    @property
    def is_overfull(self) -> bool:
        """An agent that lets so many revocations wait does not read."""
        return len(self._revocations) > REVOCATIONS_WAITING_LIMIT

    def close(self, error: ZtdpuError) -> None:
        """End the stream with this error, before anything else goes out."""
        self._end = self._end or error
        self._filled.set()

    async def get(self) -> Push:
        """The next push; raises the error that `close` was given."""
        while True:
            if self._end is not None:
                raise self._end
            push = self._take()
            if push is not None:
                return push
            self._filled.clear()
            await self._filled.wait()

    def _take(self) -> Push | None:
        if self._revocations:
            return self._revocations.popleft()
        for kind in _REPLACED:
            push = self._newest.pop(kind, None)
            if push is not None:
                return push
        return self._envelopes.popleft() if self._envelopes else None


@dataclass(slots=True, kw_only=True)
class Connection:
    """One open Connect stream and what came over it."""

    device: str
    tls_spki_sha256: bytes
    """Of the client certificate."""
    certificate_expires_unix_s: int
    authority: str = ""
    """Name of the authority that signed the client certificate."""
    worker_instance: bytes = b""
    since_unix_ms: int = 0
    """When the stream was opened."""
    applied_since_unix_ms: int = 0
    """Since when it enforces what it enforces."""
    ready_since_unix_ms: int = 0
    """Since when it is ready, or is not."""
    outbox: Outbox = field(default_factory=Outbox)
    applied_generation: int = 0
    applied_revision: bytes = b""
    ready: bool = False
    waiting_for: str = "the first status"
    key_epochs: Mapping[str, int] = field(default_factory=dict)
    """Epoch in use by network id, hexadecimal."""
    packets_by_reason: Mapping[str, int] = field(default_factory=dict)
    sealed_packets: int = 0
    opened_packets: int = 0


@dataclass(slots=True)
class _Wait:
    """Who has yet to apply one revocation."""

    missing: set[str]
    applied_ns: dict[str, int] = field(default_factory=dict)
    """Device -> monotonic time of its answer."""
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Hub:
    """All connections of one control process."""

    def __init__(self) -> None:
        self._connections: dict[str, Connection] = {}
        self._waits: dict[int, _Wait] = {}
        self._budgets: dict[tuple[str, str], tuple[float, float]] = {}
        self._workers: dict[str, tuple[float, float]] = {}

    def connect(self, connection: Connection, *, superseded: ZtdpuError) -> None:
        """Register; an older stream of the same device is closed with `superseded`."""
        older = self._connections.get(connection.device)
        if older is not None:
            older.outbox.close(superseded)
        self._connections[connection.device] = connection

    def disconnect(self, connection: Connection) -> None:
        """Forget, unless a newer stream took its place."""
        if self._connections.get(connection.device) is connection:
            del self._connections[connection.device]

    def get(self, device: str) -> Connection | None:
        """The open stream of a device."""
        return self._connections.get(device)

    def list(self) -> tuple[Connection, ...]:
        """All of them."""
        return tuple(self._connections.values())

    def close(self, device: str, error: ZtdpuError) -> None:
        """End a device's stream."""
        connection = self._connections.pop(device, None)
        if connection is not None:
            connection.outbox.close(error)

    def close_all(self, error: ZtdpuError) -> None:
        """End every stream: control goes down."""
        for device in tuple(self._connections):
            self.close(device, error)

    def deliver(self, device: str, push: Push) -> bool:
        """Queue a push; False when the device is not connected."""
        connection = self._connections.get(device)
        if connection is None:
            return False
        connection.outbox.put(push)
        if connection.outbox.is_overfull:
            self.close(device, UnreachableError("the agent does not read what it is sent"))
            return False
        return True

    # --- the relay ---

    def take_budget(self, sender: str, receiver: str, *, now_s: float) -> bool:
        """Whether the pair may send one more envelope now (token bucket)."""
        key = (sender, receiver)
        tokens = _refill(self._budgets.get(key), SA_BURST, SA_RATE_PER_S, now_s)
        self._budgets[key] = (tokens - 1 if tokens >= 1 else tokens, now_s)
        return tokens >= 1

    # --- workers ---

    def take_worker(self, device: str, *, now_s: float) -> bool:
        """Whether peers may be told of one more new worker of the device now; its streams share the budget."""
        tokens = _refill(self._workers.get(device), INSTANCE_BURST, INSTANCE_RATE_PER_S, now_s)
        self._workers[device] = (tokens - 1 if tokens >= 1 else tokens, now_s)
        return tokens >= 1

    # --- revocations ---

    def expect_applied(self, generation: int, devices: Iterable[str]) -> None:
        """Begin to wait for these devices' answers; call before the pushes."""
        self._waits[generation] = _Wait({device for device in devices if device in self._connections})

    def forget_wait(self, generation: int) -> None:
        """Nobody will ask who applied this one."""
        self._waits.pop(generation, None)

    def note_applied(self, device: str, generation: int) -> None:
        """A device applied every revocation up to `generation`."""
        now_ns = time.monotonic_ns()
        for expected, wait in self._waits.items():
            if expected <= generation and device in wait.missing:
                wait.missing.discard(device)
                wait.applied_ns[device] = now_ns
                if not wait.missing:
                    wait.done.set()

    async def wait_applied(self, generation: int, *, timeout_s: float) -> tuple[dict[str, int], set[str]]:
        """(device -> monotonic ns of its answer, devices that did not answer in time)."""
        wait = self._waits[generation]
        try:
            if wait.missing:
                async with asyncio.timeout(timeout_s):
                    await wait.done.wait()
        except TimeoutError:
            pass
        finally:
            self._waits.pop(generation, None)
        return wait.applied_ns, set(wait.missing)


def _refill(bucket: tuple[float, float] | None, burst: float, rate_per_s: float, now_s: float) -> float:
    """Tokens in a bucket (tokens, when) now."""
    tokens, since_s = bucket or (burst, now_s)
    return min(burst, tokens + (now_s - since_s) * rate_per_s)
