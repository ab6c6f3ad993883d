"""Judging one device: appraisal of its evidence, acceptance of its binding, against what control has stored.

Pure: called by `session` with values read from the store. Nothing here changes anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from ztdpu.control.devices.leases import Instant
from ztdpu.control.devices.record import DeviceRecord, StoredBinding
from ztdpu.control.source import Desired
from ztdpu.errors import CertificateError, EvidenceError
from ztdpu.rpc.possession import lease_request_octets, possession_octets
from ztdpu.trust.acceptance import BindingRecord, accept_opened, check_possession
from ztdpu.trust.appraise import Appraisal, appraise
from ztdpu.trust.binding import KeyBinding, open_envelope
from ztdpu.trust.reference import format_version, parse_version
from ztdpu.trust.spdm.evidence import Evidence

COUNTER_LIMIT: Final = 1 << 62
"""Boot counters and sequences beyond it would wrap in the store; no honest device gets there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseAsked:
    """The lease request of an agent."""

    binding_sha256: bytes
    """Empty when the agent starts."""
    applied_generation: int
    kem_public_key: bytes
    offer_signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingGiven:
    """An agent's answer to the binding challenge."""

    key_binding: bytes
    csr: bytes
    tls_possession: bytes
    offer_possession: bytes


def pinned_device_id(desired: Desired, record: DeviceRecord) -> bytes | None:
    """The one DeviceID that this name may have, as far as anybody knows.

    Raises:
        CertificateError: document, roster and enrolment contradict each other.

    """
    document, roster = desired.pins_of(record.name)
    known = {pin for pin in (document, roster, record.device_id_sha256 or None) if pin}
    if len(known) > 1:
        raise CertificateError(
            "Device document, roster and enrolment name different DeviceIDs", remedy="find out which is right"
        )
    return known.pop() if known else None


def is_enrolled(desired: Desired, record: DeviceRecord) -> bool:
    """Whether the device needs no join token: it enrolled before, or its document pins it."""
    return bool(record.device_id_sha256 or desired.pins_of(record.name)[0])


def judge_evidence(
    evidence: Evidence,
    *,
    desired: Desired,
    record: DeviceRecord,
    nonce: bytes,
    highest_versions: Mapping[str, str],
    now: datetime,
    collected_at: datetime | None = None,
) -> Appraisal:
    """Appraise evidence of a device by the policy in force.

    Raises:
        EvidenceError: it does not verify, or is of a boot that is over.

    """
    appraisal = appraise(
        evidence,
        desired.references[record.name],
        desired.appraisal[record.name],
        now,
        manufacturer_roots=desired.manufacturer_roots,
        pinned_device_id_sha256=pinned_device_id(desired, record),
        nonce=nonce,
        highest_versions={}
        if record.allow_rollback
        else {component: parse_version(version) for component, version in highest_versions.items()},
        collected_at=collected_at,
    )
    if not record.boot_counter <= appraisal.boot_counter < COUNTER_LIMIT:
        raise EvidenceError(f"boot {appraisal.boot_counter} is over, the highest seen is {record.boot_counter}")
    return appraisal


def is_binding_due(
    live: StoredBinding | None, *, appraisal: Appraisal, asked: LeaseAsked, device: str, now: Instant
) -> bool:
    """Whether a new KeyBinding is needed: none, another boot, past half its life, or the request is not proven ours."""
    if live is None or asked.binding_sha256 != live.binding_sha256:
        return True
    if (live.alias_spki_sha256, live.boot_nonce) != (appraisal.alias_spki_sha256, appraisal.boot_nonce):
        return True
    if now.unix_ms >= (live.expires_unix_s - live.ttl_s // 2) * 1000:
        return True
    octets = lease_request_octets(
        device=device,
        binding_sha256=asked.binding_sha256,
        applied_generation=asked.applied_generation,
        kem_public_key=asked.kem_public_key,
    )
    try:
        public_key(live.offer_spki).verify(asked.offer_signature, octets, ec.ECDSA(SHA256()))
    except InvalidSignature:
        return True
    return False


def judge_binding(
    given: BindingGiven,
    opened: KeyBinding,
    *,
    asked: LeaseAsked,
    appraisal: Appraisal,
    trust_domain: str,
    nonce: bytes,
    record: DeviceRecord,
    pinned: bytes | None,
    newest: StoredBinding | None,
    owners: Sequence[StoredBinding],
    evidence: Evidence,
    now: Instant,
) -> StoredBinding:
    """Accept a binding and the proofs that came with it, for the lease `asked` for; what is returned is to be stored.

    `opened` is what `open_binding` made of `given`.
    `newest` is the device's newest binding so far; `owners` every binding that names one of the keys of this one.

    Raises:
        BindingError: any rule of protocols.md 2.

    """
    own = [owner for owner in owners if owner.device == record.name]
    accepted = accept_opened(
        opened,
        given.key_binding,
        appraisal=appraisal,
        expected_domain=trust_domain,
        expected_nonce=nonce,
        stored=_newest_record(newest, own, record),
        pinned_device_id_sha256=pinned,
        denied_keys=_keys_of(owner for owner in owners if owner.denied),
        keys_of_others=_keys_of(owner for owner in owners if owner.device != record.name),
        keys_seen=_keys_of(own),
    )
    binding = accepted.binding
    tls_key = _possessed_key(given, binding, asked, nonce=nonce, binding_sha256=accepted.record.binding_sha256)
    if binding.sequence >= COUNTER_LIMIT:
        raise EvidenceError("the sequence of the binding is out of bounds")
    return StoredBinding(
        binding_sha256=accepted.record.binding_sha256,
        device=record.name,
        envelope=given.key_binding,
        chain=evidence.certificates,
        alias_spki_sha256=appraisal.alias_spki_sha256,
        boot_counter=binding.boot_counter,
        boot_nonce=binding.boot_nonce,
        sequence=binding.sequence,
        tls_spki=tls_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        tls_spki_sha256=binding.tls_spki_sha256,
        offer_spki=binding.offer_spki,
        offer_spki_sha256=accepted.record.offer_spki_sha256,
        ttl_s=binding.ttl_s,
        expires_unix_s=now.unix_ms // 1000 + binding.ttl_s,
    )


def _possessed_key(
    given: BindingGiven, binding: KeyBinding, asked: LeaseAsked, *, nonce: bytes, binding_sha256: bytes
) -> ec.EllipticCurvePublicKey:
    """The TLS key of a binding whose keys proved themselves. Raises BindingError."""
    signed = possession_octets(
        nonce=nonce,
        binding_sha256=binding_sha256,
        applied_generation=asked.applied_generation,
        kem_public_key=asked.kem_public_key,
    )
    return check_possession(
        binding,
        csr=given.csr,
        signed=signed,
        tls_possession=given.tls_possession,
        offer_possession=given.offer_possession,
    )


def raise_versions(highest: Mapping[str, str], appraisal: Appraisal, *, allow_rollback: bool) -> dict[str, str]:
    """Highest version ever accepted per component, this appraisal included (or only it, after leave to roll back)."""
    raised = {} if allow_rollback else dict(highest)
    for component, version in appraisal.versions.items():
        if component not in raised or parse_version(raised[component]) < version:
            raised[component] = format_version(version)
    return raised


def public_key(spki: bytes) -> ec.EllipticCurvePublicKey:
    """A stored key, ready to use."""
    key = load_der_public_key(spki)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise EvidenceError("stored key is of another kind")
    return key


def open_binding(given: BindingGiven, appraisal: Appraisal) -> KeyBinding:
    """Read what the Alias signed that the evidence is of. Raises BindingError."""
    return open_envelope(given.key_binding, appraisal.alias_public_key)


def bound_keys(binding: KeyBinding, appraisal: Appraisal) -> frozenset[bytes]:
    """SHA-256 of the keys of a binding: both that the envelope names, and the Alias behind it."""
    offer = hashlib.sha256(binding.offer_spki).digest()
    return frozenset({binding.tls_spki_sha256, offer, appraisal.alias_spki_sha256})


def _newest_record(
    newest: StoredBinding | None, same_keys: Iterable[StoredBinding], record: DeviceRecord
) -> BindingRecord | None:
    """What is held against a new binding. `same_keys` are the device's bindings that name one of its keys."""
    if newest is None:
        return None
    return BindingRecord(
        ueid=b"\x01" + record.device_id_sha256,
        alias_spki_sha256=newest.alias_spki_sha256,
        boot_counter=newest.boot_counter,
        sequence=newest.sequence,
        binding_sha256=newest.binding_sha256,
        tls_spki_sha256=newest.tls_spki_sha256,
        offer_spki_sha256=newest.offer_spki_sha256,
        retired_aliases=frozenset(one.alias_spki_sha256 for one in same_keys if one.boot_counter < newest.boot_counter),
        restored=record.boot_floor > newest.boot_counter,
    )


def _keys_of(bindings: Iterable[StoredBinding]) -> frozenset[bytes]:
    """SHA-256 of TLS, offer and Alias keys: none of a revoked device comes back, none serves two devices."""
    return frozenset(
        key for one in bindings for key in (one.tls_spki_sha256, one.offer_spki_sha256, one.alias_spki_sha256)
    )
