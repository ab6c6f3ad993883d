"""Replacing the authority in three steps, none of which interrupts anybody.

1. `prepare`: a new key; its certificate is in the bundle, which goes to every agent. 2. `activate`, once every device
said that it believes that bundle: SVIDs and control's own certificate come from the new key; devices get new SVIDs at
their next attestation. 3. `retire`, once every device holds one: the old authority leaves the bundle, streams with its
SVIDs end, its key is destroyed. `force` waits for nobody: whoever lags is shut out until somebody gives it the bundle.
Each step is one transaction with its audit leaf; memory, ports and pushes follow it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ztdpu.control.authority.followers import Followers
from ztdpu.control.authority.issue import STANDING, Issuer
from ztdpu.control.authority.standing import AuthorityRecord, AuthorityState, Standing, encode_standing
from ztdpu.control.change_steps import ChangeRequest, ChangeSteps
from ztdpu.control.doors.hub import BundlePush
from ztdpu.control.fleet import Fleet
from ztdpu.control.store.store import Transaction
from ztdpu.errors import PermissionDeniedError, StateError, UsageError
from ztdpu.model.identity import AuthorityRotation, RotationStep
from ztdpu.telemetry import get_logger

NAMED_LIMIT = 8
"""Devices that a refusal names."""


class AuthorityRotations(ChangeSteps):
    """One per control process."""

    def __init__(
        self, fleet: Fleet, issuer: Issuer, followers: Followers, *, on_change: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(fleet)
        self._issuer = issuer
        self._followers = followers
        self._on_change = on_change
        """Shows another certificate and believes other SVIDs on control's ports."""

    async def rotate(self, request: ChangeRequest, *, force: bool) -> AuthorityRotation:
        """Take the step that `request.subject` names.

        Raises:
            UsageError: no such step, no reason.
            StateError: not its turn, or devices lag and `force` is not given.

        """
        with self.audited(request):
            self._check(request, dry_run=False, is_device=False)
            if request.subject not in list(RotationStep):
                raise UsageError(f"no step {request.subject!r}", remedy=f"steps: {', '.join(RotationStep)}")
            step, before = RotationStep(request.subject), self._issuer.standing
            made: AuthorityRecord | None = None
            if step is RotationStep.PREPARE:
                made = self._issuer.make_authority(now_unix_ms=self._fleet.now().unix_ms)
            try:
                answer, standing = self._commit(request, step, made, force=force)
            except BaseException:
                if made is not None:
                    self._issuer.keys.destroy(made.key_name)
                raise
        if standing is not None:
            await self._follow(before, standing)
        elif made is not None:
            self._issuer.keys.destroy(made.key_name)
        return answer

    def _commit(
        self, request: ChangeRequest, step: RotationStep, made: AuthorityRecord | None, *, force: bool
    ) -> tuple[AuthorityRotation, Standing | None]:
        """(the answer, how things stand now); None for a request that was answered before."""
        fleet, standing = self._fleet, self._issuer.standing
        now_unix_ms = fleet.now().unix_ms
        with fleet.transaction() as transaction:
            earlier = self._earlier(transaction, request)
            if earlier is not None:
                return AuthorityRotation(**earlier | {"devices_behind": tuple(earlier["devices_behind"])}), None
            behind: tuple[str, ...] = ()
            match step:
                case RotationStep.PREPARE:
                    assert made is not None
                    after, subject = standing.prepare(made, now_unix_ms=now_unix_ms), made
                    behind = self._followers.behind(transaction, after.sequence)
                case RotationStep.ACTIVATE:
                    after = standing.activate(now_unix_ms=now_unix_ms)
                    behind = self._followers.behind(transaction, standing.sequence)
                    subject = after.active
                    _require_none(behind, "have not said that they believe the new authority", force=force)
                case RotationStep.RETIRE:
                    after, subject = standing.retire(now_unix_ms=now_unix_ms), _replaced(standing)
                    behind = self._lagging(transaction, standing)
                    _require_none(behind, "hold an SVID of the old authority, or do not know the new one", force=force)
            transaction.put_text(STANDING, encode_standing(after))
            state = "retired" if step is RotationStep.RETIRE else str(subject.state)
            fleet.write_leaf(
                transaction,
                request.event(
                    authority=subject.name,
                    bundle_sequence=after.sequence,
                    force=int(force),
                    behind=" ".join(behind)[:300] if step is not RotationStep.PREPARE else "",
                ),
            )
            answer = AuthorityRotation(
                authority=subject.name, state=state, bundle_sequence=after.sequence, devices_behind=behind
            )
            self._remember(
                transaction,
                request,
                {
                    "authority": answer.authority,
                    "state": answer.state,
                    "bundle_sequence": answer.bundle_sequence,
                    "devices_behind": list(behind),
                },
            )
        return answer, after

    def _lagging(self, transaction: Transaction, standing: Standing) -> tuple[str, ...]:
        others = self._followers.held_by_others(transaction, standing.active.name)
        return tuple(sorted({*others, *self._followers.behind(transaction, standing.sequence)}))

    async def _follow(self, before: Standing, after: Standing) -> None:
        """Everything that comes after the commit."""
        fleet, issuer = self._fleet, self._issuer
        issuer.adopt(after)
        kept = {one.name for one in after.authorities}
        for name in fleet.names():
            fleet.hub.deliver(name, BundlePush(document=issuer.bundle_document))
        for connection in fleet.hub.list():
            if connection.authority not in kept:
                refusal = PermissionDeniedError("the authority of this SVID was retired", remedy="attest again")
                fleet.hub.close(connection.device, refusal)
        await self._on_change()
        for one in before.authorities:
            if one.name not in kept:
                issuer.keys.destroy(one.key_name)
        get_logger().info(
            "authority-rotated",
            sequence=after.sequence,
            authorities={one.name: str(one.state) for one in after.authorities},
        )


def _replaced(standing: Standing) -> AuthorityRecord:
    found = standing.find(AuthorityState.REPLACED)
    assert found is not None  # `Standing.retire` refused it otherwise
    return found


def _require_none(behind: tuple[str, ...], what: str, *, force: bool) -> None:
    if behind and not force:
        more = f" and {len(behind) - NAMED_LIMIT} more" if len(behind) > NAMED_LIMIT else ""
        raise StateError(
            f"{', '.join(behind[:NAMED_LIMIT])}{more} {what}",
            remedy="wait for them (`ztdpu identity list`), or --force: they stay out until they are given the bundle",
        )
