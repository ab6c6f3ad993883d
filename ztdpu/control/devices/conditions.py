"""What a device must be before it is ready, one condition after the other: since when, why, and what comes next.

Called by `view`. Reads only. The first condition that is not met is the one to look at.
"""

from __future__ import annotations

from collections.abc import Iterator

from ztdpu.control.appraisal.judgement import is_enrolled
from ztdpu.control.devices import leases
from ztdpu.control.devices.leases import Instant
from ztdpu.control.devices.record import DeviceRecord
from ztdpu.control.devices.states import RIGHTS, Next, what_comes_next
from ztdpu.control.doors.hub import Connection
from ztdpu.control.fleet import Fleet
from ztdpu.model.attestation import Tier
from ztdpu.model.device import Condition, DeviceState
from ztdpu.policy.references import tenants_refusing

PHRASE_LIMIT = 60
NAMED_LIMIT = 3
"""Tenants that a reason names; it is one line."""
_ACCEPTED = ("affirming", "warning")


def next_of(fleet: Fleet, record: DeviceRecord, now: Instant) -> Next:
    """What becomes of the state if nobody does anything."""
    return what_comes_next(
        leases.expire(record, now).state,
        lease_ms=leases.lease_ms(record, now),
        since_appraisal_ms=now.unix_ms - record.appraised_unix_ms if record.appraised_unix_ms else None,
        interval_ms=fleet.attestation_interval_ms,
        needs_token=not is_enrolled(fleet.desired, record),
    )


def list_conditions(fleet: Fleet, device: str, *, is_ready: bool) -> tuple[Condition, ...]:
    """All of them, in the order in which a device meets them."""
    record, now, connection = fleet.record(device), fleet.now(), fleet.hub.get(device)
    return (
        *_trust(fleet, record, now),
        _leased(fleet, record, now),
        *_work(fleet, record, connection, is_ready=is_ready),
    )


def _trust(fleet: Fleet, record: DeviceRecord, now: Instant) -> Iterator[Condition]:
    pinned = bool(record.device_id_sha256)
    yield Condition(
        name="enrolled",
        met=pinned or is_enrolled(fleet.desired, record),
        reason="its DeviceID is pinned" if pinned else "no DeviceID is pinned yet",
        next="" if pinned else next_of(fleet, record, now).what,
    )
    due_ms = record.appraised_unix_ms + fleet.attestation_interval_ms
    yield Condition(
        name="attested",
        met=record.tier in _ACCEPTED,
        since_unix_ms=record.appraised_unix_ms,
        reason=f"tier {record.tier}" if record.appraised_unix_ms else "never appraised",
        deadline_unix_ms=due_ms if record.appraised_unix_ms else 0,
        next="next evidence due" if record.appraised_unix_ms else "",
    )
    binding = fleet.binding(record.name)
    yield Condition(
        name="bound",
        met=binding is not None,
        reason=f"key binding {binding.sequence} of boot {binding.boot_counter}" if binding else "no live key binding",
        deadline_unix_ms=binding.expires_unix_s * 1000 if binding else 0,
        next="a new one is made at half its life; ends" if binding else "",
    )
    expires_ms = record.svid_expires_unix_s * 1000
    may_have = RIGHTS[leases.expire(record, now).state].identity
    yield Condition(
        name="identity",
        met=expires_ms > now.unix_ms,
        reason="SVID issued" if expires_ms > now.unix_ms else "no SVID" if may_have else f"none while {record.state}",
        deadline_unix_ms=expires_ms if expires_ms > now.unix_ms else 0,
        next="a new one comes at half its life; ends" if expires_ms > now.unix_ms else "",
    )


def _leased(fleet: Fleet, record: DeviceRecord, now: Instant) -> Condition:
    following, state = next_of(fleet, record, now), leases.expire(record, now).state
    is_leased = leases.is_leased(record, now)
    reason = record.reason
    if not is_leased and state in (DeviceState.WARNING, DeviceState.CONTRAINDICATED):
        reason = _refusal_of_tier(fleet, record)
    if is_leased and (withheld := fleet.withheld_on(record.name)):
        reason = f"{_withheld(fleet, record, withheld)}; {reason}"
    return Condition(
        name="leased",
        met=is_leased,
        since_unix_ms=record.since_unix_ms,
        reason=f"{state}: {reason}",
        deadline_unix_ms=now.unix_ms + following.in_ms if following.in_ms is not None else 0,
        next=following.what,
    )


def _withheld(fleet: Fleet, record: DeviceRecord, networks: frozenset[str]) -> str:
    """Which networks a leased device may not use, and which tenants do not allow its tier."""
    names = sorted(networks)
    more = f" and {len(names) - NAMED_LIMIT} more" if len(names) > NAMED_LIMIT else ""
    cluster, tier = fleet.desired.cluster, Tier[record.tier.upper()]
    members = {
        member.tenant for name in names if name in cluster.peerings for member in cluster.peerings[name].spec.members
    }
    refusing = tenants_refusing(cluster, sorted(members | {name for name in names if name in cluster.tenants}), tier)
    who = f"tenant{'s' if len(refusing) > 1 else ''} {', '.join(refusing[:NAMED_LIMIT])}"
    some = f" and {len(refusing) - NAMED_LIMIT} more" if len(refusing) > NAMED_LIMIT else ""
    verb = "refuse" if len(refusing) > 1 else "refuses"
    return f"no keys of {', '.join(names[:NAMED_LIMIT])}{more}: {who}{some} {verb} the tier"


def _refusal_of_tier(fleet: Fleet, record: DeviceRecord) -> str:
    """Why a tier has no lease: one tenant on the device that refuses it is enough, and is named."""
    tenants, no_lease = fleet.desired.tenants_on(record.name), "policy gives this tier no lease"
    if record.tier != Tier.WARNING.word:
        return no_lease
    refusing = tenants_refusing(fleet.desired.cluster, tenants, Tier.WARNING)
    who = f"tenant{'s' if len(refusing) > 1 else ''} {', '.join(refusing[:NAMED_LIMIT])}"
    more = f" and {len(refusing) - NAMED_LIMIT} more" if len(refusing) > NAMED_LIMIT else ""
    return f"{no_lease}: {who}{more} on this device" if refusing else no_lease


def _work(fleet: Fleet, record: DeviceRecord, connection: Connection | None, *, is_ready: bool) -> Iterator[Condition]:
    yield Condition(
        name="connected",
        met=connection is not None,
        since_unix_ms=connection.since_unix_ms if connection else 0,
        reason="stream to control is open" if connection else "no stream to control",
    )
    wanted, applied = fleet.desired.tables[record.name].revision, connection.applied_revision if connection else b""
    yield Condition(
        name="policy",
        met=applied == wanted,
        since_unix_ms=connection.applied_since_unix_ms if connection else 0,
        reason=f"enforces {applied.hex()[:7] or 'none'}"
        + ("" if applied == wanted else f", should enforce {wanted.hex()[:7]}"),
    )
    behind = _networks_behind(fleet, record.name, connection)
    yield Condition(
        name="keys",
        met=connection is not None and not behind,
        reason=f"not the current epoch of {', '.join(behind)}" if behind else "current epoch of every network",
    )
    waiting = connection.waiting_for if connection else "a connection to control"
    yield Condition(
        name="ready",
        met=is_ready,
        since_unix_ms=connection.ready_since_unix_ms if connection else 0,
        reason="SAs with every live peer" if is_ready else f"waits for {_phrase(waiting)}" if waiting else "no lease",
    )


def _phrase(text: str) -> str:
    """What an agent waits for, without the findings that stand elsewhere."""
    return text if len(text) <= PHRASE_LIMIT else text[: PHRASE_LIMIT - 1] + "…"


def _networks_behind(fleet: Fleet, device: str, connection: Connection | None) -> list[str]:
    used = connection.key_epochs if connection else {}
    names = set(fleet.desired.networks_on(device)) - fleet.withheld_on(device)
    return [
        name
        for name, network in sorted(fleet.desired.networks.items())
        if name in names
        and (epoch := fleet.epochs.get(network.network_id)) is not None
        and used.get(network.network_id.hex()) != epoch.key.epoch
    ]
