"""What control knows of the fleet, and the one way to change it: the store first, this memory after the commit.

The base of `fleet.Fleet`, which adds who must be told. One event loop owns it; nothing here awaits, so what it says is
never half changed. Verifies nothing and authorises nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from ztdpu.control.audit import AuditEvent, AuditOutcome
from ztdpu.control.clock import Clock
from ztdpu.control.devices import leases
from ztdpu.control.devices.leases import Instant
from ztdpu.control.devices.record import DeviceRecord, StoredBinding
from ztdpu.control.doors.hub import Hub
from ztdpu.control.epochs import Epochs
from ztdpu.control.generation_floor import GenerationFloor
from ztdpu.control.source import Desired
from ztdpu.control.store.store import Store, Transaction
from ztdpu.errors import NotFoundError
from ztdpu.keys.wrapping import EPOCH_KEY_OCTETS
from ztdpu.model.device import DeviceState
from ztdpu.model.tenant import Network
from ztdpu.telemetry import get_logger


class FleetState:
    """Memory of one control process."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        desired: Desired,
        hub: Hub,
        attestation_interval_ms: int = 10_000,
        floor: GenerationFloor | None = None,
    ) -> None:
        self._store = store
        self._floor = floor
        self.clock = clock
        self.hub = hub
        self.desired = desired
        self.attestation_interval_ms = attestation_interval_ms
        """How often a device with a lease should attest."""
        self.epochs = Epochs()
        self.generation = 0
        self.config_generation: dict[str, int] = {}
        """Device -> generation at which its tables last changed."""
        self.revocations: dict[int, int] = {}
        """Generation -> CLOCK_BOOTTIME (ns) of its commit."""
        self.on_peers: Callable[[str], None] = lambda _: None
        """Called for a device about which something changed that its peers may hear of."""
        self.ranks_on: Callable[[str], Sequence[str]] = lambda _device: ()
        """`tenant/job` of each rank that runs on a device; whoever knows of jobs puts it here."""
        self._records: dict[str, DeviceRecord] = {}
        self._bindings: dict[str, StoredBinding] = {}
        self._kem_keys: dict[str, bytes] = {}
        """Device -> public KEM key of its last granted lease request."""
        self._told_peers: dict[str, tuple[tuple[tuple[str, bytes, bytes, tuple[bytes, ...]], ...], int]] = {}
        """Device -> (what of its peers it was told last, unix ms)."""
        self._shut_out: dict[str, int] = {}
        """Device -> generation at which it was shut out."""
        self._prune_ns = 0
        self._dirty: dict[str, DeviceRecord] = {}
        self._pending: list[Callable[[], object]] = []
        """What memory does when the open transaction is durable."""

    # --- reading ---

    def now(self) -> Instant:
        """All clocks."""
        return self.clock.now()

    def names(self) -> tuple[str, ...]:
        """Devices of the policy in force."""
        return self.desired.names

    def record(self, device: str) -> DeviceRecord:
        """A device's record; NotFoundError for a name that policy does not have."""
        if device not in self.desired.cluster.devices:
            raise NotFoundError(f"no device {device!r}", remedy=f"devices are {', '.join(self.names()) or 'none'}")
        return self._records.get(device) or DeviceRecord(
            name=device, state=DeviceState.PENDING, since_unix_ms=0, reason="never attested"
        )

    def binding(self, device: str) -> StoredBinding | None:
        """Its live binding."""
        return self._bindings.get(device)

    def is_leased(self, device: str) -> bool:
        """Whether peers may talk to it now."""
        return device in self.desired.cluster.devices and leases.is_leased(self.record(device), self.now())

    # --- changing ---

    def start(self) -> None:
        """Load what the store has; begin new epochs, since keys were in memory only."""
        now = self.now()
        with self.transaction() as transaction:
            self._records = {record.name: record for record in transaction.list_devices()}
            for record in self._records.values():
                binding = transaction.get_binding(record.binding_sha256) if record.binding_sha256 else None
                if binding is not None and binding.live:
                    self._bindings[record.name] = binding
            for device in self._records.values():
                self.put(transaction, leases.expire(device, now))
                self._shut_out[device.name] = transaction.get_number(f"shut-out:{device.name}")
            lost_to = self._notice_loss(transaction, now)
            self.begin_epochs(transaction, self.desired.networks.values(), "control started")
            self.bump(transaction, above=lost_to)
            transaction.put_number("roster-serial", self.desired.roster.serial)
        self.config_generation = dict.fromkeys(self.names(), self.generation)
        # Whoever had not heard of a revocation before the restart hears of its effect with the first list of peers.
        self.revocations[self.generation] = now.boottime_ns

    def _notice_loss(self, transaction: Transaction, now: Instant) -> int:
        """0, or the generation that was reached before the store went back: then no lease counts, and it is told."""
        reached = self._floor.read() if self._floor else 0
        found = transaction.get_number("generation")
        if reached <= found:
            return 0
        reason = f"control's store went back from generation {reached} to {found}: what was decided since is lost"
        get_logger().error(
            "store-went-back", reached=reached, found=found, remedy="revoke again what was revoked since"
        )
        for record in self._records.values():
            self.put(transaction, leases.lose(self._dirty.get(record.name, record), reason, now))
        event = AuditEvent(
            actor="control",
            role="control",
            action="store-went-back",
            subject="",
            outcome=AuditOutcome.DONE,
            reason=reason,
            detail={"reached": reached, "found": found},
        )
        self.write_leaf(transaction, event)
        return reached

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """One change of the store; memory follows after the commit and only then."""
        self._dirty, self._pending = {}, []
        with self._store.transaction() as transaction:
            yield transaction
        self._records.update(self._dirty)
        for follow in self._pending:
            follow()
        self._dirty, self._pending = {}, []

    def put(self, transaction: Transaction, record: DeviceRecord) -> None:
        """Write a record (skipped when nothing changed)."""
        if self._dirty.get(record.name, self._records.get(record.name)) != record:
            transaction.put_device(record)
            self._dirty[record.name] = record

    def audit(self, event: AuditEvent) -> None:
        """A leaf on its own: a refusal."""
        with self.transaction() as transaction:
            self.write_leaf(transaction, event)

    def write_leaf(self, transaction: Transaction, event: AuditEvent) -> None:
        """A leaf in the transaction of what it tells about."""
        transaction.append_audit(event, now_unix_ms=self.now().unix_ms)

    def bump(self, transaction: Transaction, *, above: int = 0) -> int:
        """A new generation, in force when the transaction commits; higher than `above` as well."""
        generation = transaction.next_generation(now_unix_ms=max(self.now().unix_ms, above + 1))
        self._pending.append(partial(setattr, self, "generation", generation))
        if self._floor is not None:
            self._pending.append(partial(self._floor.raise_to, generation))
        return generation

    def shut_out(self, transaction: Transaction, device: str, generation: int) -> None:
        """Remember at which generation a device was shut out: whoever reconnects hears of it with that one."""
        transaction.put_number(f"shut-out:{device}", generation)
        self._pending.append(partial(self._shut_out.__setitem__, device, generation))

    def set_binding(self, device: str, binding: StoredBinding | None) -> None:
        """Follow the store: call after the commit that changed it."""
        if binding is None:
            self._bindings.pop(device, None)
        else:
            self._bindings[device] = binding

    def set_kem_key(self, device: str, public_key: bytes | None) -> None:
        """Whom epoch keys of the device are sealed to from now on."""
        if public_key is None:
            self._kem_keys.pop(device, None)
        else:
            self._kem_keys[device] = public_key

    def begin_epochs(self, transaction: Transaction, networks: Iterable[Network], cause: str) -> dict[str, int]:
        """New epoch key for each network; returns tenant -> number.

        The number is in the same transaction, so it never comes twice; the key is used when that is durable.
        """
        numbers: dict[str, int] = {}
        for network in networks:
            name = f"epoch:{network.network_id.hex()}"
            numbers[network.tenant] = transaction.get_number(name) + 1
            transaction.put_number(name, numbers[network.tenant])
            self._pending.append(
                partial(
                    self.epochs.begin,
                    network,
                    epoch=numbers[network.tenant],
                    key=secrets.token_bytes(EPOCH_KEY_OCTETS),
                    cause=cause,
                    now_unix_ms=self.now().unix_ms,
                )
            )
        return numbers
