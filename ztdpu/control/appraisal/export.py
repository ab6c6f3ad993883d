"""The last appraisal of a device for whoever wants to verify it without asking control: one signed file, a CWT.

Called by the attestation servicer. Reads only.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.serialization import Encoding

from ztdpu.control.appraisal.outcome import decode_outcome
from ztdpu.control.authority.issue import Issuer
from ztdpu.control.devices.record import StoredEvidence
from ztdpu.control.fleet import Fleet
from ztdpu.errors import EarError, StateError
from ztdpu.trust.ear import open_ear
from ztdpu.trust.ear_cwt import sign_payload
from ztdpu.trust.evidence_file import EvidenceFile, encode_file


def seal_evidence(fleet: Fleet, issuer: Issuer, stored: StoredEvidence) -> bytes:
    """Evidence, binding, result and what they were judged by; signed with the key of results.

    Raises:
        StateError: control appraised it before it kept what that needs, or it does not fit.

    """
    outcome = decode_outcome(stored.findings)
    if not outcome.ear:
        raise StateError(f"{stored.device} was not appraised by this version yet", remedy="wait for one interval")
    with fleet.transaction() as transaction:
        binding = transaction.get_binding(outcome.binding_sha256) if outcome.binding_sha256 else None
    file = EvidenceFile(
        trust_domain=issuer.trust_domain,
        device=stored.device,
        appraised_unix_ms=stored.appraised_unix_ms,
        evidence=stored.evidence,
        key_binding=binding.envelope if binding else b"",
        ear=outcome.ear,
        ear_key=issuer.ear_public_key,
        pinned_device_id_sha256=outcome.pinned_device_id_sha256,
        highest_versions=outcome.highest_versions,
        manufacturer_roots=tuple(root.public_bytes(Encoding.DER) for root in fleet.desired.manufacturer_roots),
    )
    try:
        return encode_file(file, issuer.ear_key)
    except ValueError as error:
        raise StateError(f"the evidence of {stored.device} does not fit into a file") from error


def restate_result(issuer: Issuer, ear: str) -> bytes:
    """A result that this control issued as JWT, as CWT; empty for one that another key signed, or an older version."""
    try:
        return sign_payload(open_ear(ear, issuer.ear_key.public_key()), key=issuer.ear_key)
    except (EarError, ValueError):
        return b""
