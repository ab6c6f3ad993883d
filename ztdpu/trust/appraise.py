"""Appraisal of evidence: a pure function of evidence, reference values, policy and time (RFC 9334, the Verifier).

Control calls it for fresh evidence and again, with stored evidence, whenever references or policy change. What does
not verify raises; what verifies and differs from what was expected is a `Finding`, and all of them are returned.

    sizes, parse, sort, pinned root, validity, leaf       `chain.verify_device_chain`
    -> DeviceID pinned for this name -> nonce -> signature over the transcript -> blocks well-formed
    -> FWIDs linked to measurements -> reference values -> policy
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from ztdpu.errors import CertificateError, EvidenceError
from ztdpu.model.attestation import Check, Dimension, Finding, Tier
from ztdpu.trust import claims, judge
from ztdpu.trust.chain import DeviceChain, verify_device_chain
from ztdpu.trust.checks import make_checks
from ztdpu.trust.firmware import compute_fwid
from ztdpu.trust.profile import Profile, load_profile
from ztdpu.trust.reference import AppraisalPolicy, ReferenceValues, Version
from ztdpu.trust.spdm.evidence import Evidence, MeasurementBlock, make_evidence
from ztdpu.trust.spdm.suite import suite_of
from ztdpu.trust.spdm.transcript import verify_measurements

NONCE_OCTETS: Final = 32
EVIDENCE_LIMIT_OCTETS: Final = 64 * 1024
NO_VERSIONS: Final[Mapping[str, Version]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Appraisal:
    """What control found out about one device."""

    profile: str
    policy: str
    """Name of the AppraisalPolicy document."""
    references: str
    """Name of the ReferenceValues document."""
    tier: Tier
    vector: Mapping[Dimension, int]
    """AR4SI claims; a device that is attested at boot reaches executables 3, never 2."""
    findings: tuple[Finding, ...]
    """All differences, in the order of the checks."""
    checks: tuple[Check, ...] = ()
    """Every measurement and firmware identity, good ones too."""
    nonce: bytes
    """Of the evidence."""
    device_id_spki: bytes
    device_id_sha256: bytes
    ueid: bytes
    alias_public_key: ec.EllipticCurvePublicKey
    alias_spki_sha256: bytes
    boot_counter: int
    boot_nonce: bytes
    fwids: Mapping[int, str]
    """Chain level -> firmware identity, hex."""
    versions: Mapping[str, Version]
    """Component -> version or security version number, as measured."""
    highest_versions: Mapping[str, Version] = field(default_factory=dict)
    """What it held the versions against."""
    pinned_device_id_sha256: bytes = b""
    """What it held the DeviceID against; empty while the device enrolled."""


def appraise(
    evidence: Evidence,
    references: ReferenceValues,
    policy: AppraisalPolicy,
    now: datetime,
    *,
    manufacturer_roots: Sequence[x509.Certificate],
    pinned_device_id_sha256: bytes | None,
    nonce: bytes,
    highest_versions: Mapping[str, Version] = NO_VERSIONS,
    collected_at: datetime | None = None,
) -> Appraisal:
    """Appraise evidence.

    Args:
        evidence: as the measurement session left it; its requests are those that control itself sent.
        references: of the device's profile.
        policy: how findings weigh.
        now: for X.509 validity, and for the age of the evidence.
        manufacturer_roots: pinned anchors.
        pinned_device_id_sha256: SHA-256 of the DeviceID's SPKI that this name is bound to; None while it enrols.
        nonce: the 32 octets that control made for this session.
        highest_versions: per component, the highest ever accepted for this device; going below is a finding.
        collected_at: when the evidence was taken; None for evidence that was taken just now.

    Raises:
        CertificateError: the chain, or a DeviceID other than the pinned one.
        EvidenceError: another profile or nonce, a signature, a malformed block, a FWID that contradicts measurements.

    """
    profile = _check_shape(evidence, references, nonce)
    chain = verify_device_chain(evidence.certificates, manufacturer_roots, now, profile)
    _check_device(chain, pinned_device_id_sha256)
    _check_root_hash(evidence, profile)
    if evidence.nonce != nonce:
        raise EvidenceError("evidence answers another nonce: it is old or another session's")
    verify_measurements(evidence, chain.alias_public_key, suite_of(profile))
    _check_blocks(evidence.blocks, profile)
    _check_fwids(chain, evidence.blocks, profile)
    measured = judge.read_measured(evidence.blocks, profile)
    findings = (
        *judge.judge_age(policy, now, collected_at),
        *judge.judge_measurements(evidence.blocks, profile, references, policy),
        *judge.judge_fwids(chain, references, policy),
        *judge.judge_versions(measured.versions, profile, references, highest_versions),
        *judge.judge_mode(measured, chain, policy),
    )
    vector = claims.make_vector(judge.base_vector(references, profile, measured), findings)
    appraisal = _conclude(chain, nonce, policy, references, vector, findings, measured.versions)
    return replace(
        appraisal,
        checks=make_checks(evidence.blocks, chain, profile, references, policy, findings),
        highest_versions=highest_versions,
        pinned_device_id_sha256=pinned_device_id_sha256 or b"",
    )


def _conclude(
    chain: DeviceChain,
    nonce: bytes,
    policy: AppraisalPolicy,
    references: ReferenceValues,
    vector: Mapping[Dimension, int],
    findings: tuple[Finding, ...],
    versions: Mapping[str, Version],
) -> Appraisal:
    return Appraisal(
        profile=chain.profile,
        policy=policy.name,
        references=references.name,
        tier=claims.tier_of_vector(vector),
        vector=vector,
        findings=findings,
        nonce=nonce,
        device_id_spki=chain.device_id_spki,
        device_id_sha256=chain.device_id_sha256,
        ueid=chain.ueid,
        alias_public_key=chain.alias_public_key,
        alias_spki_sha256=chain.alias_spki_sha256,
        boot_counter=chain.boot.counter,
        boot_nonce=chain.boot.nonce,
        fwids={fwid.level: fwid.digest.hex() for fwid in chain.fwids},
        versions=versions,
    )


def _check_shape(evidence: Evidence, references: ReferenceValues, nonce: bytes) -> Profile:
    """Sizes, one profile on both sides, and blocks and nonce that are those of the signed messages."""
    if len(nonce) != NONCE_OCTETS:
        raise ValueError(f"a nonce has {NONCE_OCTETS} octets")
    if evidence.profile != references.profile:
        raise EvidenceError(f"evidence of profile {evidence.profile}, reference values of {references.profile}")
    total = sum(map(len, evidence.messages)) + sum(map(len, evidence.certificates)) + len(evidence.signature)
    if total > EVIDENCE_LIMIT_OCTETS:
        raise EvidenceError(f"evidence is larger than {EVIDENCE_LIMIT_OCTETS} octets")
    again = make_evidence(
        profile=evidence.profile,
        certificates=evidence.certificates,
        root_hash=evidence.root_hash,
        messages=evidence.messages,
        signature=evidence.signature,
    )
    if again != evidence:
        raise EvidenceError("measurements differ from the messages that are signed")
    return load_profile(evidence.profile)


def _check_device(chain: DeviceChain, pinned: bytes | None) -> None:
    if pinned is not None and chain.device_id_sha256 != pinned:
        raise CertificateError(
            "evidence comes from another device than the one pinned under this name",
            remedy="after an exchange of hardware change deviceIdSha256 of the Device document, or restore the device",
        )


def _check_root_hash(evidence: Evidence, profile: Profile) -> None:
    """The header of the device's chain names its root by hash; sent root and header must agree."""
    digests = [hashlib.new(profile.hash, der).digest() for der in evidence.certificates]
    if evidence.root_hash not in digests:
        raise EvidenceError("the hash in the certificate chain's header is not its root's")


def _check_blocks(blocks: Sequence[MeasurementBlock], profile: Profile) -> None:
    """Every block that the profile knows has its type and size; that indices are unique, reading them saw to."""
    for block in blocks:
        spec = profile.measurement(block.index)
        if spec is not None and (block.dmtf_type, len(block.value)) != (spec.value_type, spec.octets):
            raise EvidenceError(f"measurement {block.index} ({spec.component}) has another type or size than expected")


def _check_fwids(chain: DeviceChain, blocks: Sequence[MeasurementBlock], profile: Profile) -> None:
    """The Alias stands for a firmware; the measurements it signs must be of that firmware."""
    for fwid in chain.fwids:
        try:
            measured = compute_fwid(profile, profile.levels[fwid.level], blocks)
        except KeyError as error:
            raise EvidenceError(f"measurement {error.args[0]} is missing: a certificate's FWID covers it") from error
        if measured != fwid.digest:
            raise EvidenceError(f"measurements contradict the firmware identity at level {fwid.level} of the chain")
