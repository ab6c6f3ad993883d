"""Desired state: policy directory and roster, read together, compiled together, replaced together or not at all.

Called at start and on `policy sync`. A fault anywhere leaves the last good state in force. Control cannot write
any of it: policy is files, the roster is signed by operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from ztdpu.control.configuration import Specification
from ztdpu.errors import ConfigurationError, Location, PolicyError, PolicyRefusedError, RosterError, ZtdpuError
from ztdpu.model.attestation import Tier
from ztdpu.model.tenant import Network
from ztdpu.policy.cluster import Cluster
from ztdpu.policy.compile import CompiledTables, Compiler
from ztdpu.policy.load import load_directory
from ztdpu.policy.references import appraisal_policy_for, reference_values_for, tiers_of_networks
from ztdpu.policy.tests import run_tests
from ztdpu.trust.certificate import load_anchors
from ztdpu.trust.reference import AppraisalPolicy, ReferenceValues
from ztdpu.trust.roster import Roster, verify_roster
from ztdpu.trust.sshsig import parse_public_keys

FILE_LIMIT_OCTETS: Final = 1024 * 1024

_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """Everything that files say, ready to use."""

    cluster: Cluster
    roster: Roster
    roster_octets: bytes
    """As signed."""
    roster_signature: bytes
    networks: Mapping[str, Network]
    """By tenant or Peering, from the roster."""
    tables: Mapping[str, CompiledTables] = field(default_factory=dict)
    """By device."""
    references: Mapping[str, ReferenceValues] = field(default_factory=dict)
    """By device."""
    appraisal: Mapping[str, AppraisalPolicy] = field(default_factory=dict)
    """By device."""
    manufacturer_roots: tuple[x509.Certificate, ...] = ()
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """Of all devices, in order."""
    _listed: Mapping[str, bytes] = field(init=False, repr=False, compare=False)
    """Device -> DeviceID hash of the roster."""
    _members: Mapping[str, frozenset[str]] = field(init=False, repr=False, compare=False)
    """Network -> its devices."""
    _networks: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)
    """Device -> its networks."""
    _refusing: Mapping[str, frozenset[str]] = field(init=False, repr=False, compare=False)
    """Word of a tier -> networks that do not allow it."""
    _peers: dict[str, tuple[str, ...]] = field(init=False, repr=False, compare=False, default_factory=dict)
    """Device -> its peers, of those that were asked for. Nothing here ever changes."""

    def __post_init__(self) -> None:
        """Index what is asked for with every message of an agent: a look must not cost what the fleet is large."""
        networks: dict[str, list[str]] = {}
        members: dict[str, set[str]] = {}
        for endpoint in self.cluster.endpoints.values():
            members.setdefault(endpoint.tenant, set()).add(endpoint.device)
        for peering in self.cluster.peerings:
            members[peering] = set(self.cluster.devices_in(peering))
        for name in sorted(members):
            for device in members[name]:
                networks.setdefault(device, []).append(name)
        tiers = tiers_of_networks(self.cluster)
        refusing = {
            tier.word: frozenset(name for name, allowed in tiers.items() if tier not in allowed) for tier in Tier
        }
        object.__setattr__(self, "_refusing", refusing)
        listed = {one.name: one.device_id_sha256 for one in self.roster.devices}
        object.__setattr__(self, "names", tuple(sorted(self.cluster.devices)))
        object.__setattr__(self, "_listed", listed)
        object.__setattr__(self, "_members", {name: frozenset(devices) for name, devices in members.items()})
        object.__setattr__(self, "_networks", {device: tuple(names) for device, names in networks.items()})

    def tenants_on(self, device: str) -> tuple[str, ...]:
        """Tenants with an endpoint on the device."""
        return self.cluster.tenants_on(device)

    def networks_on(self, device: str) -> tuple[str, ...]:
        """Tenants with an endpoint on the device and Peerings with a member on it: names of its networks."""
        return self._networks.get(device, ())

    def withheld_on(self, device: str, tier: str) -> frozenset[str]:
        """Networks of the device that do not allow this tier (its word): the tenant, or a member of a Peering."""
        refusing = self._refusing.get(tier)
        networks = self.networks_on(device)
        return frozenset(networks) if refusing is None else refusing.intersection(networks)

    def network_ids(self, names: Iterable[str]) -> tuple[bytes, ...]:
        """Ids of these networks, in order; one without a place in the roster has none."""
        return tuple(sorted(self.networks[name].network_id for name in names if name in self.networks))

    def peers_of(self, device: str) -> tuple[str, ...]:
        """Devices that share a network with it, by name."""
        peers = self._peers.get(device)
        if peers is None:
            shared = frozenset[str]().union(*(self._members[network] for network in self.networks_on(device)))
            peers = self._peers[device] = tuple(sorted(shared - {device}))
        return peers

    def pins_of(self, device: str) -> tuple[bytes | None, bytes | None]:
        """(DeviceID hash of the document, that of the roster); None where one does not say."""
        pinned = self.cluster.devices[device].spec.device_id_sha256
        return (bytes.fromhex(pinned) if pinned else None), self._listed.get(device)


def load_desired(spec: Specification, *, lowest_roster_serial: int) -> Desired:
    """Read policy directory and roster anew.

    Raises:
        PolicyRefusedError: every fault found, each with its place.
        ConfigurationError: roster keys or manufacturer roots cannot be read.

    """
    assert spec.policy_dir is not None
    return build_desired(spec, partial(_load_tested, spec.policy_dir), lowest_roster_serial=lowest_roster_serial)


def failed_tests(cluster: Cluster, *, before: Cluster | None = None) -> tuple[PolicyError, ...]:
    """Run the cluster's policy tests, and those of the cluster before it: nobody deletes a test to pass it."""
    runs = [("", run_tests(cluster))]
    if before is not None:
        remark = " (a test of the policy in force; change the test first, in a commit of its own)"
        runs.append((remark, run_tests(cluster, tests_of=before)))
    faults: dict[tuple[str, str], PolicyError] = {}
    for remark, results in runs:
        for result in results:
            if not result.passed:
                text = f"policy test {result.test}: {result.line}: {result.detail}{remark}"
                faults.setdefault((result.test, result.line), PolicyError(text, where=result.where))
    return tuple(faults.values())


def build_desired(spec: Specification, load: Callable[[], Cluster], *, lowest_roster_serial: int) -> Desired:
    """Compile what `load` gives, together with the roster as it is on disk now.

    Raises:
        PolicyRefusedError: every fault found, each with its place.
        ConfigurationError: roster keys or manufacturer roots cannot be read.

    """
    faults: list[PolicyError] = []
    cluster = _gather(faults, load)
    roster_octets, signature = _read(spec.roster_file), _read(spec.roster_signature_file)
    roster = _gather(faults, lambda: _verify(spec, roster_octets, signature, lowest_roster_serial))
    if cluster is None or roster is None:
        raise PolicyRefusedError(tuple(faults))
    networks = {
        one.tenant: Network(tenant=one.tenant, network_id=one.network_id, generation=one.generation)
        for one in roster.networks
    }
    _check_roster_agrees(cluster, roster, spec.roster_file, faults)
    _check_leases(cluster, spec.attestation.interval_s, faults)
    tables: dict[str, CompiledTables] = {}
    references: dict[str, ReferenceValues] = {}
    appraisal: dict[str, AppraisalPolicy] = {}
    compiler = Compiler(cluster, networks, underlay_mtu_octets=spec.underlay_mtu_octets)
    for name, device in cluster.devices.items():
        compiled = _gather(faults, partial(compiler.compile, name))
        values = _gather(faults, partial(reference_values_for, cluster, device.spec.profile))
        policy = _gather(faults, partial(appraisal_policy_for, cluster, cluster.tenants_on(name)))
        if compiled is not None and values is not None and policy is not None:
            tables[name], references[name], appraisal[name] = compiled, values, policy
    if faults:
        raise PolicyRefusedError(tuple(faults))
    return Desired(
        cluster=cluster,
        roster=roster,
        roster_octets=roster_octets,
        roster_signature=signature,
        networks=networks,
        tables=tables,
        references=references,
        appraisal=appraisal,
        manufacturer_roots=load_manufacturer_roots(spec.manufacturer_roots_file),
    )


def load_manufacturer_roots(path: Path) -> tuple[x509.Certificate, ...]:
    """PEM bundle of pinned roots; ConfigurationError when it holds none."""
    try:
        return load_anchors(_read(path))
    except ValueError as error:
        raise ConfigurationError(
            f"no roots in it: {error}", remedy="give a PEM bundle", where=Location(file=str(path), line=0)
        ) from error


def _load_tested(directory: Path) -> Cluster:
    cluster = load_directory(directory)
    failed = failed_tests(cluster)
    if failed:
        raise PolicyRefusedError(failed)
    return cluster


def _gather(faults: list[PolicyError], make: Callable[[], _Made]) -> _Made | None:
    """Do one step; keep what went wrong and go on, so that one run names every fault."""
    try:
        return make()
    except PolicyRefusedError as error:
        faults.extend(error.faults)
    except PolicyError as error:
        faults.append(error)
    except ConfigurationError:
        raise
    except ZtdpuError as error:
        faults.append(PolicyError(error.message, remedy=error.remedy, where=error.where))
    return None


def _verify(spec: Specification, octets: bytes, signature: bytes, lowest_serial: int) -> Roster:
    keys = _operator_keys(spec.roster_keys_file)
    try:
        text = signature.decode("ascii")
    except UnicodeDecodeError:
        raise RosterError("the signature is not armoured text") from None
    return verify_roster(octets, text, keys, lowest_serial, trust_domain=spec.trust_domain)


def _operator_keys(path: Path) -> Sequence[Ed25519PublicKey]:
    return parse_public_keys(_read(path).decode("utf-8", errors="replace"), file=str(path))


def _check_leases(cluster: Cluster, interval_s: float, faults: list[PolicyError]) -> None:
    """A tenant's lease that one failed attestation would end can never be kept: healthy devices would go dark."""
    for name, tenant in cluster.tenants.items():
        lease_s = tenant.spec.lease_s
        if lease_s is not None and lease_s < 2 * interval_s:
            faults.append(
                PolicyError(
                    f"leaseS {lease_s} is less than two attestation intervals of control ({interval_s:g} s)",
                    remedy=f"raise it to {2 * interval_s:g}, or lower intervalS in control's start-up file",
                    where=cluster.locate("Tenant", name, ("spec", "leaseS")),
                )
            )


def _check_roster_agrees(cluster: Cluster, roster: Roster, file: Path, faults: list[PolicyError]) -> None:
    """A placement that agents would refuse is refused here, with the line that asks for it."""
    listed = {device.name: device for device in roster.devices}
    for name, endpoint in cluster.endpoints.items():
        device = listed.get(endpoint.device)
        if device is not None and endpoint.tenant in device.tenants:
            continue
        faults.append(
            PolicyError(
                f"the roster does not let {endpoint.device} host tenant {endpoint.tenant}",
                remedy=f"have an operator sign a roster that does ({file})",
                where=cluster.locate("Endpoint", name, ("spec", "device")),
            )
        )
    signed = {one.tenant: frozenset(one.members) for one in roster.networks}
    for name, peering in cluster.peerings.items():
        members = frozenset(member.tenant for member in peering.spec.members)
        if name in signed and signed[name] != members:
            faults.append(
                PolicyError(
                    f"the roster has {name} between {' and '.join(sorted(signed[name])) or 'nobody: it is a tenant'}",
                    remedy=f"have an operator sign a roster that agrees ({file})",
                    where=cluster.locate("Peering", name, ("spec", "members")),
                )
            )
    for name, document in cluster.devices.items():
        pinned = document.spec.device_id_sha256
        if name in listed and pinned and bytes.fromhex(pinned) != listed[name].device_id_sha256:
            faults.append(
                PolicyError(
                    "deviceIdSha256 differs from the roster's",
                    remedy="find out which is right",
                    where=cluster.locate("Device", name, ("spec", "deviceIdSha256")),
                )
            )


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_LIMIT_OCTETS + 1)
    except OSError as error:
        raise ConfigurationError(
            f"cannot be read: {error.strerror}",
            remedy="mend the path or the rights",
            where=Location(file=str(path), line=0),
        ) from error
    if len(content) > FILE_LIMIT_OCTETS:
        raise ConfigurationError(f"longer than {FILE_LIMIT_OCTETS} octets", where=Location(file=str(path), line=0))
    return content
