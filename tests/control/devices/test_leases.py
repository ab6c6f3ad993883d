"""Device states as a script: what each change allows, counts and keeps."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

from ztdpu.control.devices import leases
from ztdpu.control.devices.leases import Instant
from ztdpu.control.devices.record import DeviceRecord
from ztdpu.errors import ConflictError, LeaseError, StateError
from ztdpu.model.attestation import Tier
from ztdpu.model.device import DeviceState

SECOND_NS = 1_000_000_000
START = Instant(unix_ms=1_000_000, boottime_ns=50 * SECOND_NS, boot_id="boot")
PENDING = DeviceRecord(name="dpu-0", state=DeviceState.PENDING, since_unix_ms=0, reason="never attested")


def later(seconds: float, *, boot_id: str = "boot") -> Instant:
    return Instant(
        unix_ms=START.unix_ms + int(seconds * 1000),
        boottime_ns=START.boottime_ns + int(seconds * SECOND_NS),
        boot_id=boot_id,
    )


@pytest.fixture
def affirming() -> DeviceRecord:
    return leases.grant(PENDING, DeviceState.AFFIRMING, "as expected", START, duration_ms=60_000)


def test_grant_and_renewal(affirming: DeviceRecord) -> None:
    assert affirming.version == PENDING.version + 1
    assert leases.lease_ms(affirming, START) == 60_000
    renewed = leases.grant(affirming, DeviceState.AFFIRMING, "as expected", later(10), duration_ms=60_000)
    assert renewed.version == affirming.version
    assert renewed.since_unix_ms == affirming.since_unix_ms
    assert leases.lease_ms(renewed, later(10)) == 60_000


@pytest.mark.parametrize(("after_s", "leased"), [(59.999, True), (60, False), (61, False)])
def test_deadline(after_s: float, leased: bool, affirming: DeviceRecord) -> None:
    assert leases.is_leased(affirming, later(after_s)) is leased
    expired = leases.expire(affirming, later(after_s))
    assert (expired.state is DeviceState.STALE) is not leased
    assert (expired is affirming) is leased


@pytest.mark.parametrize(("shown_boot", "kept"), [(9, 9), (0, 4), (4, 4), (3, 4)])
def test_lowered_by_what_was_shown(shown_boot: int, kept: int, affirming: DeviceRecord) -> None:
    """Only a boot of the pinned device counts (another is 0), and none goes back; shown again it changes nothing."""
    record = replace(affirming, boot_counter=4)
    lowered = leases.lower(record, DeviceState.CONTRAINDICATED, "odd", later(1), shown_boot=shown_boot)
    assert (lowered.state, lowered.reason, lowered.boot_counter) == (DeviceState.CONTRAINDICATED, "odd", kept)
    assert lowered.version == record.version + 1
    assert leases.lease_ms(lowered, later(1)) == 0
    again = leases.lower(lowered, DeviceState.CONTRAINDICATED, "odd", later(2), shown_boot=shown_boot)
    assert (again.version, again.boot_counter) == (lowered.version, kept)


def test_a_newer_boot_of_a_quarantined_device_is_a_change(affirming: DeviceRecord) -> None:
    """Or an attestation that began before it could be concluded after it."""
    quarantined = leases.quarantine(replace(affirming, boot_counter=4), "an operator's word", START)
    lowered = leases.lower(quarantined, DeviceState.QUARANTINED, "odd", later(1), shown_boot=5)
    assert (lowered.reason, lowered.version) == ("an operator's word", quarantined.version + 1)
    with pytest.raises(ConflictError):
        leases.require_unchanged(quarantined, lowered)


def test_deadline_of_another_boot_is_void(affirming: DeviceRecord) -> None:
    assert leases.is_leased(affirming, later(1))
    assert not leases.is_leased(affirming, later(1, boot_id="other"))
    assert leases.expire(affirming, later(1, boot_id="other")).state is DeviceState.STALE


def test_revoke_then_restore(affirming: DeviceRecord) -> None:
    known = replace(affirming, boot_counter=7, binding_sha256=b"b" * 32)
    revoked = leases.revoke(known, "lost", later(1))
    assert not leases.is_leased(revoked, later(1))
    assert revoked.boot_floor == 8
    assert revoked.binding_sha256 == b""
    with pytest.raises(StateError):
        leases.revoke(revoked, "again", later(2))
    with pytest.raises(StateError):
        leases.quarantine(revoked, "again", later(2))
    pending = leases.restore(revoked, "found", later(3), allow_rollback=False)
    assert pending.state is DeviceState.PENDING
    assert pending.boot_floor == 8
    assert pending.version == revoked.version + 1


@pytest.mark.parametrize("state", [DeviceState.PENDING, DeviceState.AFFIRMING, DeviceState.STALE])
def test_nothing_to_restore(state: DeviceState) -> None:
    with pytest.raises(StateError):
        leases.restore(replace(PENDING, state=state), "why", START, allow_rollback=False)


def test_an_operator_in_between_wins(affirming: DeviceRecord) -> None:
    leases.require_unchanged(affirming, affirming)
    leases.require_unchanged(affirming, leases.expire(affirming, later(61)))
    with pytest.raises(ConflictError):
        leases.require_unchanged(affirming, leases.revoke(affirming, "x", later(1)))
    quarantined = leases.quarantine(affirming, "x", later(1))
    pending = leases.restore(quarantined, "x", later(2), allow_rollback=False)
    with pytest.raises(ConflictError):
        leases.require_unchanged(affirming, pending)


@pytest.mark.parametrize(
    ("applied", "age_ms", "starting", "granted"),
    [(9, 1_999, False, True), (9, 2_001, False, False), (10, 9_999, False, True), (0, 9_999, True, True)],
)
def test_revocations_applied(applied: int, age_ms: int, starting: bool, granted: bool) -> None:
    revocations = {10: START.boottime_ns - age_ms * 1_000_000}
    # Control's wall clock may step back by an hour meanwhile: it decides nothing here.
    now = dataclasses.replace(START, unix_ms=START.unix_ms - 3_600_000)

    def ask() -> None:
        leases.require_revocations_applied(
            is_starting=starting, applied_generation=applied, revocations=revocations, now=now
        )

    if granted:
        ask()
    else:
        with pytest.raises(LeaseError):
            ask()


@pytest.mark.parametrize(
    ("before", "tier", "allowed", "after"),
    [
        (DeviceState.PENDING, Tier.AFFIRMING, {Tier.AFFIRMING}, DeviceState.AFFIRMING),
        (DeviceState.STALE, Tier.WARNING, {Tier.AFFIRMING, Tier.WARNING}, DeviceState.WARNING),
        (DeviceState.AFFIRMING, Tier.WARNING, {Tier.AFFIRMING}, DeviceState.WARNING),
        (DeviceState.AFFIRMING, Tier.CONTRAINDICATED, {Tier.AFFIRMING}, DeviceState.CONTRAINDICATED),
        (DeviceState.AFFIRMING, Tier.NONE, {Tier.AFFIRMING}, DeviceState.CONTRAINDICATED),
        (DeviceState.REVOKED, Tier.AFFIRMING, {Tier.AFFIRMING}, DeviceState.REVOKED),
        (DeviceState.QUARANTINED, Tier.AFFIRMING, {Tier.AFFIRMING}, DeviceState.QUARANTINED),
    ],
)
def test_appraised_state(before: DeviceState, tier: Tier, allowed: set[Tier], after: DeviceState) -> None:
    record = replace(PENDING, state=before)
    assert leases.appraised_state(record, tier, tiers_allowed=frozenset(allowed)) is after
