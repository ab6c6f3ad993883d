"""What follows from an appraisal: lease, identity and epoch keys, or a lowered state; in one transaction.

    read the device again -> unchanged? -> token spent -> binding stored -> revocations applied? -> lease -> audit
    -> commit -> peers told -> epoch keys sealed into the result

Called by `session` after judging. Renewals of a lease in an unchanged state are not audited; every change is.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from cryptography import x509

from ztdpu.control.appraisal.judgement import LeaseAsked, public_key, raise_versions
from ztdpu.control.appraisal.outcome import describe, stored_evidence
from ztdpu.control.audit import AuditEvent, AuditOutcome
from ztdpu.control.authority.issue import Issuer
from ztdpu.control.clock import as_datetime
from ztdpu.control.configuration import Attestation
from ztdpu.control.devices import leases
from ztdpu.control.devices.issued import describe_svid, note_issued, read_issued
from ztdpu.control.devices.leases import Instant
from ztdpu.control.devices.record import DeviceRecord, StoredBinding
from ztdpu.control.fleet import EAR_TTL_S, Fleet
from ztdpu.control.source import Desired
from ztdpu.control.store.store import Transaction
from ztdpu.errors import ConflictError, EvidenceError, PermissionDeniedError
from ztdpu.model.attestation import Finding
from ztdpu.model.device import DeviceState
from ztdpu.trust.appraise import Appraisal
from ztdpu.trust.ear import issue_ear
from ztdpu.trust.spdm.evidence import Evidence

_NO_BINDING: Final = b"\0" * 32
"""Stands in the result of a device that bound no key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """A lease, as the agent gets it."""

    duration_ms: int
    generation: int
    sealed_epoch_keys: bytes
    withheld_networks: tuple[bytes, ...] = ()
    """Ids of the device's networks that are not for it in this tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The last message of an attestation."""

    state: DeviceState
    reason: str
    ear: str = ""
    findings: tuple[Finding, ...] = ()
    svid: tuple[bytes, ...] = ()
    lease: Granted | None = None
    interval_ms: int = 0
    ear_public_key: bytes = b""
    refusal: AuditEvent | None = None
    """To be audited before the device is answered, at the bounded rate of `refusals`: nothing was changed with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A device whose evidence was judged good enough to go on."""

    read: DeviceRecord
    """As it was when the SPDM nonce was made."""
    desired: Desired
    """The policy that it was judged by."""
    appraisal: Appraisal
    evidence: Evidence
    asked: LeaseAsked
    token_sha256: bytes
    """To be spent; empty for a device that is enrolled."""
    new_binding: StoredBinding | None
    """None: the live one stays."""


class Concluder:
    """One per control process."""

    def __init__(self, fleet: Fleet, issuer: Issuer, timing: Attestation) -> None:
        self._fleet = fleet
        self._issuer = issuer
        self._timing = timing

    @property
    def issuer(self) -> Issuer:
        """Whose key signs results."""
        return self._issuer

    @property
    def trust_domain(self) -> str:
        """Of this control."""
        return self._issuer.trust_domain

    # --- nothing granted ---

    def refuse(self, record: DeviceRecord, appraisal: Appraisal, reason: str) -> Result:
        """The state stands."""
        event = self._event(record.name, AuditOutcome.REFUSED, reason)
        return self._result(record.state, reason, findings=appraisal.findings, refusal=event)

    def lower(
        self, *, read: DeviceRecord, desired: Desired, appraisal: Appraisal, evidence: Evidence, state: DeviceState
    ) -> Result:
        """Evidence verifies and says no: the lease ends at once, peers delete the device's SAs.

        Raises:
            ConflictError: device or policy were changed meanwhile.

        """
        fleet, device, now = self._fleet, read.name, self._fleet.now()
        _require_same_policy(desired, fleet.desired)
        reason = describe(appraisal.findings) or f"tier {appraisal.tier.word} gets no lease here"
        was_leased = leases.is_leased(fleet.record(device), now)
        live = fleet.binding(device)
        # Of another boot it is bound by another Alias: this result does not speak for it.
        is_its_own = live is not None and live.alias_spki_sha256 == appraisal.alias_spki_sha256
        binding_sha256 = live.binding_sha256 if live is not None and is_its_own else b""
        ear = self._ear(appraisal, device, binding_sha256 or _NO_BINDING)
        with fleet.transaction() as transaction:
            current = transaction.get_device(device) or read
            leases.require_unchanged(read, current)
            shown = appraisal.boot_counter if appraisal.pinned_device_id_sha256 else 0
            lowered = leases.lower(current, state, reason, now, shown_boot=shown)
            is_change = was_leased or lowered.version != current.version
            fleet.put(
                transaction,
                dataclasses.replace(
                    lowered,
                    tier=appraisal.tier.word,
                    profile=appraisal.profile,
                    ear=ear,
                    appraised_unix_ms=now.unix_ms,
                ),
            )
            transaction.put_evidence(
                stored_evidence(device, appraisal, evidence, now.unix_ms, ear=ear, binding_sha256=binding_sha256)
            )
            if was_leased:
                networks = [n for t, n in fleet.desired.networks.items() if t in fleet.desired.networks_on(device)]
                fleet.begin_epochs(transaction, networks, f"{state}: {device}")
            # A device that is shown the same again and again changes nothing but its own last evidence.
            generation = fleet.bump(transaction) if was_leased or state is not current.state else fleet.generation
            if was_leased:
                fleet.shut_out(transaction, device, generation)
            event = self._event(device, AuditOutcome.REFUSED, reason, state=str(state))
            if is_change:
                fleet.write_leaf(transaction, event)
        if was_leased:
            fleet.revocations[generation] = now.boottime_ns
            fleet.set_kem_key(device, None)
            fleet.push_revocation(device, generation=generation, cause=str(state))
            fleet.hub.forget_wait(generation)
        fleet.push_peers_around(device)
        return self._result(state, reason, ear=ear, findings=appraisal.findings, refusal=None if is_change else event)

    # --- granted ---

    def conclude(self, case: Case) -> Result:
        """Grant what the state allows.

        Raises:
            ConflictError: device or policy were changed meanwhile, its DeviceID is another's, or the token is spent.
            LeaseError: the agent has not applied every revocation.

        """
        fleet, device, now = self._fleet, case.read.name, self._fleet.now()
        _require_same_policy(case.desired, fleet.desired)
        before = fleet.binding(device)
        binding = case.new_binding or before
        if binding is None:
            raise EvidenceError("there is no binding to grant anything to")
        tiers = fleet.desired.appraisal[device].lease_tiers
        state = leases.appraised_state(case.read, case.appraisal.tier, tiers_allowed=tiers)
        is_leased = state in leases.LEASED_STATES and case.appraisal.tier in tiers
        if not is_leased and fleet.is_leased(device):
            raise ConflictError("the device got a lease while it was being appraised", remedy="attest again")
        ear = self._ear(case.appraisal, device, binding.binding_sha256)
        tier = case.appraisal.tier.word
        sealed = fleet.seal_epoch_keys(device, case.asked.kem_public_key, tier=tier) if is_leased else b""
        withheld = fleet.desired.withheld_on(device, tier)
        # What it could use in the tier before: also after its lease ended, since it knew the keys.
        lost = withheld - fleet.withheld_on(device) if is_leased else frozenset[str]()
        with fleet.transaction() as transaction:
            current = transaction.get_device(device) or case.read
            leases.require_unchanged(case.read, current)
            record = _with_appraisal(current, case.appraisal, ear, now.unix_ms)
            if case.token_sha256:
                transaction.use_token(case.token_sha256, device=device, now_unix_ms=now.unix_ms)
            if case.new_binding is not None:
                transaction.put_binding(case.new_binding)
                record = _with_binding(record, case.new_binding, before)
            svid, record = self._svid(transaction, record, binding, now.unix_ms, is_new=case.new_binding is not None)
            if is_leased:
                record = self._lease(record, state, case, now)
                fleet.begin_withholding(transaction, lost, f"{state}: {device}")
            elif state is DeviceState.WARNING:
                reason = describe(case.appraisal.findings)
                record = leases.lower(record, state, reason, now, shown_boot=record.boot_counter)
            fleet.put(transaction, record)
            self._keep(transaction, case, current, record, now.unix_ms)
        self._follow(device, before, case.new_binding, case.asked if is_leased else None, lost)
        lease = Granted(
            duration_ms=self.lease_ms(device),
            generation=fleet.generation,
            sealed_epoch_keys=sealed,
            withheld_networks=fleet.desired.network_ids(withheld),
        )
        return self._result(
            record.state,
            record.reason,
            ear=ear,
            findings=case.appraisal.findings,
            svid=svid,
            lease=lease if is_leased else None,
        )

    def _lease(self, record: DeviceRecord, state: DeviceState, case: Case, now: Instant) -> DeviceRecord:
        leases.require_revocations_applied(
            is_starting=not case.asked.binding_sha256,
            applied_generation=case.asked.applied_generation,
            revocations=self._fleet.revocations,
            now=now,
        )
        reason = describe(case.appraisal.findings) or "evidence is as expected"
        return leases.grant(record, state, reason, now, duration_ms=self.lease_ms(record.name))

    def _keep(
        self, transaction: Transaction, case: Case, current: DeviceRecord, record: DeviceRecord, now_unix_ms: int
    ) -> None:
        """Evidence and versions always; a leaf and a new generation when more than the deadline changed."""
        device = record.name
        transaction.put_evidence(
            stored_evidence(
                device,
                case.appraisal,
                case.evidence,
                now_unix_ms,
                ear=record.ear,
                binding_sha256=record.binding_sha256,
            )
        )
        if case.appraisal.tier in case.desired.appraisal[device].lease_tiers:
            highest = transaction.get_highest_versions(device)
            raised = raise_versions(highest, case.appraisal, allow_rollback=current.allow_rollback)
            transaction.put_highest_versions(device, raised)
        if record.version == current.version:
            return
        self._fleet.bump(transaction)
        event = self._event(
            device,
            AuditOutcome.DONE,
            record.reason,
            state=str(record.state),
            tier=case.appraisal.tier.word,
            binding_sha256=record.binding_sha256.hex(),
            new_binding=int(case.new_binding is not None),
            enrolled=int(bool(case.token_sha256)),
        )
        self._fleet.write_leaf(transaction, event)

    def _follow(
        self,
        device: str,
        before: StoredBinding | None,
        new: StoredBinding | None,
        granted: LeaseAsked | None,
        lost: frozenset[str],
    ) -> None:
        """Memory and pushes after the commit."""
        fleet = self._fleet
        if new is not None:
            fleet.set_binding(device, new)
            if before is not None and before.tls_spki_sha256 != new.tls_spki_sha256:
                fleet.hub.close(device, PermissionDeniedError(f"{device} has another key now"))
        if granted is not None:
            fleet.set_kem_key(device, granted.kem_public_key)
        if lost:
            fleet.push_withholding(device, lost, generation=fleet.generation)
        fleet.push_peers_around(device)

    def lease_ms(self, device: str) -> int:
        """Control's default, or less where a tenant on the device bounds it."""
        tenants = self._fleet.desired.cluster.tenants
        bounds = [tenants[tenant].spec.lease_s for tenant in self._fleet.desired.tenants_on(device)]
        return int(min([self._timing.lease_s, *(bound for bound in bounds if bound)]) * 1000)

    def _svid(
        self,
        transaction: Transaction,
        record: DeviceRecord,
        binding: StoredBinding,
        now_unix_ms: int,
        *,
        is_new: bool,
    ) -> tuple[tuple[bytes, ...], DeviceRecord]:
        """An SVID for a new binding, when the old one is past half its life, and when another authority signs now."""
        ttl_s, authority = self._timing.svid_s, self._issuer.standing.active.name
        newest = next(iter(read_issued(transaction, record.name)), None)
        has_time = record.svid_expires_unix_s * 1000 - now_unix_ms > ttl_s * 500
        if not is_new and has_time and newest is not None and newest.authority == authority:
            return (), record
        chain = self._issuer.issue_device_svid(record.name, public_key(binding.tls_spki), ttl_s=ttl_s)
        issued = describe_svid(
            x509.load_der_x509_certificate(chain[0]), authority=authority, spki_sha256=binding.tls_spki_sha256
        )
        note_issued(transaction, record.name, issued)
        return chain, dataclasses.replace(record, svid_expires_unix_s=issued.not_after_unix_s)

    # --- shared ---

    def _ear(self, appraisal: Appraisal, device: str, binding_sha256: bytes) -> str:
        return issue_ear(
            appraisal,
            device=device,
            key=self._issuer.ear_key,
            issuer=f"spiffe://{self.trust_domain}/control",
            now=as_datetime(self._fleet.now()),
            binding_sha256=binding_sha256,
            ttl_s=EAR_TTL_S,
        )

    def _result(
        self,
        state: DeviceState,
        reason: str,
        *,
        ear: str = "",
        findings: tuple[Finding, ...] = (),
        svid: tuple[bytes, ...] = (),
        lease: Granted | None = None,
        refusal: AuditEvent | None = None,
    ) -> Result:
        return Result(
            state=state,
            reason=reason,
            ear=ear,
            findings=findings,
            svid=svid,
            lease=lease,
            interval_ms=int(self._timing.interval_s * 1000),
            ear_public_key=self._issuer.ear_public_key,
            refusal=refusal,
        )

    def _event(self, device: str, outcome: AuditOutcome, reason: str, **detail: str | int) -> AuditEvent:
        return AuditEvent(
            actor=f"spiffe://{self.trust_domain}/dpu/{device}",
            role="agent",
            action="attest",
            subject=device,
            outcome=outcome,
            reason=reason,
            detail=detail,
        )


def _require_same_policy(judged_by: Desired, in_force: Desired) -> None:
    """What was judged by an older policy grants and takes nothing: firmware may have been delisted in between."""
    if judged_by is not in_force:
        raise ConflictError("the policy was changed while the device was being appraised", remedy="attest again")


def _with_appraisal(record: DeviceRecord, appraisal: Appraisal, ear: str, now_unix_ms: int) -> DeviceRecord:
    return dataclasses.replace(
        record,
        tier=appraisal.tier.word,
        profile=appraisal.profile,
        device_id_sha256=appraisal.device_id_sha256,
        boot_counter=appraisal.boot_counter,
        ear=ear,
        appraised_unix_ms=now_unix_ms,
    )


def _with_binding(record: DeviceRecord, new: StoredBinding, before: StoredBinding | None) -> DeviceRecord:
    """Other keys are another start of the agent: its worker is not known before its hello."""
    same_start = before is not None and before.tls_spki_sha256 == new.tls_spki_sha256
    return dataclasses.replace(
        record,
        binding_sha256=new.binding_sha256,
        version=record.version + 1,
        worker_instance=record.worker_instance if same_start else b"",
    )
