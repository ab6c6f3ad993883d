"""Verify an exported evidence file against a policy directory, offline: the same appraisal as control's.

Called by `ztdpu attestation verify`. Reads files and nothing else: no control, no device, no network.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from ztdpu.errors import ConfigurationError, EvidenceError, Location, NotFoundError
from ztdpu.policy.load import load_directory
from ztdpu.policy.references import appraisal_policy_for, reference_values_for
from ztdpu.trust.certificate import load_anchors
from ztdpu.trust.evidence_file import FILE_LIMIT_OCTETS, Verified, open_file, public_octets, verify_file
from ztdpu.trust.reference import AppraisalPolicy

ANCHOR_LIMIT_OCTETS = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What came of it."""

    verified: Verified
    policy: AppraisalPolicy
    """The strictest common one of the device's tenants."""
    own_roots: bool
    """Whether the caller named the manufacturer's roots; else those in the file were taken."""
    own_ear_key: bool
    """Whether the caller named control's key; else the one in the file was taken."""

    @property
    def may_hold_lease(self) -> bool:
        """Whether the policy at hand leases to the tier that it comes to."""
        return self.verified.appraisal.tier in self.policy.lease_tiers


def verify_evidence(
    file: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    *,
    roots_file: str | os.PathLike[str] | None = None,
    ear_key_file: str | os.PathLike[str] | None = None,
) -> Verification:
    """Open and appraise an evidence file by the policy in `directory`.

    Args:
        file: from `ztdpu attestation export`.
        directory: policy files, with the device, its tenants and reference values of its profile.
        roots_file: PEM bundle of the manufacturer's roots; None: those in the file.
        ear_key_file: PEM of control's public key (`ear.pem` in its state directory); None: the one in the file.

    Raises:
        RefusedError: the file was changed, does not verify, or contradicts itself.
        PolicyRefusedError: the directory cannot be read.
        NotFoundError: the policy has no such device, or no reference values for its profile.

    """
    octets = _read(file, FILE_LIMIT_OCTETS)
    ear_key = None if ear_key_file is None else _read_key(ear_key_file)
    opened = open_file(octets, ear_key=ear_key)
    cluster = load_directory(directory)
    device = cluster.devices.get(opened.device)
    if device is None:
        raise NotFoundError(
            f"the policy has no device {opened.device!r}", remedy="name the policy that control had in force"
        )
    _check_pin(device.spec.device_id_sha256, opened.pinned_device_id_sha256, opened.device)
    policy = appraisal_policy_for(cluster, cluster.tenants_on(opened.device))
    verified = verify_file(
        opened,
        references=reference_values_for(cluster, device.spec.profile),
        policy=policy,
        manufacturer_roots=() if roots_file is None else _read_roots(roots_file),
    )
    _check_pin(device.spec.device_id_sha256, verified.appraisal.device_id_sha256, opened.device)
    return Verification(
        verified=verified, policy=policy, own_roots=roots_file is not None, own_ear_key=ear_key_file is not None
    )


def _check_pin(wanted: str | None, seen: bytes, device: str) -> None:
    if wanted and seen and bytes.fromhex(wanted) != seen:
        raise EvidenceError(f"the evidence is of another DeviceID than the policy pins for {device}")


def _read(path: str | os.PathLike[str], limit_octets: int) -> bytes:
    where = Location(file=str(path), line=0)
    try:
        with Path(path).open("rb") as stream:
            octets = stream.read(limit_octets + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}", remedy="check the path", where=where) from error
    if len(octets) > limit_octets:
        raise EvidenceError(f"longer than {limit_octets} octets", where=where)
    return octets


def _read_roots(path: str | os.PathLike[str]) -> tuple[x509.Certificate, ...]:
    try:
        return load_anchors(_read(path, ANCHOR_LIMIT_OCTETS))
    except ValueError as error:
        raise ConfigurationError(
            f"no roots in it: {error}", remedy="give a PEM bundle", where=Location(file=str(path), line=0)
        ) from error


def _read_key(path: str | os.PathLike[str]) -> bytes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(_read(path, ANCHOR_LIMIT_OCTETS))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigurationError(
            "no public key in it", remedy="give control's ear.pem", where=Location(file=str(path), line=0)
        ) from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigurationError("a key on P-256 is wanted", where=Location(file=str(path), line=0))
    return public_octets(key)
