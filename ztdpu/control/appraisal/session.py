"""One attestation, from the first message to the result: the order of steps, without any I/O of its own.

    begin          -> SpdmRequest                       name, token and sizes are right
    receive_spdm   -> SpdmRequest ... | Challenge | Result   evidence is in: appraised
    receive_binding-> Result                            binding accepted, lease granted

Called by the AttestationService servicer with one message at a time. Anything out of turn, or that does not verify,
raises; the stream ends and nothing was changed. The nonces live in this object only. What is decided is decided on the
record as it was when the SPDM nonce was made (`leases.require_unchanged`).
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from ztdpu.control.appraisal import judgement
from ztdpu.control.appraisal.conclusion import Case, Concluder, Result
from ztdpu.control.appraisal.judgement import BindingGiven, LeaseAsked
from ztdpu.control.clock import as_datetime
from ztdpu.control.devices import leases
from ztdpu.control.devices.record import DeviceRecord, StoredBinding
from ztdpu.control.fleet import Fleet
from ztdpu.errors import EvidenceError, PermissionDeniedError
from ztdpu.keys.kem import KEM_PUBLIC_OCTETS
from ztdpu.model.device import DeviceState
from ztdpu.trust.appraise import Appraisal
from ztdpu.trust.profile import load_profile
from ztdpu.trust.spdm.evidence import Evidence
from ztdpu.trust.spdm.requester import MeasurementSession
from ztdpu.trust.spdm.suite import suite_of

TOKEN_LIMIT: Final = 128
SIGNATURE_LIMIT_OCTETS: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class SpdmRequest:
    """To the device, verbatim."""

    request: bytes
    wait_s: float = 0.0
    """How long to wait before sending it: the device said that it is busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """A new binding is due: answer with this nonce."""

    nonce: bytes


Step = SpdmRequest | Challenge | Result


class _Phase(Enum):
    NEW = auto()
    MEASURING = auto()
    BINDING = auto()
    DONE = auto()


class AttestationSession:
    """See the module. One per stream."""

    def __init__(self, fleet: Fleet, concluder: Concluder) -> None:
        self._fleet = fleet
        self._concluder = concluder
        self._phase = _Phase.NEW
        self.device = ""
        self._read: DeviceRecord
        self._asked: LeaseAsked
        self._token_sha256 = b""
        self._measurement: MeasurementSession
        self._spdm_nonce = b""
        self._binding_nonce = b""
        self._evidence: Evidence
        self._appraisal: Appraisal

    def begin(self, *, device: str, join_token: str, asked: LeaseAsked) -> Step:
        """First message.

        Raises:
            PermissionDeniedError: no such device, or it needs a token and this is none of its own.
            EvidenceError: a field of the wrong size.

        """
        self._enter(_Phase.NEW, _Phase.MEASURING)
        if device not in self._fleet.desired.cluster.devices:
            raise PermissionDeniedError(f"no such device in the policy in force: {device[:64]!r}")
        self.device = device
        _check_sizes(join_token, asked)
        self._asked, self._read = asked, self._fleet.record(device)
        if not judgement.is_enrolled(self._fleet.desired, self._read):
            self._token_sha256 = self._check_token(join_token)
        self._spdm_nonce = secrets.token_bytes(32)
        profile = load_profile(self._fleet.desired.cluster.devices[device].spec.profile)
        # A challenge signs what SPDM 1.1 does not sign with its measurements: the negotiation.
        challenged = not suite_of(profile).signs_negotiation
        self._measurement = MeasurementSession(
            profile=profile,
            nonce=self._spdm_nonce,
            challenge_nonce=secrets.token_bytes(32) if challenged else None,
            now_s=self._fleet.now().boottime_ns / 1e9,
        )
        return self._next_request()

    def receive_spdm(self, response: bytes) -> Step:
        """An SPDM answer.

        Raises:
            EvidenceError: it does not verify. The session is over.

        """
        self._enter(_Phase.MEASURING, _Phase.MEASURING)
        self._measurement.receive(response, now_s=self._fleet.now().boottime_ns / 1e9)
        if not self._measurement.done:
            return self._next_request()
        return self._judge(self._measurement.evidence())

    def receive_binding(self, given: BindingGiven) -> Step:
        """The binding that was asked for.

        Raises:
            BindingError: it is not accepted.
            ConflictError: an operator was faster.

        """
        self._enter(_Phase.BINDING, _Phase.DONE)
        fleet, record = self._fleet, self._read
        opened = judgement.open_binding(given, self._appraisal)
        keys = judgement.bound_keys(opened, self._appraisal)
        with fleet.transaction() as transaction:
            newest, owners = transaction.get_newest_binding(record.name), transaction.find_key_owners(keys)
        denied = [owner for owner in owners if owner.denied and owner.device == record.name]
        if any(owner.alias_spki_sha256 == self._appraisal.alias_spki_sha256 for owner in denied):
            return self._wait_for("an Alias never seen before: restart its root of trust")
        if denied:
            return self._wait_for("keys never seen before: restart its agent")
        binding = judgement.judge_binding(
            given,
            opened,
            asked=self._asked,
            appraisal=self._appraisal,
            trust_domain=self._concluder.trust_domain,
            nonce=self._binding_nonce,
            record=record,
            pinned=judgement.pinned_device_id(fleet.desired, record),
            newest=newest,
            owners=owners,
            evidence=self._evidence,
            now=fleet.now(),
        )
        return self._conclude(binding)

    # --- steps ---

    def _enter(self, expected: _Phase, following: _Phase) -> None:
        if self._phase is not expected:
            self._phase = _Phase.DONE
            raise EvidenceError("message out of turn")
        self._phase = following

    def _next_request(self) -> SpdmRequest:
        request = self._measurement.next_request()
        if request is None:
            raise EvidenceError("measurement session has nothing to ask")
        return SpdmRequest(request=request, wait_s=self._measurement.wait_s)

    def _check_token(self, token: str) -> bytes:
        """Look only; it is spent in the transaction that enrols the device."""
        digest = hashlib.sha256(token.encode()).digest()
        with self._fleet.transaction() as transaction:
            known = transaction.get_token(digest) if token else None
        now = self._fleet.now()
        if (
            known is None
            or known.device != self.device
            or known.used_unix_ms is not None
            or known.expires_unix_ms <= now.unix_ms
        ):
            raise PermissionDeniedError(
                "a join token of this device is needed, unspent and unexpired",
                remedy=f"`ztdpu device token {self.device}`",
            )
        return digest

    def _judge(self, evidence: Evidence) -> Step:
        fleet, record, desired = self._fleet, self._read, self._fleet.desired
        if record.name not in desired.cluster.devices:
            raise PermissionDeniedError("no such device in the policy in force")
        self._desired = desired
        with fleet.transaction() as transaction:
            highest = transaction.get_highest_versions(record.name)
        appraisal = judgement.judge_evidence(
            evidence,
            desired=desired,
            record=record,
            nonce=self._spdm_nonce,
            highest_versions=highest,
            now=as_datetime(fleet.now()),
        )
        self._evidence, self._appraisal = evidence, appraisal
        if record.state is DeviceState.REVOKED:
            self._phase = _Phase.DONE
            return self._concluder.refuse(record, appraisal, "revoked by an operator")
        if appraisal.boot_counter < record.boot_floor:
            return self._wait_for("a newer boot: restart its root of trust")
        tiers = desired.appraisal[record.name].lease_tiers
        state = leases.appraised_state(record, appraisal.tier, tiers_allowed=tiers)
        # In quarantine too, an identity needs evidence of a tier that policy accepts, lease or not. One that the device
        # has goes on in warning; a lease that it still holds ends first, and no challenge delays that.
        may_keep = state is DeviceState.WARNING and record.device_id_sha256 and not fleet.is_leased(record.name)
        is_accepted = appraisal.tier in tiers or may_keep
        if state not in leases.LEASED_STATES | {DeviceState.QUARANTINED} or not is_accepted:
            self._phase = _Phase.DONE
            return self._concluder.lower(
                read=record, desired=desired, appraisal=appraisal, evidence=evidence, state=state
            )
        due = judgement.is_binding_due(
            fleet.binding(record.name), appraisal=appraisal, asked=self._asked, device=record.name, now=fleet.now()
        )
        if due:
            self._phase, self._binding_nonce = _Phase.BINDING, secrets.token_bytes(32)
            return Challenge(nonce=self._binding_nonce)
        self._phase = _Phase.DONE
        return self._conclude(None)

    def _conclude(self, new_binding: StoredBinding | None) -> Result:
        case = Case(
            read=self._read,
            desired=self._desired,
            appraisal=self._appraisal,
            evidence=self._evidence,
            asked=self._asked,
            token_sha256=self._token_sha256,
            new_binding=new_binding,
        )
        return self._concluder.conclude(case)

    def _wait_for(self, what: str) -> Result:
        """A restored device that is still the one that was revoked."""
        self._phase = _Phase.DONE
        return self._concluder.refuse(self._read, self._appraisal, f"restored, and waits for {what}")


def _check_sizes(join_token: str, asked: LeaseAsked) -> None:
    if len(asked.kem_public_key) != KEM_PUBLIC_OCTETS:
        raise EvidenceError(f"a KEM public key has {KEM_PUBLIC_OCTETS} octets")
    if len(asked.binding_sha256) not in (0, 32) or len(asked.offer_signature) > SIGNATURE_LIMIT_OCTETS:
        raise EvidenceError("a field of the lease request has the wrong size")
    if len(join_token) > TOKEN_LIMIT:
        raise EvidenceError("the join token is too long")
