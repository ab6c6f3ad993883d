"""The fleet as control knows it now (`fleet_state`), and who must be told what.

All changes go through `transaction`: the store first, memory after the commit, pushes last. One event loop owns
it; nothing here awaits, so what it says is never half changed. Verifies nothing and authorises nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from ztdpu.control.audit import AuditEvent, AuditOutcome
from ztdpu.control.devices import leases
from ztdpu.control.devices.leases import Instant
from ztdpu.control.doors.hub import (
    ConfigPush,
    Connection,
    EpochKeysPush,
    PeersPush,
    PeerView,
    RevocationPush,
    RosterPush,
    WithholdingPush,
)
from ztdpu.control.fleet_state import FleetState
from ztdpu.control.source import Desired
from ztdpu.control.store.store import Transaction
from ztdpu.errors import NotFoundError, PermissionDeniedError
from ztdpu.keys.epoch import EpochKey, epoch_context, seal_epoch_keys
from ztdpu.model.device import DeviceState

EAR_TTL_S: Final = 600
_LOOK_AHEAD_NS: Final = 1_000_000
"""Leases are counted in whole milliseconds: the last one ends up to one before its deadline."""
PRUNE_S: Final = 600
"""Between two rounds of forgetting what can do nothing any more."""
EAR_TOLD_AGAIN_MS: Final = EAR_TTL_S * 1000 // 2


class Fleet(FleetState):
    """State of one control process and its pushes."""

    def adopt(self, desired: Desired, changed: Iterable[str]) -> None:
        """Put a new desired state in force and tell whom it concerns. Devices that policy dropped lose their stream."""
        before, self.desired = self.desired, desired
        self.epochs.forget(network.network_id for network in desired.networks.values())
        for device in set(before.cluster.devices) - set(desired.cluster.devices):
            self.hub.close(device, PermissionDeniedError(f"no device {device}"))
        changed, seen = set(changed), dict[str, PeerView | None]()
        for device in self.names():
            if device in changed:
                self.config_generation[device] = self.generation
                tables = desired.tables[device]
                self.hub.deliver(
                    device, ConfigPush(generation=self.generation, revision=tables.revision, tables=tables.blob)
                )
            if desired.roster_octets != before.roster_octets:
                self.hub.deliver(device, RosterPush(roster=desired.roster_octets, signature=desired.roster_signature))
            self._push_peers(device, seen)
        self.push_epoch_keys(self.names())

    # --- sealing and telling ---

    def withheld_on(self, device: str) -> frozenset[str]:
        """Networks of the device that are not for it in the tier of its last appraisal."""
        return self.desired.withheld_on(device, self.record(device).tier)

    def seal_epoch_keys(self, device: str, kem_public_key: bytes, *, tier: str = "") -> bytes:
        """Current keys of the device's networks that allow `tier` (default: that of its last appraisal), sealed.

        Empty for a device without any.

        Raises:
            ExchangeError: the key is none of the KEM.

        """
        keys: tuple[EpochKey, ...] = self.epochs.keys_of(
            set(self.desired.networks_on(device)) - self.desired.withheld_on(device, tier or self.record(device).tier)
        )
        if not keys:
            return b""
        return seal_epoch_keys(keys, kem_public_key=kem_public_key, context=epoch_context(device, kem_public_key))

    def sealed_epoch_keys(self, device: str) -> bytes:
        """The same for a device that holds a lease now, to the key that it asked with last; else empty."""
        kem_public_key = self._kem_keys.get(device)
        return self.seal_epoch_keys(device, kem_public_key) if kem_public_key and self.is_leased(device) else b""

    def peers_of(self, device: str) -> tuple[PeerView, ...]:
        """Live peers of a device; one without a worker is no peer yet."""
        return self._peers_of(device, {})

    def _peers_of(self, device: str, seen: dict[str, PeerView | None]) -> tuple[PeerView, ...]:
        """The same; `seen` has every device that was looked at in this moment: many lists name the same peers."""
        if not self.is_leased(device):
            return ()
        found, mine = [], self.withheld_on(device)
        for peer in self.desired.peers_of(device):
            if peer not in seen:
                seen[peer] = self._view(peer) if self.is_leased(peer) else None
            view = seen[peer]
            if view is not None:
                withheld = mine | self.withheld_on(peer)
                found.append(
                    replace(view, withheld_networks=self._shared(device, peer, withheld)) if withheld else view
                )
        return tuple(found)

    def _shared(self, device: str, peer: str, networks: frozenset[str]) -> tuple[bytes, ...]:
        """Ids of those of `networks` that both devices are in."""
        return self.desired.network_ids(
            networks.intersection(self.desired.networks_on(device), self.desired.networks_on(peer))
        )

    def set_worker_instance(self, device: str, worker_instance: bytes) -> None:
        """A worker said hello; peers address it by this."""
        record = self.record(device)
        if record.worker_instance != worker_instance:
            with self.transaction() as transaction:
                self.put(transaction, replace(record, worker_instance=worker_instance))
                self.bump(transaction)
            self.push_peers_around(device)

    def sweep(self) -> None:
        """What time alone changes: leases that ended, streams whose device may not talk any more."""
        now = self.now()
        for name in self._ended(now):
            self.end_lease(name, "no fresh evidence before the lease ended")
        for connection in self.hub.list():
            try:
                self._require_connected(connection, now)
            except (PermissionDeniedError, NotFoundError) as error:
                self.hub.close(connection.device, error)
        if now.boottime_ns >= self._prune_ns:
            self._prune_ns = now.boottime_ns + PRUNE_S * 1_000_000_000
            with self.transaction() as transaction:
                transaction.prune(now_unix_ms=now.unix_ms)

    def _ended(self, now: Instant) -> list[str]:
        """Leases that ended. Most did not, five times a second: those are told by their deadline alone."""
        soon_ns, boot_id, records, ended = now.boottime_ns + _LOOK_AHEAD_NS, now.boot_id, self._records, []
        for name in self.names():
            record = records.get(name)
            if record is None or (record.lease_deadline_ns > soon_ns and record.lease_boot_id == boot_id):
                continue
            if leases.has_ended(record, now):
                ended.append(name)
        return ended

    def end_lease(self, device: str, reason: str) -> None:
        """Stale: nothing was found against the device, and nothing speaks for it. Fresh evidence mends it."""
        stale = leases.change_state(self.record(device), DeviceState.STALE, reason, self.now())
        with self.transaction() as transaction:
            self.put(transaction, stale)
            self.write_leaf(transaction, _ended_event(device, reason))
            self.bump(transaction)
        self.set_kem_key(device, None)
        self.push_peers_around(device)

    def _view(self, device: str) -> PeerView | None:
        record, binding = self.record(device), self._bindings.get(device)
        if binding is None or not record.worker_instance:
            return None
        return PeerView(
            device=device,
            key_binding=binding.envelope,
            chain=binding.chain,
            ear=record.ear,
            worker_instance=record.worker_instance,
            profile=record.profile,
        )

    def push_first(self, device: str) -> None:
        """Everything that an agent needs after its hello."""
        desired = self.desired
        missed = [peer for peer in desired.peers_of(device) if self.record(peer).state in leases.SHUT_OUT_STATES]
        for peer in sorted(missed, key=lambda one: self._shut_out.get(one, 0)):
            # It may have missed the push. With the generation of then: a list of peers made before does not undo it.
            generation = self._shut_out.get(peer) or self.generation
            self.hub.deliver(device, self._revocation(peer, generation=generation, cause=str(self.record(peer).state)))
        self.hub.deliver(device, RosterPush(roster=desired.roster_octets, signature=desired.roster_signature))
        self._told_peers.pop(device, None)
        self.push_peers(device)
        tables = desired.tables[device]
        # With today's generation: it covers every revocation before this moment too, since peers came first.
        self.config_generation[device] = self.generation
        self.hub.deliver(device, ConfigPush(generation=self.generation, revision=tables.revision, tables=tables.blob))
        self.push_epoch_keys((device,))

    def push_peers(self, device: str) -> None:
        """Tell one device who its peers are, if that changed; a fresher EAR alone is told when the told one ages."""
        self._push_peers(device, {})

    def _push_peers(self, device: str, seen: dict[str, PeerView | None]) -> None:
        self.on_peers(device)
        if self.hub.get(device) is None:
            self._told_peers.pop(device, None)
            return
        now_ms, peers = self.now().unix_ms, self._peers_of(device, seen)
        names = tuple((one.device, one.key_binding, one.worker_instance, one.withheld_networks) for one in peers)
        told, told_ms = self._told_peers.get(device, (None, 0))
        if told != names or now_ms - told_ms > EAR_TOLD_AGAIN_MS:
            self._told_peers[device] = (names, now_ms)
            self.hub.deliver(device, PeersPush(generation=self.generation, peers=peers))

    def push_peers_around(self, device: str) -> None:
        """Something about a device changed: tell it and everyone who shares a network with it."""
        seen: dict[str, PeerView | None] = {}
        for name in (device, *self.desired.peers_of(device)):
            self._push_peers(name, seen)

    def push_epoch_keys(self, devices: Iterable[str]) -> None:
        """Current epoch keys to connected, leased devices."""
        for device in devices:
            if self.hub.get(device) is not None:
                sealed = self.sealed_epoch_keys(device)
                if sealed:
                    withheld = self.desired.network_ids(self.withheld_on(device))
                    push = EpochKeysPush(generation=self.generation, sealed=sealed, withheld_networks=withheld)
                    self.hub.deliver(device, push)

    def begin_withholding(self, transaction: Transaction, networks: Iterable[str], cause: str) -> None:
        """New epochs of networks that a device may not use any more, whose keys go to the others."""
        names = set(networks)
        self.begin_epochs(transaction, [one for name, one in self.desired.networks.items() if name in names], cause)

    def push_withholding(self, device: str, networks: Iterable[str], *, generation: int) -> None:
        """Tell every connected agent, its own too; after the commit. Who has not applied it soon gets no lease."""
        self.revocations[generation] = self.now().boottime_ns
        lost = set(networks)
        ids = self.desired.network_ids(lost)
        for name in self.names():
            if self.hub.get(name) is not None:
                sealed = self.sealed_epoch_keys(name) if lost.intersection(self.desired.networks_on(name)) else b""
                push = WithholdingPush(generation=generation, device=device, networks=ids, sealed_epoch_keys=sealed)
                self.hub.deliver(name, push)

    def lower_tier(self, device: str, tier: str, reason: str) -> frozenset[str]:
        """A leased device is in warning from now on; returns the networks that it lost with that, at once."""
        record = self.record(device)
        lost = self.desired.withheld_on(device, tier) - self.withheld_on(device)
        warned = replace(leases.change_state(record, DeviceState.WARNING, reason, self.now()), tier=tier)
        with self.transaction() as transaction:
            self.put(transaction, warned)
            self.begin_withholding(transaction, lost, f"{tier}: {device}")
            generation = self.bump(transaction)
            self.write_leaf(transaction, _lowered_event(device, reason, tier))
        self.push_withholding(device, lost, generation=generation)
        self.push_peers_around(device)
        return lost

    def push_revocation(self, device: str, *, generation: int, cause: str) -> tuple[str, ...]:
        """Tell every connected agent; returns the leased ones that shared a network, whose answers count."""
        sharing = set(self.desired.peers_of(device))
        counted = tuple(n for n in sorted(sharing) if self.hub.get(n) is not None and self.is_leased(n))
        self.hub.expect_applied(generation, counted)
        for name in self.names():
            if name == device or self.hub.get(name) is None:
                continue
            sealed = self.sealed_epoch_keys(name) if name in sharing else b""
            self.hub.deliver(name, self._revocation(device, generation=generation, cause=cause, sealed=sealed))
        return counted

    def _revocation(self, device: str, *, generation: int, cause: str, sealed: bytes = b"") -> RevocationPush:
        pinned = self.record(device).device_id_sha256
        return RevocationPush(
            generation=generation,
            device=device,
            ueid=b"\x01" + pinned if pinned else b"",
            cause=cause,
            sealed_epoch_keys=sealed,
        )

    def require_connected(self, connection: Connection) -> None:
        """Ask, for each message on a stream, that this is still the device, with this key, in a state that may talk.

        Raises:
            PermissionDeniedError: it is not.

        """
        self._require_connected(connection, self.now())

    def _require_connected(self, connection: Connection, now: Instant) -> None:
        device = connection.device
        record, binding = self.record(device), self._bindings.get(device)
        if leases.expire(record, now).state not in leases.CONNECTED_STATES:
            raise PermissionDeniedError(f"device {device} is {record.state}", remedy="attest again")
        if binding is None or not secrets.compare_digest(binding.tls_spki_sha256, connection.tls_spki_sha256):
            raise PermissionDeniedError(f"{device} has another key now", remedy="attest again")
        if connection.certificate_expires_unix_s * 1000 < now.unix_ms:
            raise PermissionDeniedError("the SVID is over", remedy="attest again")


def _lowered_event(device: str, reason: str, tier: str) -> AuditEvent:
    return AuditEvent(
        actor="control",
        role="control",
        action="lower-tier",
        subject=device,
        outcome=AuditOutcome.DONE,
        reason=reason,
        detail={"tier": tier},
    )


def _ended_event(device: str, reason: str) -> AuditEvent:
    return AuditEvent(
        actor="control", role="control", action="end-lease", subject=device, outcome=AuditOutcome.DONE, reason=reason
    )
