"""The roster: which devices exist, what they may host, which networks there are; signed by an operator.

Control delivers it and cannot write it, so a malicious control cannot name a device (protocols.md 5.4). Agents verify
it with keys from their own start-up file and ask it about every peer. It holds no key material.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ztdpu.errors import RosterError
from ztdpu.trust import canonical, sshsig

ROSTER_NAMESPACE: Final = "ztdpu-roster"
ROSTER_LABEL: Final = "roster"
ROSTER_FORMAT: Final = 1
"""Networks of tenants only."""
ROSTER_FORMAT_WITH_PEERINGS: Final = 2
"""Every network with its members; used when there is a Peering's network, and then only."""
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_U64: Final = 1 << 64
_DIGEST_SIZES: Final = frozenset({32, 48, 64})


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterDevice:
    """One device that an operator vouches for."""

    name: str
    device_id_sha256: bytes
    """SHA-256 of the DeviceID's SubjectPublicKeyInfo, 32 octets."""
    tenants: tuple[str, ...]
    """Tenants whose endpoints it may host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterNetwork:
    """One network that an operator vouches for."""

    tenant: str
    """Whose network it is; of a Peering's network, the name of the Peering."""
    network_id: bytes
    """16 octets."""
    generation: int
    members: tuple[str, ...] = ()
    """The two tenants of a Peering; empty for a tenant's own network."""

    @property
    def tenants(self) -> tuple[str, ...]:
        """Whose endpoints may be in it."""
        return self.members or (self.tenant,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """All of it. Nothing stands twice; encoding sorts every list, so that there is one spelling."""

    serial: int
    """Rises with every change; agents never go back."""
    trust_domain: str
    devices: tuple[RosterDevice, ...]
    networks: tuple[RosterNetwork, ...]
    fwids: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Profile -> firmware identities that its devices may show, lower-case hex."""

    def find_device(self, name: str) -> RosterDevice:
        """Give the device of that name.

        Raises:
            RosterError: it is not listed.

        """
        for device in self.devices:
            if device.name == name:
                return device
        raise RosterError(f"device {name[:64]!r} is not in the roster")

    def networks_of(self, device: RosterDevice) -> tuple[RosterNetwork, ...]:
        """Networks of the tenants that the device may host, and their Peerings."""
        return tuple(network for network in self.networks if not set(network.tenants).isdisjoint(device.tenants))


def encode_roster(roster: Roster) -> bytes:
    """Give the octets to sign.

    Raises:
        RosterError: a name, size or number out of bounds, a repetition, an unknown tenant, or larger than 64 KiB.

    """
    _check(roster)
    form = ROSTER_FORMAT_WITH_PEERINGS if any(one.members for one in roster.networks) else ROSTER_FORMAT
    try:
        return canonical.encode(
            [
                ROSTER_LABEL,
                form,
                roster.serial,
                roster.trust_domain,
                sorted([one.name, one.device_id_sha256, sorted(one.tenants)] for one in roster.devices),
                sorted(_network_row(one, form) for one in roster.networks),
                sorted([profile, sorted(map(bytes.fromhex, digests))] for profile, digests in roster.fwids.items()),
            ]
        )
    except ValueError as error:
        raise RosterError(f"roster cannot be encoded: {error}") from error


def decode_roster(blob: bytes) -> Roster:
    """Read a roster whose signature was verified before.

    Raises:
        RosterError: malformed, of another format, or not in its one spelling.

    """
    match canonical.decode(blob, refusal=RosterError):
        case [label, form, int(serial), str(trust_domain), [*devices], [*networks], [*fwids]] if (
            label == ROSTER_LABEL and type(form) is int and form in (ROSTER_FORMAT, ROSTER_FORMAT_WITH_PEERINGS)
        ):
            roster = Roster(
                serial=serial,
                trust_domain=trust_domain,
                devices=tuple(map(_read_device, devices)),
                networks=tuple(map(_read_network, networks)),
                fwids=dict(map(_read_fwids, fwids)),
            )
            if encode_roster(roster) != blob:
                raise RosterError("roster is not spelt canonically")
            return roster
    raise RosterError("roster is not of a known format")


def sign_roster(blob: bytes, private_key: Ed25519PrivateKey) -> str:
    """Sign an encoded roster; the same as `ssh-keygen -Y sign -n ztdpu-roster`."""
    return sshsig.sign(blob, private_key, namespace=ROSTER_NAMESPACE)


def verify_roster(
    blob: bytes,
    signature: str,
    operator_keys: Sequence[Ed25519PublicKey],
    lowest_serial: int,
    *,
    trust_domain: str | None = None,
    current_sha256: bytes | None = None,
) -> Roster:
    """Verify the signature, then read, then require that nothing goes back.

    `lowest_serial` is the highest serial ever accepted; `current_sha256` the hash of that roster, where known: another
    roster of the same serial is refused.

    Raises:
        RosterError: not signed by one of `operator_keys`, malformed, another trust domain, or an older serial.

    """
    if len(blob) > canonical.LIMIT_OCTETS:
        raise RosterError(f"roster of {len(blob)} octets, at most {canonical.LIMIT_OCTETS} are read")
    sshsig.verify(blob, signature, operator_keys, namespace=ROSTER_NAMESPACE, refusal=RosterError)
    roster = decode_roster(blob)
    if trust_domain is not None and roster.trust_domain != trust_domain:
        raise RosterError(f"roster is for the trust domain {roster.trust_domain}")
    if roster.serial < lowest_serial:
        raise RosterError(f"roster {roster.serial} is older than {lowest_serial}, which was accepted before")
    if (
        roster.serial == lowest_serial
        and current_sha256 is not None
        and hashlib.sha256(blob).digest() != current_sha256
    ):
        raise RosterError(f"another roster with the serial {roster.serial} was accepted before")
    return roster


def _read_device(item: Any) -> RosterDevice:
    match item:
        case [str(name), bytes(device_id_sha256), [*tenants]] if all(isinstance(one, str) for one in tenants):
            return RosterDevice(name=name, device_id_sha256=device_id_sha256, tenants=tuple(tenants))
    raise RosterError("roster has a malformed device")


def _network_row(network: RosterNetwork, form: int) -> list[Any]:
    row: list[Any] = [network.tenant, network.network_id, network.generation]
    return row if form == ROSTER_FORMAT else [*row, sorted(network.members)]


def _read_network(item: Any) -> RosterNetwork:
    match item:
        case [str(tenant), bytes(network_id), int(generation), [*members]] if not isinstance(generation, bool) and all(
            isinstance(one, str) for one in members
        ):
            return RosterNetwork(tenant=tenant, network_id=network_id, generation=generation, members=tuple(members))
        case [str(tenant), bytes(network_id), int(generation)] if not isinstance(generation, bool):
            return RosterNetwork(tenant=tenant, network_id=network_id, generation=generation)
    raise RosterError("roster has a malformed network")


def _read_fwids(item: Any) -> tuple[str, tuple[str, ...]]:
    match item:
        case [str(profile), [*digests]] if all(isinstance(one, bytes) for one in digests):
            return profile, tuple(one.hex() for one in digests)
    raise RosterError("roster has malformed firmware identities")


def _check(roster: Roster) -> None:
    tenants = [network.tenant for network in roster.networks if not network.members]
    _check_names("device", [device.name for device in roster.devices])
    _check_names("network", [network.tenant for network in roster.networks])
    for network in roster.networks:
        _check_members(network, tenants)
    _check_names("profile", list(roster.fwids))
    if not _NAME.fullmatch(roster.trust_domain):
        raise RosterError("roster has a malformed trust domain")
    numbers = (roster.serial, *(network.generation for network in roster.networks))
    if any(isinstance(number, bool) or not 0 <= number < _U64 for number in numbers):
        raise RosterError("roster has a number out of bounds")
    _check_identifiers("DeviceID hash", [device.device_id_sha256 for device in roster.devices], 32)
    _check_identifiers("network id", [network.network_id for network in roster.networks], 16)
    for device in roster.devices:
        _check_names(f"tenant of {device.name}", list(device.tenants))
        if not set(device.tenants) <= set(tenants):
            raise RosterError(f"device {device.name} may host a tenant that has no network")
    for profile, digests in roster.fwids.items():
        _check_digests(profile, digests)


def _check_members(network: RosterNetwork, tenants: Sequence[str]) -> None:
    if not network.members:
        return
    _check_names(f"member of {network.tenant}", network.members)
    if len(network.members) != 2 or not set(network.members) <= set(tenants):
        raise RosterError(f"Peering {network.tenant} is not between two tenants that have networks")


def _check_names(what: str, names: Sequence[str]) -> None:
    for name in names:
        if not _NAME.fullmatch(name):
            raise RosterError(f"{name[:64]!r} cannot name a {what}")
    if len(set(names)) != len(names):
        raise RosterError(f"a {what} stands twice in the roster")


def _check_identifiers(what: str, values: Sequence[bytes], octets: int) -> None:
    if any(len(value) != octets for value in values):
        raise RosterError(f"a {what} in the roster is not of {octets} octets")
    if len(set(values)) != len(values):
        raise RosterError(f"a {what} stands twice in the roster")


def _check_digests(profile: str, digests: Sequence[str]) -> None:
    for digest in digests:
        if not re.fullmatch(r"(?:[0-9a-f]{2})+", digest) or len(digest) // 2 not in _DIGEST_SIZES:
            raise RosterError(f"a firmware identity of {profile} is no digest in lower-case hex")
        if not any(bytes.fromhex(digest)):
            raise RosterError(f"a firmware identity of {profile} is all zero")
    if len(set(digests)) != len(digests):
        raise RosterError(f"a firmware identity of {profile} stands twice")
