"""A device looked at without any policy: what it proves about itself, for `ztdpu attestation probe`.

The same checks as an appraisal, chain to blocks, with no reference values: nothing says which firmware is right, and
only what a device admits of itself (debug, recovery) is a finding. Gives no result that anybody else should believe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cryptography import x509

from ztdpu.errors import Location
from ztdpu.model.attestation import Finding
from ztdpu.trust.appraise import Appraisal, appraise
from ztdpu.trust.chain import DeviceChain, verify_device_chain
from ztdpu.trust.profile import Profile
from ztdpu.trust.reference import AppraisalPolicy, ReferenceValues
from ztdpu.trust.spdm.evidence import Evidence

_NOWHERE: Final = Location(file="no policy", line=0)
_NEEDS_REFERENCES: Final = "no_reference_values"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What was found."""

    chain: DeviceChain
    appraisal: Appraisal
    findings: tuple[Finding, ...]
    """What the device admits; that there are no reference values is left out."""


def inspect_device(
    evidence: Evidence, *, profile: Profile, roots: Sequence[x509.Certificate], nonce: bytes, now: datetime
) -> Inspection:
    """Verify evidence of a session that answered `nonce`.

    Raises:
        CertificateError: the chain.
        EvidenceError: profile, nonce, signature, a block, or a FWID that contradicts measurements.

    """
    appraisal = appraise(
        evidence,
        ReferenceValues(name="none", profile=profile.name, source=_NOWHERE),
        AppraisalPolicy(name="none", source=_NOWHERE),
        now,
        manufacturer_roots=roots,
        pinned_device_id_sha256=None,
        nonce=nonce,
    )
    return Inspection(
        chain=verify_device_chain(evidence.certificates, roots, now, profile),
        appraisal=appraisal,
        findings=tuple(one for one in appraisal.findings if one.code != _NEEDS_REFERENCES),
    )
