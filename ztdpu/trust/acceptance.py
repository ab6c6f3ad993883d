"""Acceptance of a KeyBinding by control: every rule of protocols.md 2 that ties an agent's keys to its device.

Called after `appraise`, in the same stream: the binding must be signed by the very key that signed the measurements.
Pure: what is stored, denied or owned by others comes in as values, what is to be stored goes out as a value, and the
caller writes it in one transaction. A binding is refused whole or accepted whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ztdpu.errors import BindingError
from ztdpu.trust.appraise import Appraisal
from ztdpu.trust.binding import AGENT_ROLE, KeyBinding, binding_sha256, open_envelope

CSR_LIMIT_OCTETS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingRecord:
    """What control keeps of a device's newest binding, and of the boots before it."""

    ueid: bytes
    alias_spki_sha256: bytes
    boot_counter: int
    sequence: int
    binding_sha256: bytes
    tls_spki_sha256: bytes
    offer_spki_sha256: bytes
    retired_aliases: frozenset[bytes] = frozenset()
    """SHA-256 of the SPKI of every Alias of an older boot: none of them ever returns."""
    restored: bool = False
    """The device was revoked and restored: its next binding needs a newer boot and keys never seen before."""

    @property
    def keys(self) -> frozenset[bytes]:
        """SHA-256 of the SPKI of both bound keys."""
        return frozenset({self.tls_spki_sha256, self.offer_spki_sha256})


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedBinding:
    """An accepted binding and what follows from it."""

    binding: KeyBinding
    record: BindingRecord
    """To be stored instead of the old one."""
    new_boot: bool
    """The device booted since the last binding: the old Alias and its bindings are retired."""


def accept_binding(
    envelope: bytes,
    *,
    appraisal: Appraisal,
    expected_domain: str,
    expected_nonce: bytes,
    stored: BindingRecord | None,
    pinned_device_id_sha256: bytes | None,
    denied_keys: Collection[bytes] = (),
    keys_of_others: Collection[bytes] = (),
    keys_seen: Collection[bytes] = (),
) -> AcceptedBinding:
    """Open an envelope with the Alias that signed the measurements, then apply `check_binding`.

    Raises:
        BindingError: not signed by that Alias, malformed, or any rule of `check_binding`.

    """
    return accept_opened(
        open_envelope(envelope, appraisal.alias_public_key),
        envelope,
        appraisal=appraisal,
        expected_domain=expected_domain,
        expected_nonce=expected_nonce,
        stored=stored,
        pinned_device_id_sha256=pinned_device_id_sha256,
        denied_keys=denied_keys,
        keys_of_others=keys_of_others,
        keys_seen=keys_seen,
    )


def accept_opened(
    binding: KeyBinding,
    envelope: bytes,
    *,
    appraisal: Appraisal,
    expected_domain: str,
    expected_nonce: bytes,
    stored: BindingRecord | None,
    pinned_device_id_sha256: bytes | None,
    denied_keys: Collection[bytes] = (),
    keys_of_others: Collection[bytes] = (),
    keys_seen: Collection[bytes] = (),
) -> AcceptedBinding:
    """As `accept_binding`, for `binding` that `open_envelope` just made of `envelope` with the same Alias."""
    new_boot = check_binding(
        binding,
        appraisal=appraisal,
        expected_domain=expected_domain,
        expected_nonce=expected_nonce,
        stored=stored,
        pinned_device_id_sha256=pinned_device_id_sha256,
        denied_keys=denied_keys,
        keys_of_others=keys_of_others,
        keys_seen=keys_seen,
    )
    retired = frozenset() if stored is None else stored.retired_aliases
    if stored is not None and new_boot:
        retired |= {stored.alias_spki_sha256}
    record = BindingRecord(
        ueid=binding.ueid,
        alias_spki_sha256=appraisal.alias_spki_sha256,
        boot_counter=binding.boot_counter,
        sequence=binding.sequence,
        binding_sha256=binding_sha256(envelope),
        tls_spki_sha256=binding.tls_spki_sha256,
        offer_spki_sha256=hashlib.sha256(binding.offer_spki).digest(),
        retired_aliases=retired,
    )
    return AcceptedBinding(binding=binding, record=record, new_boot=new_boot)


def check_binding(
    binding: KeyBinding,
    *,
    appraisal: Appraisal,
    expected_domain: str,
    expected_nonce: bytes,
    stored: BindingRecord | None,
    pinned_device_id_sha256: bytes | None = None,
    denied_keys: Collection[bytes] = (),
    keys_of_others: Collection[bytes] = (),
    keys_seen: Collection[bytes] = (),
) -> bool:
    """Apply the rules to a binding that `open_envelope` verified; True when the device booted since the last one.

    Args:
        binding: opened with `appraisal.alias_public_key`.
        appraisal: of the measurements in the same stream.
        expected_domain: control's trust domain.
        expected_nonce: the binding nonce of this stream, another one than the SPDM nonce.
        stored: the device's newest binding; None at its first.
        pinned_device_id_sha256: DeviceID that the device's name is bound to; None while it enrols.
        denied_keys: SHA-256 of SPKIs (TLS, offer, Alias, DeviceID) that were revoked.
        keys_of_others: SHA-256 of every TLS, offer and Alias SPKI that was ever bound to another device.
        keys_seen: the same of this device; matters after a restore only.

    Raises:
        BindingError: any rule is broken.

    """
    _check_identity(binding, appraisal, pinned_device_id_sha256)
    if binding.role != AGENT_ROLE:
        raise BindingError("key binding is for another role")
    if binding.trust_domain != expected_domain:
        raise BindingError("key binding is for another trust domain")
    if binding.nonce != expected_nonce or expected_nonce == appraisal.nonce:
        raise BindingError("key binding does not answer the nonce of this stream")
    _check_keys(binding, appraisal, denied_keys=denied_keys, keys_of_others=keys_of_others)
    if stored is None:
        return True
    new_boot = _check_order(binding, appraisal, stored)
    if stored.restored:
        _check_restored(binding, new_boot=new_boot, seen=stored.keys.union(keys_seen))
    return new_boot


def check_possession(
    binding: KeyBinding, *, csr: bytes, signed: bytes, tls_possession: bytes, offer_possession: bytes
) -> ec.EllipticCurvePublicKey:
    """Verify that the agent holds both bound keys; gives the TLS key to certify.

    Args:
        binding: accepted.
        csr: PKCS#10, DER, for the bound TLS key. Names and extensions in it do not count.
        signed: octets that name this stream (nonce and binding).
        tls_possession: ECDSA with SHA-256 over `signed`, by the TLS key.
        offer_possession: the same, by the offer key.

    Raises:
        BindingError: the CSR cannot be read, is for another key or does not verify, or a proof does not.

    """
    if len(csr) > CSR_LIMIT_OCTETS:
        raise BindingError("certificate request is too long")
    try:
        request = x509.load_der_x509_csr(csr)
        key = request.public_key()
        proven = request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise BindingError("certificate request cannot be read") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1) or not proven:
        raise BindingError("certificate request is not signed by a key on P-256")
    if _spki_sha256(key) != binding.tls_spki_sha256:
        raise BindingError("certificate request is for another key than the bound one")
    for proof, holder in ((tls_possession, key), (offer_possession, binding.offer_public_key)):
        try:
            holder.verify(proof, signed, ec.ECDSA(SHA256()))
        except InvalidSignature as error:
            raise BindingError("agent did not prove that it holds its bound keys") from error
    return key


def _check_identity(binding: KeyBinding, appraisal: Appraisal, pinned: bytes | None) -> None:
    if binding.ueid != appraisal.ueid:
        raise BindingError("key binding names another device than the evidence")
    if pinned is not None and appraisal.device_id_sha256 != pinned:
        raise BindingError("key binding is of another device than the one pinned under this name")
    if (binding.boot_counter, binding.boot_nonce) != (appraisal.boot_counter, appraisal.boot_nonce):
        raise BindingError("key binding is of another boot than the evidence")


def _check_keys(
    binding: KeyBinding, appraisal: Appraisal, *, denied_keys: Collection[bytes], keys_of_others: Collection[bytes]
) -> None:
    offer = hashlib.sha256(binding.offer_spki).digest()
    if offer == binding.tls_spki_sha256:
        raise BindingError("TLS key and offer key are the same")
    for key in (binding.tls_spki_sha256, offer, appraisal.alias_spki_sha256, appraisal.device_id_sha256):
        if key in denied_keys:
            raise BindingError("a key of the binding was revoked")
        if key in keys_of_others:
            raise BindingError("a key of the binding belongs to another device")


def _check_order(binding: KeyBinding, appraisal: Appraisal, stored: BindingRecord) -> bool:
    """Nothing goes back: boot, Alias, sequence. True for a newer boot."""
    if binding.ueid != stored.ueid:
        raise BindingError("key binding is of another device than the one on record")
    if appraisal.alias_spki_sha256 in stored.retired_aliases or binding.boot_counter < stored.boot_counter:
        raise BindingError("key binding is of an older boot, which is retired")
    same_alias = appraisal.alias_spki_sha256 == stored.alias_spki_sha256
    if binding.boot_counter > stored.boot_counter:
        if same_alias:
            raise BindingError("device claims a newer boot with the Alias key of an older one")
        return True
    if not same_alias:
        raise BindingError("device shows a second Alias key for the same boot")
    if binding.sequence <= stored.sequence:
        raise BindingError(f"key binding {binding.sequence} is not newer than {stored.sequence}")
    return False


def _check_restored(binding: KeyBinding, *, new_boot: bool, seen: Collection[bytes]) -> None:
    if not new_boot:
        raise BindingError("device was restored and needs a newer boot", remedy="restart its root of trust")
    if binding.tls_spki_sha256 in seen or hashlib.sha256(binding.offer_spki).digest() in seen:
        raise BindingError("device was restored and needs keys never seen before", remedy="restart its agent")


def _spki_sha256(key: ec.EllipticCurvePublicKey) -> bytes:
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()
