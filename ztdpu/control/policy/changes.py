"""Changes of the policy in force: durable and audited in one transaction, then pushed.

One at a time. Reading and compiling go on in a thread, since a large policy takes seconds in which leases must not end.
Called by the Policy servicer, which has authorised the caller; `git_changes` adds what a repository brings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from ztdpu.control.appraisal.conclusion import Concluder
from ztdpu.control.appraisal.reappraisal import reappraise
from ztdpu.control.audit import AuditEvent
from ztdpu.control.change_steps import ChangeRequest, ChangeSteps
from ztdpu.control.configuration import Specification
from ztdpu.control.fleet import Fleet
from ztdpu.control.source import Desired, load_desired
from ztdpu.control.store.store import Transaction
from ztdpu.errors import PolicyRefusedError, StateError
from ztdpu.model.policy_source import PolicySource, PolicyStanding
from ztdpu.model.tenant import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChange:
    """What a sync did."""

    changed: tuple[str, ...]
    """Devices whose tables changed."""
    is_repeated: bool = False
    """The request was answered before: nothing was read."""


class PolicyChanges(ChangeSteps):
    """Policy from a directory, and what both sources share. One per control process."""

    def __init__(self, fleet: Fleet, spec: Specification, concluder: Concluder) -> None:
        super().__init__(fleet)
        self._spec = spec
        self._concluder = concluder
        self._lock = asyncio.Lock()
        self._faults: PolicyRefusedError | None = None
        self._loaded = (fleet.now().unix_ms, fleet.generation)

    @property
    def faults(self) -> PolicyRefusedError | None:
        """Of the last attempt, when it was refused."""
        return self._faults

    @property
    def loaded(self) -> tuple[int, int]:
        """(unix ms, generation) at which the policy in force was read."""
        return self._loaded

    @property
    def source(self) -> PolicySource:
        """Where policy comes from, and how that stands."""
        standing = PolicyStanding.REFUSED if self._faults else PolicyStanding.ACCEPTED
        return PolicySource(name=self._spec.policy_source, standing=standing)

    async def sync(self, request: ChangeRequest) -> PolicyChange:
        """Read policy and roster again.

        Raises:
            PolicyRefusedError, ConfigurationError: nothing was applied.

        """
        async with self._lock:
            try:
                with self.audited(request):
                    self._check(request, dry_run=False, is_device=False)
                    return self._repeated(request) or await self._sync(request)
            except PolicyRefusedError as error:
                self._faults = error
                raise

    async def hold(self, request: ChangeRequest, commit: str) -> PolicyChange:
        """Go back to an accepted commit and stay there; a directory has none."""
        return await self._from_git_only(request, commit)

    async def resume(self, request: ChangeRequest) -> PolicyChange:
        """End a hold."""
        return await self._from_git_only(request)

    async def poll(self) -> None:
        """Look whether something is new; a directory is read when somebody asks for it."""

    async def _sync(self, request: ChangeRequest) -> PolicyChange:
        serial = self._fleet.desired.roster.serial
        desired = await asyncio.to_thread(load_desired, self._spec, lowest_roster_serial=serial)
        return self._put_in_force(desired, request)

    async def _from_git_only(self, request: ChangeRequest, *_: str) -> PolicyChange:
        with self.audited(request):
            raise StateError(
                f"policy comes from the directory {self._spec.policy_dir}, which has no commits",
                remedy="put the old files back and run `ztdpu policy sync`",
            )

    def _repeated(self, request: ChangeRequest) -> PolicyChange | None:
        with self._fleet.transaction() as transaction:
            earlier = self._earlier(transaction, request)
        return None if earlier is None else PolicyChange(changed=tuple(earlier["changed"]), is_repeated=True)

    def _put_in_force(
        self,
        desired: Desired,
        request: ChangeRequest | None,
        *,
        event: Callable[[int, str], AuditEvent] | None = None,
        also: Callable[[Transaction], None] | None = None,
    ) -> PolicyChange:
        """Commit, then push. `event` makes one more leaf, from (generation, changed devices)."""
        fleet, before = self._fleet, self._fleet.desired
        changed = tuple(
            name
            for name, tables in sorted(desired.tables.items())
            if name not in before.tables or before.tables[name].revision != tables.revision
        )
        fresh = [n for t, n in desired.networks.items() if before.networks.get(t) != n]
        lost = {name: networks for name in fleet.names() if (networks := _lost(fleet, before, desired, name))}
        barred = [n for t, n in desired.networks.items() if any(t in networks for networks in lost.values())]
        with fleet.transaction() as transaction:
            fleet.begin_epochs(transaction, fresh, "network is new")
            fleet.begin_epochs(transaction, barred, "a tenant does not allow a device's tier any more")
            fleet.begin_epochs(transaction, _left(before, desired), "a device left the network")
            generation = fleet.bump(transaction)
            transaction.put_number("roster-serial", desired.roster.serial)
            if also is not None:
                also(transaction)
            names = ",".join(changed)
            if event is not None:
                fleet.write_leaf(transaction, event(generation, names))
            if request is not None:
                fleet.write_leaf(transaction, request.event(generation=generation, changed=names))
                self._remember(transaction, request, {"changed": changed})
        fleet.adopt(desired, changed)
        for device, networks in lost.items():
            fleet.push_withholding(device, networks, generation=generation)
        reappraise(fleet, self._concluder)
        self._faults = None
        self._loaded = (fleet.now().unix_ms, fleet.generation)
        return PolicyChange(changed=changed)


def _lost(fleet: Fleet, before: Desired, after: Desired, device: str) -> frozenset[str]:
    """Networks that a leased device uses and may not any more in the tier that it has."""
    if device not in after.cluster.devices or not fleet.is_leased(device):
        return frozenset()
    tier = fleet.record(device).tier
    return after.withheld_on(device, tier) - before.withheld_on(device, tier)


def _left(before: Desired, after: Desired) -> list[Network]:
    """Networks that a device took part in and does not any more: it must not know the next key."""
    return [
        network
        for name, network in after.networks.items()
        if before.networks.get(name) == network and before.cluster.devices_in(name) - after.cluster.devices_in(name)
    ]
