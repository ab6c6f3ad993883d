"""AttestationService: carries one `appraisal.session` over a stream, with a deadline."""

# ruff: noqa: N802 - gRPC fixes the names of methods
from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, Final

from ztdpu.control.appraisal.conclusion import Concluder, Result
from ztdpu.control.appraisal.export import restate_result, seal_evidence
from ztdpu.control.appraisal.judgement import BindingGiven, LeaseAsked, is_enrolled
from ztdpu.control.appraisal.outcome import decode_outcome
from ztdpu.control.appraisal.session import AttestationSession, Challenge, SpdmRequest, Step
from ztdpu.control.audit import AuditEvent, AuditOutcome
from ztdpu.control.devices.record import StoredEvidence
from ztdpu.control.doors.refusals import Refusals, address_of
from ztdpu.control.fleet import Fleet
from ztdpu.control.meters import Meters
from ztdpu.control.view import view_device
from ztdpu.errors import EvidenceError, StateError, UnreachableError, ZtdpuError
from ztdpu.model.administration import AttestationReport
from ztdpu.rpc.convert.attestation import finding_to_message, report_to_message
from ztdpu.v1 import attestation_pb2, attestation_pb2_grpc

STREAM_LIMIT_S: Final = 30.0
DEADLINE: Final = "deadline"
"""Code word of an attestation that took too long, as gRPC's."""
DEFECT: Final = "internal"
"""Code word where control itself failed, as gRPC's: granted nothing, and no less a refusal."""
MESSAGE_LIMIT: Final = 64
SESSIONS_LIMIT: Final = 512
SESSIONS_PER_ADDRESS_LIMIT: Final = 32
"""Anybody may open attestations and let them wait; one machine must not use up what all share."""


class AttestationServicer(attestation_pb2_grpc.AttestationServiceServicer):
    """Attestation of devices, and reports about it for admins."""

    def __init__(self, fleet: Fleet, concluder: Concluder, meters: Meters, refusals: Refusals) -> None:
        self._fleet = fleet
        self._concluder = concluder
        self._meters = meters
        self._refusals = refusals
        self._open: Counter[str] = Counter()
        """Attestations under way, by address."""

    async def Attest(
        self, request_iterator: AsyncIterator[attestation_pb2.AttestRequest], context: Any
    ) -> AsyncIterator[attestation_pb2.AttestResponse]:
        """See attestation.proto. A refusal is audited, then the stream ends with its code word."""
        peer = str(context.peer())
        address = address_of(peer)
        if self._open[address] >= SESSIONS_PER_ADDRESS_LIMIT or self._open.total() >= SESSIONS_LIMIT:
            crowded = UnreachableError("too many attestations at once")
            self._refuse("", peer, code=crowded.code, message=crowded.message)
            raise crowded
        session = AttestationSession(self._fleet, self._concluder)
        self._open[address] += 1
        started = time.monotonic()
        try:
            async with asyncio.timeout(STREAM_LIMIT_S):
                for _ in range(MESSAGE_LIMIT):
                    message = await anext(request_iterator, None)
                    self._slow_guesses_down(message, peer)
                    step = _take(session, message)
                    if isinstance(step, SpdmRequest) and step.wait_s:
                        await asyncio.sleep(step.wait_s)
                    if isinstance(step, Result) and step.refusal is not None:
                        self._refusals.audit(step.refusal, peer)
                    yield step_to_message(step)
                    if isinstance(step, Result):
                        self._meters.attestations.labels(result=str(step.state)).inc()
                        self._meters.attestation_seconds.observe(time.monotonic() - started)
                        return
                raise EvidenceError("too many messages in one attestation")  # noqa: TRY301 - audited below with the rest
        except ZtdpuError as error:
            self._refuse(session.device, peer, code=error.code, message=error.message)
            raise
        except TimeoutError:
            self._refuse(session.device, peer, code=DEADLINE, message=f"not finished within {STREAM_LIMIT_S:g} s")
            raise
        except Exception:
            self._refuse(session.device, peer, code=DEFECT, message="a defect of control; its log has it")
            raise
        finally:
            self._open[address] -= 1
            self._open += Counter()  # forgets addresses with none

    def _slow_guesses_down(self, message: attestation_pb2.AttestRequest | None, peer: str) -> None:
        """UnreachableError for a join token from an address that was refused too often; before it is looked at."""
        if message is None or not message.begin.join_token or self._refusals.may_guess(peer):
            return
        desired, device = self._fleet.desired, message.begin.device
        if device not in desired.cluster.devices or not is_enrolled(desired, self._fleet.record(device)):
            raise UnreachableError("too many refusals from this address", remedy="wait a moment")

    def _refuse(self, device: str, peer: str, *, code: str, message: str) -> None:
        self._meters.attestations.labels(result=code).inc()
        self._refusals.audit(
            AuditEvent(
                actor="unidentified",
                role="anyone",
                action="attest",
                subject=device,
                outcome=AuditOutcome.REFUSED,
                reason=code,
                detail={"message": message[:300], "peer": peer[:100]},
            ),
            peer,
        )

    async def GetAttestation(
        self, request: attestation_pb2.GetAttestationRequest, _context: Any
    ) -> attestation_pb2.Attestation:
        """What the last appraisal of a device found."""
        status, stored = view_device(self._fleet, request.device), self._stored(request.device)
        outcome = decode_outcome(stored.findings)
        report = AttestationReport(
            device=request.device,
            state=str(status.state),
            tier=status.tier,
            ear=outcome.ear,
            findings=outcome.findings,
            checks=outcome.checks,
            policy=outcome.policy,
            references=outcome.references,
            appraised_unix_ms=stored.appraised_unix_ms,
            profile=stored.profile,
            device_id_sha256=status.device_id_sha256,
            evidence=stored.evidence,
            ear_cwt=restate_result(self._concluder.issuer, outcome.ear),
        )
        return report_to_message(report)

    async def ExportAttestation(
        self, request: attestation_pb2.ExportAttestationRequest, _context: Any
    ) -> attestation_pb2.AttestationFile:
        """The last appraisal as one signed file."""
        self._fleet.record(request.device)
        content = seal_evidence(self._fleet, self._concluder.issuer, self._stored(request.device))
        return attestation_pb2.AttestationFile(device=request.device, content=content)

    def _stored(self, device: str) -> StoredEvidence:
        with self._fleet.transaction() as transaction:
            stored = transaction.get_evidence(device)
        if stored is None:
            raise StateError(f"{device} was never appraised", remedy="is its agent running?")
        return stored


def _take(session: AttestationSession, message: attestation_pb2.AttestRequest | None) -> Step:
    """Hand one message to the session."""
    if message is None:
        raise EvidenceError("the agent ended the attestation early")
    match message.WhichOneof("step"):
        case "begin":
            lease = message.begin.lease
            asked = LeaseAsked(
                binding_sha256=lease.binding_sha256,
                applied_generation=lease.applied_generation,
                kem_public_key=lease.kem_public_key,
                offer_signature=lease.offer_signature,
            )
            return session.begin(device=message.begin.device, join_token=message.begin.join_token, asked=asked)
        case "spdm":
            return session.receive_spdm(message.spdm)
        case "binding":
            given = message.binding
            return session.receive_binding(
                BindingGiven(
                    key_binding=given.key_binding,
                    csr=given.csr,
                    tls_possession=given.tls_possession,
                    offer_possession=given.offer_possession,
                )
            )
        case _:
            raise EvidenceError("empty message in an attestation")


def step_to_message(step: Step) -> attestation_pb2.AttestResponse:
    """Message for what the session says."""
    if isinstance(step, SpdmRequest):
        return attestation_pb2.AttestResponse(spdm=step.request)
    if isinstance(step, Challenge):
        return attestation_pb2.AttestResponse(bind=attestation_pb2.BindingChallenge(nonce=step.nonce))
    lease = step.lease
    granted = (
        attestation_pb2.LeaseGrant(
            duration_ms=lease.duration_ms,
            generation=lease.generation,
            sealed_epoch_keys=lease.sealed_epoch_keys,
            withheld_networks=lease.withheld_networks,
        )
        if lease
        else None
    )
    result = attestation_pb2.AttestResult(
        state=str(step.state),
        reason=step.reason,
        ear=step.ear,
        findings=[finding_to_message(finding) for finding in step.findings],
        svid=step.svid,
        lease=granted,
        interval_ms=step.interval_ms,
        ear_public_key=step.ear_public_key,
    )
    return attestation_pb2.AttestResponse(result=result)
