"""Changes of the policy in force: durable and audited in one transaction, then pushed.

Called by the Policy servicer, which has authorised the caller.
"""

from __future__ import annotations

from dataclasses import dataclass

from ztdpu.control.appraisal.conclusion import Concluder
from ztdpu.control.appraisal.reappraisal import reappraise
from ztdpu.control.change_steps import ChangeRequest, ChangeSteps
from ztdpu.control.configuration import Specification
from ztdpu.control.fleet import Fleet
from ztdpu.control.source import Desired, load_desired
from ztdpu.model.tenant import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChange:
    """What a sync did."""

    changed: tuple[str, ...]
    """Devices whose tables changed."""
    is_repeated: bool = False
    """The request was answered before: nothing was read."""


class PolicyChanges(ChangeSteps):
    """One per control process."""

    def __init__(self, fleet: Fleet, spec: Specification, concluder: Concluder) -> None:
        super().__init__(fleet)
        self._spec = spec
        self._concluder = concluder

    def sync_policy(self, request: ChangeRequest) -> PolicyChange:
        """Read policy and roster again.

        Raises:
            PolicyRefusedError, ConfigurationError: nothing was applied.

        """
        fleet, before = self._fleet, self._fleet.desired
        with self.audited(request):
            self._check(request, dry_run=False, is_device=False)
            with fleet.transaction() as transaction:
                earlier = self._earlier(transaction, request)
            if earlier is not None:
                return PolicyChange(changed=tuple(earlier["changed"]), is_repeated=True)
            desired = load_desired(self._spec, lowest_roster_serial=before.roster.serial)
            changed = tuple(
                name
                for name, tables in sorted(desired.tables.items())
                if name not in before.tables or before.tables[name].revision != tables.revision
            )
            fresh = [n for t, n in desired.networks.items() if before.networks.get(t) != n]
            with fleet.transaction() as transaction:
                fleet.begin_epochs(transaction, fresh, "network is new")
                fleet.begin_epochs(transaction, _left(before, desired), "a device left the network")
                generation = fleet.bump(transaction)
                transaction.put_number("roster-serial", desired.roster.serial)
                fleet.write_leaf(transaction, request.event(generation=generation, changed=",".join(changed)))
                self._remember(transaction, request, {"changed": changed})
        fleet.adopt(desired, changed)
        reappraise(fleet, self._concluder)
        return PolicyChange(changed=changed)


def _left(before: Desired, after: Desired) -> list[Network]:
    """Networks that a device took part in and does not any more: it must not know the next key."""

    return [
        network
        for name, network in after.networks.items()
        if before.networks.get(name) == network and before.cluster.devices_in(name) - after.cluster.devices_in(name)
    ]
