"""Records of devices through their states, and who may hold a lease: `states` applied to a record and `now`.

Rules of this file:
1. Every change of state goes through one function here and returns a new record; the caller stores it.
2. `version` rises with every such change; renewing a lease is none.
3. A grant is decided on the record as it was when the nonce was made and applied to the record as it is now:
   whatever an operator did in between wins (`require_unchanged`).
4. Deadlines are CLOCK_BOOTTIME of the machine that runs control, valid in the boot that they were made in only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ztdpu.control.devices.record import DeviceRecord
from ztdpu.control.devices.states import RIGHTS, Event, next_state
from ztdpu.errors import ConflictError, StateError
from ztdpu.keys.lease import check_revocations_applied, control_deadline_ns, remaining_ms
from ztdpu.model.attestation import Tier
from ztdpu.model.device import DeviceState

LEASED_STATES: Final = frozenset(state for state, rights in RIGHTS.items() if rights.may_lease)
CONNECTED_STATES: Final = frozenset(state for state, rights in RIGHTS.items() if rights.stream)
"""States in which the Connect stream is open; some for management only."""
SHUT_OUT_STATES: Final = frozenset(state for state, rights in RIGHTS.items() if rights.speaks_against)
"""Something speaks against the device: its conversations are over. When nothing speaks for it, they only wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """Now, on the clocks that control uses."""

    unix_ms: int
    boottime_ns: int
    boot_id: str


def lease_ms(record: DeviceRecord, now: Instant) -> int:
    """Milliseconds until control's deadline; 0 without a lease."""
    if record.state not in LEASED_STATES or record.lease_boot_id != now.boot_id:
        return 0
    return remaining_ms(record.lease_deadline_ns, now.boottime_ns)


def is_leased(record: DeviceRecord, now: Instant) -> bool:
    """Whether peers may keep SAs with the device."""
    return lease_ms(record, now) > 0


def has_ended(record: DeviceRecord, now: Instant) -> bool:
    """Whether the record still says leased and the lease is over. Warning without a lease never had one to end."""
    return record.state in LEASED_STATES and record.lease_deadline_ns != 0 and not is_leased(record, now)


def change_state(record: DeviceRecord, state: DeviceState, reason: str, now: Instant) -> DeviceRecord:
    """The record in `state`; a state without a lease has no deadline."""
    leased = state in LEASED_STATES
    return replace(
        record,
        state=state,
        reason=reason,
        since_unix_ms=now.unix_ms if state is not record.state else record.since_unix_ms,
        version=record.version + 1,
        lease_boot_id=record.lease_boot_id if leased else "",
        lease_deadline_ns=record.lease_deadline_ns if leased else 0,
    )


# --- time ---


def expire(record: DeviceRecord, now: Instant) -> DeviceRecord:
    """Stale when the deadline is over (or was made in another boot of the machine); else the same record."""
    if not has_ended(record, now):
        return record
    state = next_state(record.state, Event.LEASE_ENDED)
    return change_state(record, state, "no fresh evidence before the lease ended", now)


def lose(record: DeviceRecord, reason: str, now: Instant) -> DeviceRecord:
    """The record after control's store went back: no lease of it counts. What operators decided stays."""
    state = next_state(record.state, Event.RECORD_LOST)
    return record if state is record.state else change_state(record, state, reason, now)


# --- operators ---


def revoke(record: DeviceRecord, reason: str, now: Instant) -> DeviceRecord:
    """Revoked: its keys and this boot never come back. StateError when it is revoked already."""
    revoked = change_state(record, _asked(record, Event.REVOKED), reason, now)
    return replace(revoked, boot_floor=record.boot_counter + 1, binding_sha256=b"", ear="", svid_expires_unix_s=0)


def quarantine(record: DeviceRecord, reason: str, now: Instant) -> DeviceRecord:
    """Quarantined: manageable, no lease. StateError for a device that is revoked or quarantined already."""
    return change_state(record, _asked(record, Event.QUARANTINED), reason, now)


def restore(record: DeviceRecord, reason: str, now: Instant, *, allow_rollback: bool) -> DeviceRecord:
    """Pending: only fresh evidence leads further. StateError unless revoked, quarantined, or for a rollback."""
    event = Event.ROLLBACK_ALLOWED if allow_rollback else Event.RESTORED
    pending = change_state(record, _asked(record, event), reason, now)
    return replace(pending, allow_rollback=allow_rollback, ear="", tier="none")


def _asked(record: DeviceRecord, event: Event) -> DeviceState:
    """The next state, or a StateError that names the device."""
    try:
        return next_state(record.state, event)
    except StateError as error:
        raise StateError(f"{record.name} {error.message}", remedy=error.remedy) from None


# --- appraisals ---


def require_unchanged(read: DeviceRecord, current: DeviceRecord) -> None:
    """Refuse when somebody changed the device while it was being appraised.

    That its lease ended meanwhile is no such change: fresh evidence is the very thing that mends it.

    Raises:
        ConflictError: an operator or another appraisal was faster.

    """
    if current.version == read.version:
        return
    if current.state is DeviceState.STALE and current.version == read.version + 1 and read.state in LEASED_STATES:
        return
    raise ConflictError("the device was changed while it was being appraised", remedy="attest again")


def require_revocations_applied(
    *, is_starting: bool, applied_generation: int, revocations: dict[int, int], now: Instant
) -> None:
    """Refuse a lease to an agent that still trusts a device revoked more than 2 s ago.

    `revocations` maps generation to CLOCK_BOOTTIME (ns) of its commit: no wall clock decides about traffic. An agent
    that starts has no SA with anybody.

    Raises:
        LeaseError: one of them is not applied.

    """
    if not is_starting:
        ages = ((one, (now.boottime_ns - at) // 1_000_000) for one, at in revocations.items())
        check_revocations_applied(applied_generation, ages)


def appraised_state(record: DeviceRecord, tier: Tier, *, tiers_allowed: frozenset[Tier]) -> DeviceState:
    """The state that an appraisal with this result leads to; what an operator decided stays."""
    if tier is Tier.WARNING:
        event = Event.WARNED
    else:
        event = Event.AFFIRMED if tier is Tier.AFFIRMING and tier in tiers_allowed else Event.CONTRAINDICATED
    return next_state(record.state, event)


def lower(record: DeviceRecord, state: DeviceState, reason: str, now: Instant, *, shown_boot: int) -> DeviceRecord:
    """The record without a lease. What an operator decided, and why, stands.

    `shown_boot` is that of evidence of the pinned device, 0 of any other. It ends all before it, good or bad: their
    Alias keys may be anybody's by now. The same shown again changes nothing, and keeps the version.
    """
    is_decided = state in (DeviceState.QUARANTINED, DeviceState.REVOKED)
    lowered = record if is_decided else change_state(record, state, reason, now)
    boot_counter = max(record.boot_counter, shown_boot)
    is_changed = state is not record.state or boot_counter != record.boot_counter
    return replace(
        lowered,
        version=record.version + is_changed,
        boot_counter=boot_counter,
        lease_boot_id="",
        lease_deadline_ns=0,
    )


def grant(record: DeviceRecord, state: DeviceState, reason: str, now: Instant, *, duration_ms: int) -> DeviceRecord:
    """The record with a lease from now on. A renewal in the same state keeps version and `since`."""
    if state not in LEASED_STATES:
        raise StateError(f"no lease in state {state}")
    changed = record if record.state is state else change_state(record, state, reason, now)
    return replace(
        changed,
        reason=reason,
        lease_boot_id=now.boot_id,
        lease_deadline_ns=control_deadline_ns(now.boottime_ns, duration_ms),
        allow_rollback=False,
    )
