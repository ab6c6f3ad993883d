"""What an agent checks of a peer before it exchanges keys with it (protocols.md 5.4), without believing control.

Control relays all of it: chain, KeyBinding, attestation result, roster. The agent's own anchors are the manufacturer
roots, the operator's keys behind the roster and its trust domain. What is left to control is said in the docs: it can
withhold and delay, and lease a sick device that shows allowed firmware. Called by `agent.peer_book`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from ztdpu.errors import BindingError, ConfigurationError, EarError, RosterError
from ztdpu.trust.binding import AGENT_ROLE, KeyBinding, binding_sha256, open_envelope
from ztdpu.trust.chain import DeviceChain, verify_device_chain
from ztdpu.trust.ear import verify_ear
from ztdpu.trust.ear_claims import EarClaims
from ztdpu.trust.profile import load_profile
from ztdpu.trust.roster import Roster, RosterNetwork

BINDING_SLACK: Final = timedelta(seconds=300)
"""For wall clocks that differ, when a binding ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatement:
    """All that control hands over about a peer. Nothing in it is believed yet."""

    device: str
    profile: str
    chain: tuple[bytes, ...]
    """DER, root first."""
    key_binding: bytes
    """Envelope."""
    ear: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFloor:
    """The newest that was ever accepted of a peer; kept by the agent, never lowered."""

    boot_counter: int
    sequence: int
    binding_sha256: bytes
    alias_spki_sha256: bytes
    first_seen: datetime
    """When this binding was first accepted: from then on its ttl counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedPeer:
    """A peer that counts."""

    device: str
    ueid: bytes
    binding_sha256: bytes
    offer_public_key: ec.EllipticCurvePublicKey
    """P-256; verifies the peer's exchange messages."""
    tls_spki_sha256: bytes
    boot_counter: int
    sequence: int
    networks: tuple[RosterNetwork, ...]
    """That the operator lets it host."""
    ear: EarClaims
    floor: PeerFloor
    """To be kept instead of the old one."""


def verify_peer(
    statement: PeerStatement,
    *,
    roster: Roster,
    trust_domain: str,
    manufacturer_roots: Sequence[x509.Certificate],
    ear_key: ec.EllipticCurvePublicKey,
    now: datetime,
    floor: PeerFloor | None,
) -> VerifiedPeer:
    """Verify a peer, in this order: roster entry, chain, FWIDs, KeyBinding, floor, expiry, attestation result.

    Args:
        statement: from control.
        roster: already verified (`verify_roster`).
        trust_domain: the agent's own, from its start-up file.
        manufacturer_roots: pinned anchors, from the start-up file.
        ear_key: control's key for attestation results.
        now: wall clock, for certificates, binding expiry (300 s slack) and the result's times (30 s slack).
        floor: `VerifiedPeer.floor` of the last time; None for a peer never accepted before.

    Raises:
        RosterError: not listed, another trust domain, another DeviceID, firmware that no operator signed for.
        CertificateError: the chain.
        BindingError: the KeyBinding, one that goes back, or one that ended.
        EarError: no fresh result for this binding.

    """
    if roster.trust_domain != trust_domain:
        raise RosterError(f"roster is for the trust domain {roster.trust_domain}")
    entry = roster.find_device(statement.device)
    chain = _verify_chain(statement, manufacturer_roots, now)
    if chain.device_id_sha256 != entry.device_id_sha256:
        raise RosterError(f"peer {statement.device} is not the device in the roster")
    _check_firmware(statement.device, chain, roster)
    binding = open_envelope(statement.key_binding, chain.alias_public_key)
    _check_binding(binding, chain, trust_domain)
    name = binding_sha256(statement.key_binding)
    raised = _raise_floor(binding, chain, name, floor, now)
    if now > raised.first_seen + timedelta(seconds=binding.ttl_s) + BINDING_SLACK:
        raise BindingError(f"key binding of {statement.device} ended")
    ear = verify_ear(statement.ear, key=ear_key, now=now, device=statement.device, binding_sha256=name)
    if (ear.ueid, ear.device_id_sha256, ear.boot_counter) != (chain.ueid, chain.device_id_sha256, chain.boot.counter):
        raise EarError(f"attestation result of {statement.device} is for another device or boot")
    return VerifiedPeer(
        device=statement.device,
        ueid=chain.ueid,
        binding_sha256=name,
        offer_public_key=binding.offer_public_key,
        tls_spki_sha256=binding.tls_spki_sha256,
        boot_counter=binding.boot_counter,
        sequence=binding.sequence,
        networks=roster.networks_of(entry),
        ear=ear,
        floor=raised,
    )


def _verify_chain(statement: PeerStatement, roots: Sequence[x509.Certificate], now: datetime) -> DeviceChain:
    try:
        profile = load_profile(statement.profile)
    except ConfigurationError as error:
        raise RosterError(f"peer {statement.device} is of an unknown profile") from error
    return verify_device_chain(statement.chain, roots, now, profile)


def _check_firmware(device: str, chain: DeviceChain, roster: Roster) -> None:
    allowed = roster.fwids.get(chain.profile, ())
    if not chain.fwids:
        raise RosterError(f"peer {device} shows no firmware identity")
    for fwid in chain.fwids:
        if fwid.digest.hex() not in allowed:
            raise RosterError(
                f"peer {device} runs firmware {fwid.digest.hex()} (level {fwid.level}) that the roster does not allow",
                remedy="if the firmware is right, sign a roster that lists it",
            )
        if fwid.bad_flags:
            raise RosterError(f"peer {device} admits: {', '.join(fwid.bad_flags)}")


def _check_binding(binding: KeyBinding, chain: DeviceChain, trust_domain: str) -> None:
    if binding.role != AGENT_ROLE or binding.trust_domain != trust_domain:
        raise BindingError("key binding is for another role or trust domain")
    if binding.ueid != chain.ueid:
        raise BindingError("key binding names another device than the chain")
    if (binding.boot_counter, binding.boot_nonce) != (chain.boot.counter, chain.boot.nonce):
        raise BindingError("key binding is of another boot than the chain")


def _raise_floor(
    binding: KeyBinding, chain: DeviceChain, name: bytes, floor: PeerFloor | None, now: datetime
) -> PeerFloor:
    """Nothing goes back; the time of first sight stays that of this very binding."""
    fresh = PeerFloor(
        boot_counter=binding.boot_counter,
        sequence=binding.sequence,
        binding_sha256=name,
        alias_spki_sha256=chain.alias_spki_sha256,
        first_seen=now,
    )
    if floor is None:
        return fresh
    shown, newest = (fresh.boot_counter, fresh.sequence), (floor.boot_counter, floor.sequence)
    if shown < newest:
        raise BindingError("key binding is older than one that was accepted before")
    if (fresh.boot_counter == floor.boot_counter) != (fresh.alias_spki_sha256 == floor.alias_spki_sha256):
        raise BindingError("Alias key and boot do not belong together")
    if shown == newest and name != floor.binding_sha256:
        raise BindingError("another key binding with the same boot and sequence was accepted before")
    return fresh if shown > newest else floor
