"""Changes that operators make: durable and audited in one transaction, then followed by pushes.

Order of a revocation: 1. commit (record, bindings, epoch numbers, audit leaf, answer); 2. the moment of that commit is
the acknowledgement; 3. the device's stream ends; 4. every open stream gets the revocation with its next epoch keys,
then the new list of peers; 5. up to 1 s for the answers of leased peers, even if the caller is gone by then.
A refused change changes nothing and leaves its leaf all the same (`ChangeSteps.audited`).
Called by the Device and Key servicers, which have authorised the caller.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import secrets
import time
from typing import Any, Final

from ztdpu.control.change_steps import ChangeRequest, ChangeSteps
from ztdpu.control.devices import leases
from ztdpu.control.devices.record import DeviceRecord, JoinTokenRecord
from ztdpu.control.doors.hub import RotatePush
from ztdpu.control.fleet import Fleet
from ztdpu.control.store.store import Transaction
from ztdpu.control.view import view_blast_radius, view_device
from ztdpu.errors import (
    ConflictError,
    NotFoundError,
    PermissionDeniedError,
    StateError,
    UsageError,
)
from ztdpu.model.administration import DeviceChange, JoinToken, KeyRotation, PeerAcknowledgement

ACKNOWLEDGEMENT_WAIT_S: Final = 1.0
TOKEN_TTL_S: Final = 3600
TOKEN_TTL_LIMIT_S: Final = 86_400
TOKEN_PREFIX: Final = "ztd-"  # noqa: S105
"""Says what the token is for, a device, and that it never begins like an option."""


class Changes(ChangeSteps):
    """One per control process."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self._following: set[asyncio.Task[dict[str, Any]]] = set()
        """Changes that wait for their peers' answers; held here, since a loop does not hold its tasks."""

    # --- revoke, quarantine, restore ---

    async def revoke(self, request: ChangeRequest, *, dry_run: bool) -> DeviceChange:
        """Revoke a device. StateError when it is; ConflictError when the expected version is not the present one."""
        return await self._shut_out(request, dry_run=dry_run, revoke=True)

    async def quarantine(self, request: ChangeRequest, *, dry_run: bool) -> DeviceChange:
        """Quarantine a device."""
        return await self._shut_out(request, dry_run=dry_run, revoke=False)

    async def _shut_out(self, request: ChangeRequest, *, dry_run: bool, revoke: bool) -> DeviceChange:
        device = request.subject
        with self.audited(request, dry_run=dry_run):
            self._check(request, dry_run=dry_run)
            if dry_run:
                change = leases.revoke if revoke else leases.quarantine
                change(self._fleet.record(device), request.reason, self._fleet.now())
                return self._unchanged(device)
            answer, is_repeated = self._commit_shut_out(request, revoke=revoke)
        if is_repeated:
            return self._device_change(device, answer)
        committed_ns = time.monotonic_ns()
        self._push_shut_out(device, answer["generation"], revoke=revoke)
        following = asyncio.create_task(self._await_peers(request, answer, committed_ns))
        self._following.add(following)
        following.add_done_callback(self._following.discard)
        return self._device_change(device, await asyncio.shield(following))

    def _commit_shut_out(self, request: ChangeRequest, *, revoke: bool) -> tuple[dict[str, Any], bool]:
        """(the answer so far, whether it was given before). The moment of the commit is part of what is committed."""
        fleet, device = self._fleet, request.subject
        lost = fleet.desired.networks_on(device)
        change = leases.revoke if revoke else leases.quarantine
        with fleet.transaction() as transaction:
            earlier = self._earlier(transaction, request)
            if earlier is not None:
                return earlier, True
            record = change(self._expected(transaction, request), request.reason, fleet.now())
            fleet.put(transaction, record)
            if revoke:
                transaction.retire_bindings(device, denied=True)
            networks = [network for name, network in fleet.desired.networks.items() if name in lost]
            fleet.begin_epochs(transaction, networks, f"{record.state}: {device}")
            generation = fleet.bump(transaction)
            fleet.shut_out(transaction, device, generation)
            fleet.write_leaf(transaction, request.event(generation=generation))
            answer = {"generation": generation, "acknowledged_unix_ns": time.time_ns(), "peers": []}
            self._remember(transaction, request, answer)
        return answer, False

    def _push_shut_out(self, device: str, generation: int, *, revoke: bool) -> None:
        """Everything that follows the commit and does not wait."""
        fleet = self._fleet
        fleet.revocations[generation] = fleet.now().boottime_ns
        if revoke:
            fleet.set_binding(device, None)
            fleet.hub.close(device, PermissionDeniedError(f"{device} is revoked"))
        fleet.set_kem_key(device, None)
        fleet.push_revocation(device, generation=generation, cause=str(fleet.record(device).state))
        fleet.push_peers_around(device)

    async def _await_peers(self, request: ChangeRequest, answer: dict[str, Any], committed_ns: int) -> dict[str, Any]:
        """The answer with what the peers did; kept for a repetition."""
        applied_ns, missing = await self._fleet.hub.wait_applied(answer["generation"], timeout_s=ACKNOWLEDGEMENT_WAIT_S)
        peers = [
            *({"device": d, "applied": True, "duration_ms": (at - committed_ns) / 1e6} for d, at in applied_ns.items()),
            *({"device": d, "applied": False, "duration_ms": ACKNOWLEDGEMENT_WAIT_S * 1000} for d in sorted(missing)),
        ]
        answer = answer | {"peers": peers}
        if request.request_id:
            with self._fleet.transaction() as transaction:
                self._remember(transaction, request, answer)
        return answer

    def restore(self, request: ChangeRequest, *, dry_run: bool, allow_rollback: bool) -> DeviceChange:
        """Lead a device back to pending: new keys, a newer boot after a revocation, fresh evidence."""
        fleet, device = self._fleet, request.subject
        with self.audited(request, dry_run=dry_run):
            self._check(request, dry_run=dry_run)
            if dry_run:
                leases.restore(fleet.record(device), request.reason, fleet.now(), allow_rollback=allow_rollback)
                return self._unchanged(device)
            with fleet.transaction() as transaction:
                earlier = self._earlier(transaction, request)
                if earlier is not None:
                    return self._device_change(device, earlier)
                current = self._expected(transaction, request)
                fleet.put(
                    transaction,
                    leases.restore(current, request.reason, fleet.now(), allow_rollback=allow_rollback),
                )
                generation = fleet.bump(transaction)
                fleet.write_leaf(transaction, request.event(generation=generation, allow_rollback=int(allow_rollback)))
                answer = {"generation": generation, "acknowledged_unix_ns": time.time_ns(), "peers": []}
                self._remember(transaction, request, answer)
        fleet.hub.close(device, PermissionDeniedError(f"{device} is pending"))
        fleet.push_peers_around(device)
        return self._device_change(device, answer)

    # --- tokens, keys ---

    def create_join_token(self, request: ChangeRequest, *, ttl_s: int) -> JoinToken:
        """A single-use token for a device that has no pinned DeviceID. Told once, kept as its hash only."""
        fleet, device = self._fleet, request.subject
        with self.audited(request):
            self._check(request, dry_run=False)
            ttl_s = ttl_s or TOKEN_TTL_S
            token = f"{TOKEN_PREFIX}{secrets.token_urlsafe(32)}"
            expires_unix_ms = fleet.now().unix_ms + ttl_s * 1000
            with fleet.transaction() as transaction:
                if self._earlier(transaction, request) is not None:
                    raise ConflictError("this request was answered before; a token is told once", remedy="ask anew")
                if ttl_s > TOKEN_TTL_LIMIT_S:
                    raise UsageError("a join token lives at most a day", remedy="ask for a shorter time")
                if fleet.record(device).device_id_sha256 or fleet.desired.pins_of(device)[0]:
                    raise StateError(f"{device} has a pinned DeviceID", remedy="it attests without a token")
                digest = hashlib.sha256(token.encode()).digest()
                transaction.put_token(
                    JoinTokenRecord(token_sha256=digest, device=device, expires_unix_ms=expires_unix_ms)
                )
                fleet.write_leaf(transaction, request.event(token_sha256=digest.hex(), ttl_s=ttl_s))
                self._remember(transaction, request, {})
        return JoinToken(device=device, token=token, expires_unix_ms=expires_unix_ms)

    def rotate_tenant_key(self, request: ChangeRequest) -> KeyRotation:
        """A new epoch for a tenant's network; SAs between devices stay until their own rotation."""
        fleet, tenant = self._fleet, request.subject
        with self.audited(request):
            self._check(request, dry_run=False, is_device=False)
            with fleet.transaction() as transaction:
                earlier = self._earlier(transaction, request)
                if earlier is not None:
                    return KeyRotation(**earlier | {"devices": tuple(earlier["devices"])})
                network = fleet.desired.networks.get(tenant)
                if network is None:
                    raise NotFoundError(f"no tenant {tenant!r} with a network", remedy="`ztdpu tenant list`")
                number = fleet.begin_epochs(transaction, [network], f"rotated: {request.reason}")[tenant]
                generation = fleet.bump(transaction)
                devices = sorted({e.device for e in fleet.desired.cluster.endpoints_of(tenant)})
                usable = [name for name in devices if fleet.is_leased(name) and tenant not in fleet.withheld_on(name)]
                told = [name for name in usable if fleet.hub.get(name) is not None]
                fleet.write_leaf(transaction, request.event(epoch=number))
                answer = {"generation": generation, "devices": told, "epoch": number}
                self._remember(transaction, request, answer)
        fleet.push_epoch_keys(told)
        return KeyRotation(generation=generation, devices=tuple(told), epoch=number)

    def rotate_device_key(self, request: ChangeRequest, *, force: bool) -> KeyRotation:
        """Tell a device to rotate its master key. StateError when it is not connected."""
        fleet, device = self._fleet, request.subject
        with self.audited(request):
            self._check(request, dry_run=False)
            with fleet.transaction() as transaction:
                earlier = self._earlier(transaction, request)
                if earlier is not None:
                    return KeyRotation(**earlier | {"devices": tuple(earlier["devices"])})
                if fleet.hub.get(device) is None or not fleet.is_leased(device):
                    raise StateError(f"{device} is not connected with a lease", remedy="look at `ztdpu device show`")
                fleet.write_leaf(transaction, request.event(force=int(force)))
                answer = {"generation": fleet.generation, "devices": [device], "epoch": 0}
                self._remember(transaction, request, answer)
        fleet.hub.deliver(device, RotatePush(force=force))
        return KeyRotation(generation=fleet.generation, devices=(device,), epoch=0)

    def _expected(self, transaction: Transaction, request: ChangeRequest) -> DeviceRecord:
        current = transaction.get_device(request.subject) or self._fleet.record(request.subject)
        if request.expected_version and request.expected_version != current.version:
            raise ConflictError(
                f"{request.subject} is at version {current.version}, not {request.expected_version}",
                remedy="look at it again, then decide again",
            )
        return current

    def _unchanged(self, device: str) -> DeviceChange:
        return DeviceChange(
            device=view_device(self._fleet, device),
            generation=0,
            acknowledged_unix_ns=0,
            blast_radius=view_blast_radius(self._fleet, device),
        )

    def _device_change(self, device: str, answer: dict[str, Any]) -> DeviceChange:
        return dataclasses.replace(
            self._unchanged(device),
            generation=answer["generation"],
            acknowledged_unix_ns=answer["acknowledged_unix_ns"],
            peers=tuple(PeerAcknowledgement(**peer) for peer in answer["peers"]),
        )
