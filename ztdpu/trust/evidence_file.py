"""One file that lets anybody appraise a device again, offline: evidence, key binding, result, and what control went by.

Control makes it (`ztdpu attestation export`); `policy.verify_evidence` opens it. Canonical CBOR:

    envelope = ["evidence-file", EAR key (SPKI), body, ECDSA-P256-SHA256(EAR key, signed octets)]
    signed   = "ztdpu/v1/evidence-file" 0x00 SHA-256(EAR key) body
    body     = ["evidence-file", 1, trust domain, device, appraised unix ms, evidence, key binding, EAR,
                pinned DeviceID SHA-256, [[component, highest version], ...], [root DER, ...]]

The signature covers all of it, so one bit changed anywhere is refused. It is made by the key that the file names:
whoever does not know that key, or the manufacturer's roots, from elsewhere learns only that the file is consistent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from ztdpu.errors import CertificateError, EvidenceError
from ztdpu.model.attestation import Tier
from ztdpu.trust import canonical
from ztdpu.trust.appraise import Appraisal, appraise
from ztdpu.trust.binding import KeyBinding, binding_sha256, open_envelope
from ztdpu.trust.certificate import check_anchor, load_certificate
from ztdpu.trust.ear import verify_ear
from ztdpu.trust.ear_claims import EarClaims
from ztdpu.trust.reference import AppraisalPolicy, ReferenceValues, parse_version
from ztdpu.trust.spdm.evidence import decode_evidence

FILE_LABEL: Final = "evidence-file"
FILE_FORMAT: Final = 1
FILE_LIMIT_OCTETS: Final = canonical.LIMIT_OCTETS
_SIGNED_LABEL: Final = b"ztdpu/v1/evidence-file\0"
_NO_BINDING: Final = b"\0" * 32
"""In the result of a device that bound no key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceFile:
    """What stands in the file."""

    trust_domain: str
    device: str
    appraised_unix_ms: int
    """The moment for which certificates and ages were judged."""
    evidence: bytes
    """`Evidence.encode`."""
    key_binding: bytes
    """Envelope; empty for a device that bound no key."""
    ear: str
    ear_key: bytes
    """SubjectPublicKeyInfo, DER, of the key that signed result and file."""
    pinned_device_id_sha256: bytes
    """Empty while the device enrolled."""
    highest_versions: Mapping[str, str]
    """Component -> highest version accepted before, as it stood then."""
    manufacturer_roots: tuple[bytes, ...]
    """DER."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A file that holds together, appraised again."""

    file: EvidenceFile
    appraisal: Appraisal
    """By the policy at hand."""
    result: EarClaims
    """What control said then."""
    binding: KeyBinding | None

    @property
    def agrees(self) -> bool:
        """Whether the policy at hand comes to the verdict that control came to."""
        return (self.appraisal.tier, dict(self.appraisal.vector)) == (self.result.status, dict(self.result.vector))


def encode_file(file: EvidenceFile, key: ec.EllipticCurvePrivateKey) -> bytes:
    """Sign and encode.

    Raises:
        ValueError: larger than 64 KiB, or signed by another key than it names.

    """
    if public_octets(key.public_key()) != file.ear_key:
        raise ValueError("the file names another key than the one that signs it")
    body = canonical.encode(
        [
            FILE_LABEL,
            FILE_FORMAT,
            file.trust_domain,
            file.device,
            file.appraised_unix_ms,
            file.evidence,
            file.key_binding,
            file.ear,
            file.pinned_device_id_sha256,
            [[component, version] for component, version in sorted(file.highest_versions.items())],
            list(file.manufacturer_roots),
        ]
    )
    signature = key.sign(_signed_octets(file.ear_key, body), ec.ECDSA(SHA256()))
    return canonical.encode([FILE_LABEL, file.ear_key, body, signature])


def open_file(octets: bytes, *, ear_key: bytes | None = None) -> EvidenceFile:
    """Verify the signature over the body, then read it.

    Args:
        octets: the file.
        ear_key: SubjectPublicKeyInfo, DER, that the caller knows control by; None: the one in the file.

    Raises:
        EvidenceError: no such file, changed since, or signed by another key.

    """
    match canonical.decode(octets, refusal=EvidenceError, limit_octets=FILE_LIMIT_OCTETS):
        case [label, bytes(named), bytes(body), bytes(signature)] if label == FILE_LABEL:
            pass
        case _:
            raise EvidenceError("not an evidence file of ztdpu", remedy="`ztdpu attestation export` makes one")
    if ear_key is not None and named != ear_key:
        raise EvidenceError("the evidence file is signed by another control than the one you named")
    try:
        load_ear_key(named).verify(signature, _signed_octets(named, body), ec.ECDSA(SHA256()))
    except InvalidSignature as error:
        raise EvidenceError("the evidence file was changed after control signed it") from error
    return _decode_body(body, named)


def verify_file(
    file: EvidenceFile,
    *,
    references: ReferenceValues,
    policy: AppraisalPolicy,
    manufacturer_roots: Sequence[x509.Certificate] = (),
) -> Verified:
    """Appraise an opened file as control did at its moment: evidence, binding, result, and that they are one device's.

    Args:
        file: from `open_file`.
        references: to appraise by.
        policy: to appraise by.
        manufacturer_roots: that the caller trusts; none: those in the file.

    Raises:
        RefusedError: evidence, binding or result do not verify, or contradict each other.

    """
    evidence = decode_evidence(file.evidence)
    now = datetime.fromtimestamp(file.appraised_unix_ms / 1000, tz=UTC)
    appraisal = appraise(
        evidence,
        references,
        policy,
        now,
        manufacturer_roots=manufacturer_roots or load_roots(file),
        pinned_device_id_sha256=file.pinned_device_id_sha256 or None,
        nonce=evidence.nonce,
        highest_versions=_read_versions(file.highest_versions),
    )
    result = verify_ear(
        file.ear,
        key=load_ear_key(file.ear_key),
        now=now,
        device=file.device,
        binding_sha256=binding_sha256(file.key_binding) if file.key_binding else _NO_BINDING,
        allowed_tiers=frozenset(Tier),
    )
    shown = (appraisal.nonce, appraisal.device_id_sha256, appraisal.ueid, appraisal.boot_counter)
    if shown != (result.nonce, result.device_id_sha256, result.ueid, result.boot_counter):
        raise EvidenceError("attestation result and evidence speak of different devices, boots or nonces")
    if result.issuer != f"spiffe://{file.trust_domain}/control":
        raise EvidenceError(f"the result is not by the control of {file.trust_domain}, which the file names")
    return Verified(file=file, appraisal=appraisal, result=result, binding=_open_binding(file, appraisal))


def load_roots(file: EvidenceFile) -> tuple[x509.Certificate, ...]:
    """The manufacturer roots in the file. EvidenceError when one cannot be read."""
    try:
        loaded = [load_certificate(der, refusal=CertificateError) for der in file.manufacturer_roots]
        return tuple(check_anchor(one) for one in loaded)
    except CertificateError as error:
        raise EvidenceError("a manufacturer root in the evidence file cannot be read") from error


def load_ear_key(spki: bytes) -> ec.EllipticCurvePublicKey:
    """The key that a file names. EvidenceError when it is none on P-256."""
    try:
        key = load_der_public_key(spki)
    except Exception as error:  # the library raises several types for hostile DER; all mean no
        raise EvidenceError("the key in the evidence file cannot be read") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise EvidenceError("the key in the evidence file is not on P-256")
    return key


def public_octets(key: ec.EllipticCurvePublicKey) -> bytes:
    """SubjectPublicKeyInfo, DER."""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def fingerprint(octets: bytes) -> str:
    """SHA-256, hexadecimal: how anchors are told to people."""
    return hashlib.sha256(octets).hexdigest()


def _open_binding(file: EvidenceFile, appraisal: Appraisal) -> KeyBinding | None:
    if not file.key_binding:
        return None
    binding = open_envelope(file.key_binding, appraisal.alias_public_key)
    shown = (appraisal.ueid, appraisal.boot_counter, appraisal.boot_nonce, file.trust_domain)
    if (binding.ueid, binding.boot_counter, binding.boot_nonce, binding.trust_domain) != shown:
        raise EvidenceError("key binding and evidence speak of different devices or boots")
    return binding


def _read_versions(versions: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    try:
        return {component: parse_version(version) for component, version in versions.items()}
    except ValueError as error:
        raise EvidenceError("a version in the evidence file cannot be read") from error


def _signed_octets(ear_key: bytes, body: bytes) -> bytes:
    return _SIGNED_LABEL + hashlib.sha256(ear_key).digest() + body


def _decode_body(body: bytes, ear_key: bytes) -> EvidenceFile:
    match canonical.decode(body, refusal=EvidenceError):
        case [
            label,
            int(number),
            str(trust_domain),
            str(device),
            int(appraised_unix_ms),
            bytes(evidence),
            bytes(key_binding),
            str(ear),
            bytes(pinned),
            [*versions],
            [*roots],
        ] if label == FILE_LABEL and _are_fields(number, appraised_unix_ms, versions, roots):
            return EvidenceFile(
                trust_domain=trust_domain,
                device=device,
                appraised_unix_ms=appraised_unix_ms,
                evidence=evidence,
                key_binding=key_binding,
                ear=ear,
                ear_key=ear_key,
                pinned_device_id_sha256=pinned,
                highest_versions=dict(versions),
                manufacturer_roots=tuple(roots),
            )
    raise EvidenceError("the evidence file has other fields than format 1")


def _are_fields(number: int, appraised_unix_ms: int, versions: Sequence[object], roots: Sequence[object]) -> bool:
    pairs = all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(word, str) for word in pair) for pair in versions
    )
    numbers = not isinstance(number, bool) and number == FILE_FORMAT and 0 <= appraised_unix_ms < 1 << 45
    return pairs and numbers and all(isinstance(one, bytes) for one in roots)
