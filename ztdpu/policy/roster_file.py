"""The roster that a policy wants, and how it differs from the one that is signed (protocols.md 5.4). Pure.

Policy says which devices there are, whose endpoints they host and which networks there are; the roster says it again
under an operator's signature, with what policy does not hold: DeviceID hashes and network ids. Those stay as they are
from one roster to the next. Called by `ztdpu policy sign-roster`, and by the lab for its first one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ztdpu.errors import PolicyError, PolicyRefusedError
from ztdpu.policy.cluster import Cluster
from ztdpu.policy.references import reference_values_for
from ztdpu.trust.roster import Roster, RosterDevice, RosterNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterWishes:
    """What a policy says of a roster's matters."""

    tenants: Mapping[str, tuple[str, ...]]
    """Device -> tenants whose endpoints it hosts."""
    networks: Mapping[str, tuple[str, ...]]
    """Tenant -> nothing; Peering -> its two tenants."""
    fwids: Mapping[str, tuple[str, ...]]
    """Profile -> firmware identities that reference values allow, lower-case hex."""
    device_ids: Mapping[str, bytes]
    """Device -> DeviceID hash, as far as documents pin it."""


def read_wishes(cluster: Cluster) -> RosterWishes:
    """What a cluster wants. PolicyError or NotFoundError: a profile without reference values, or with two documents."""
    profiles = sorted({device.spec.profile for device in cluster.devices.values()})
    peerings = {
        name: tuple(sorted(side.tenant for side in peering.spec.members)) for name, peering in cluster.peerings.items()
    }
    return RosterWishes(
        tenants={name: cluster.tenants_on(name) for name in cluster.devices},
        networks=dict.fromkeys(sorted(cluster.tenants), ()) | peerings,
        fwids={
            profile: tuple(
                sorted({one for each in values.fwids.values() for one in (*each.digests, *each.vulnerable_digests)})
            )
            for profile in profiles
            for values in [reference_values_for(cluster, profile)]
        },
        device_ids={
            name: bytes.fromhex(device.spec.device_id_sha256)
            for name, device in cluster.devices.items()
            if device.spec.device_id_sha256
        },
    )


def plan_roster(
    wishes: RosterWishes,
    *,
    trust_domain: str,
    before: Roster | None,
    device_ids: Mapping[str, bytes],
    draw_network_id: Callable[[], bytes],
) -> Roster:
    """The roster to sign; `before` itself when it says all of it already.

    `device_ids` are what the operator says, beyond what documents pin and what `before` has.

    Raises:
        PolicyRefusedError: a device whose DeviceID nobody knows, or two words about one.

    """
    networks = {one.tenant: one for one in before.networks} if before else {}
    wanted = replace(
        before or Roster(serial=0, trust_domain=trust_domain, devices=(), networks=()),
        trust_domain=trust_domain,
        devices=_devices(wishes, before, device_ids),
        networks=tuple(
            networks[name]
            if name in networks and networks[name].members == members
            else RosterNetwork(tenant=name, network_id=draw_network_id(), generation=1, members=members)
            for name, members in sorted(wishes.networks.items())
        ),
        fwids=dict(wishes.fwids),
    )
    if before is not None and not describe_changes(before, wanted):
        return before
    return replace(wanted, serial=wanted.serial + 1)


def _devices(wishes: RosterWishes, before: Roster | None, device_ids: Mapping[str, bytes]) -> tuple[RosterDevice, ...]:
    known = {one.name: one.device_id_sha256 for one in before.devices} if before else {}
    faults: list[PolicyError] = []
    devices = []
    for name, tenants in sorted(wishes.tenants.items()):
        said = {source[name] for source in (wishes.device_ids, device_ids) if name in source}
        if len(said) > 1:
            faults.append(PolicyError(f"{name}: its document pins another DeviceID", remedy="find out which is right"))
        elif said or name in known:
            devices.append(
                RosterDevice(name=name, device_id_sha256=next(iter(said), known.get(name, b"")), tenants=tenants)
            )
        else:
            faults.append(
                PolicyError(
                    f"{name}: its DeviceID is not known",
                    remedy=f"pin deviceIdSha256 in its document, or --device-id {name}=HASH "
                    "(`ztdpu device show` tells it once it attested)",
                )
            )
    faults += [
        PolicyError(f"{name}: the policy has no such device", remedy="leave its --device-id away")
        for name in sorted(device_ids.keys() - wishes.tenants.keys())
    ]
    if faults:
        raise PolicyRefusedError(tuple(faults))
    return tuple(devices)


def describe_changes(before: Roster | None, after: Roster) -> tuple[str, ...]:
    """One line for each difference, `+`, `-` or `~` first; the serial is none."""
    lines: list[str] = []
    if before is not None and before.trust_domain != after.trust_domain:
        lines.append(f"~ trust domain  {before.trust_domain} -> {after.trust_domain}")
    old_devices, new_devices = (
        {one.name: _device_words(one) for one in it.devices} if it else {} for it in (before, after)
    )
    lines += _differences("device", old_devices, new_devices)
    old_networks, new_networks = (
        {one.tenant: _network_words(one) for one in it.networks} if it else {} for it in (before, after)
    )
    lines += _differences("network", old_networks, new_networks)
    old_fwids, new_fwids = (
        {f"{profile} {one[:16]}...": "" for profile, digests in it.fwids.items() for one in digests} if it else {}
        for it in (before, after)
    )
    lines += _differences("firmware", old_fwids, new_fwids)
    return tuple(lines)


def _differences(what: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    lines = []
    for name in sorted(before.keys() | after.keys()):
        if name not in before:
            lines.append(f"+ {what}  {name}  {after[name]}".rstrip())
        elif name not in after:
            lines.append(f"- {what}  {name}  {before[name]}".rstrip())
        elif before[name] != after[name]:
            lines.append(f"~ {what}  {name}  {before[name]} -> {after[name]}")
    return lines


def _device_words(device: RosterDevice) -> str:
    return f"{device.device_id_sha256.hex()[:16]}... hosts {', '.join(sorted(device.tenants)) or 'nobody'}"


def _network_words(network: RosterNetwork) -> str:
    between = f" between {' and '.join(sorted(network.members))}" if network.members else ""
    return f"{network.network_id.hex()} generation {network.generation}{between}"
