"""What is where in a lab: names, addresses, uid ranges, files, commands. Computes, changes nothing.

`cluster` makes a plan from the policy documents, writes it into the state directory, and every other lab
command reads it from there.
"""

from __future__ import annotations

import os
import shlex
import zlib
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import Any, Final

from ztdpu.errors import StateError, UsageError
from ztdpu.rpc.places import LAB_STATE

DEFAULT_STATE: Final = LAB_STATE
DEFAULT_PREFIX: Final = "ztdpu"
DEFAULT_MTU_OCTETS: Final = 9000
TRUST_DOMAIN: Final = "ztdpu.lab"

UID_RANGE: Final = 65_536
FIRST_UID: Final = 0x1000_0000
"""Above what distributions hand out for subordinate ids, below 2^31."""
_LAB_SLOTS: Final = 256
_LABS: Final = 90
LAST_UID: Final = FIRST_UID + (_LABS + 1) * _LAB_SLOTS * UID_RANGE - 1

OOB_CONTROL: Final = IPv4Address("10.91.0.1")
_OOB_DEVICES: Final = IPv4Address("10.91.0.10")
OOB_PREFIX_LENGTH: Final = 16
UNDERLAY_PREFIX_LENGTH: Final = {4: 16, 6: 64}
ENROLMENT_PORT: Final = 7401
MAIN_PORT: Final = 7402
METRICS_PORT: Final = 7403
UNDERLAY_OVERHEAD_OCTETS: Final = {4: 20 + 8 + 16 + 16, 6: 40 + 8 + 16 + 16}
"""Outer IP, UDP, PSP header, ICV."""

_NAME_LIMIT: Final = 200
_SOCKET_PATH_OCTETS: Final = 100
"""A little below the 107 of sockaddr_un."""
PLACES: Final = ("fabric", "oob", "control")
"""Targets that are a network namespace and nothing more."""
SERVICES: Final = ("control", "factory")
"""Processes of the lab outside every device."""
ENCLOSURE: Final = "enclosure"
"""First process of a lab whose host is a user namespace; see the module of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    """One emulated device."""

    name: str
    profile: str
    underlay_address: str
    oob_address: str
    uid_base: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointPlan:
    """One tenant endpoint: a virtual function and the namespaces of the tenant behind it."""

    name: str
    tenant: str
    device: str
    addresses: tuple[str, ...]
    mtu_octets: int
    endpoint_id: str
    """Hex."""
    uid_base: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeeringPlan:
    """A network between some endpoints of two tenants."""

    name: str
    tenants: tuple[str, ...]
    members: tuple[str, ...]
    """Names of endpoints, of both sides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPlan:
    """A whole lab. `state` is its directory, `policy` the directory control reads."""

    state: str
    prefix: str
    mtu_octets: int
    policy: str
    devices: tuple[DevicePlan, ...]
    endpoints: tuple[EndpointPlan, ...]
    peerings: tuple[PeeringPlan, ...] = ()
    policy_git: str = ""
    """Bare git repository that control reads instead of `policy`; empty without one."""
    policy_anchor: str = ""
    """Its first commit."""

    def mates(self, endpoint: EndpointPlan) -> tuple[EndpointPlan, ...]:
        """Everybody who exists for an endpoint: its tenant's endpoints and its partners by Peering."""
        joined = {name for one in self.peerings if endpoint.name in one.members for name in one.members}
        return tuple(one for one in self.endpoints if one.tenant == endpoint.tenant or one.name in joined)

    def namespace(self, target: str) -> str:
        """Name under /run/netns of `fabric`, `control`, `oob`, a device or an endpoint."""
        return f"{self.prefix}-{target}"

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Every name that this lab takes in /run/netns."""
        return tuple(self.namespace(target) for target in (*PLACES, *self.inhabitants))

    @property
    def inhabitants(self) -> tuple[str, ...]:
        """Names of all devices and endpoints."""
        return (*(device.name for device in self.devices), *(endpoint.name for endpoint in self.endpoints))

    def device(self, name: str) -> DevicePlan:
        """Return a device by name; UsageError names the ones there are."""
        for plan in self.devices:
            if plan.name == name:
                return plan
        raise UsageError(
            f"no device {name!r} in this lab", remedy=f"devices: {', '.join(d.name for d in self.devices)}"
        )

    def endpoint(self, name: str) -> EndpointPlan:
        """Return an endpoint by name; UsageError names the ones there are."""
        for plan in self.endpoints:
            if plan.name == name:
                return plan
        known = ", ".join(endpoint.name for endpoint in self.endpoints)
        raise UsageError(f"no endpoint {name!r} in this lab", remedy=f"endpoints: {known}")

    @property
    def paths(self) -> LabPaths:
        """Where this lab keeps its files."""
        return LabPaths(Path(self.state))


@dataclass(frozen=True, slots=True)
class LabPaths:
    """Files of a lab below its state directory (0700)."""

    state: Path

    @property
    def record(self) -> Path:
        """The plan and the processes, JSON; its presence says that the directory is ours to delete."""
        return self.state / "lab.json"

    @property
    def control(self) -> Path:
        """Control's own directory, 0700."""
        return self.state / "control"

    @property
    def admin_socket(self) -> Path:
        """Where the local command line reaches control."""
        return self.control / "admin.sock"

    @property
    def policy(self) -> Path:
        """The policy documents this lab runs with: a copy, and generated documents."""
        return self.state / "policy"

    @property
    def secrets(self) -> Path:
        """Keys of the manufacturer and the operator: host root only."""
        return self.state / "secrets"

    @property
    def public(self) -> Path:
        """Certificates and public keys that every device may read."""
        return self.state / "public"

    @property
    def logs(self) -> Path:
        """Logs of control, factory and every agent."""
        return self.state / "logs"

    @property
    def control_log(self) -> Path:
        """What control wrote."""
        return self.logs / "control.log"

    @property
    def factory_log(self) -> Path:
        """What the virtual function factory wrote."""
        return self.logs / "factory.log"

    @property
    def wire_log(self) -> Path:
        """What the wire of a lab without privilege wrote."""
        return self.logs / "wire.log"

    def device(self, name: str) -> Path:
        """The directory of a device: owned by its uid range, the only part of the state that it can see and write."""
        return self.state / "devices" / name

    def agent_log(self, name: str) -> Path:
        """What the agent of a device wrote; the one file here that the device sees and writes."""
        return self.logs / f"{name}.log"

    def factory_socket(self, name: str) -> Path:
        """Where a device asks for its virtual functions."""
        return self.device(name) / "factory.sock"

    def sidecar(self, device: str, endpoint: str) -> Path:
        """The sidecar directory of an endpoint: the device serves sockets in it, the tenant sees no other."""
        return self.device(device) / "endpoints" / endpoint


def uid_base(state: str, prefix: str, slot: int) -> int:
    """First host uid of the `slot`-th inhabitant; labs of other names get other ranges."""
    lab = zlib.crc32(f"{state}\0{prefix}".encode()) % _LABS
    return FIRST_UID + (lab * _LAB_SLOTS + slot) * UID_RANGE


def oob_address(index: int) -> str:
    """Address of the `index`-th device on the out-of-band network."""
    return str(_OOB_DEVICES + index)


def gso_limit_octets(mtu_octets: int) -> int:
    """Largest super-packet whose sealed segments still fit one UDP send of 65,507 octets.

    Each segment repeats up to 120 octets of inner headers and gains 32 of PSP.
    """
    payload = max(mtu_octets - 120, 1)
    return min(65_507 * payload // (payload + 152), 65_000)


def check_names(names: tuple[str, ...]) -> None:
    """Refuse two inhabitants of one name, and names that the lab itself uses (UsageError)."""
    seen: set[str] = set()
    for name in names:
        if name in seen or name in {*PLACES, *SERVICES, ENCLOSURE}:
            raise UsageError(
                f"name {name!r} is taken twice in this lab",
                remedy="devices, endpoints and the lab's own fabric, control, oob and factory share one list of names",
            )
        if len(name) > _NAME_LIMIT or "/" in name:
            raise UsageError(f"name {name!r} cannot name a namespace", remedy="shorten it")
        seen.add(name)


def check_socket_paths(plan: LabPlan) -> None:
    """Refuse a state directory that lies so deep that sockets in it cannot be named (UsageError)."""
    paths = plan.paths
    sockets = [paths.admin_socket, *(paths.device(device.name) / "run" / "binding.sock" for device in plan.devices)]
    longest = max((str(path) for path in sockets), key=lambda path: len(path.encode()))
    if len(longest.encode()) > _SOCKET_PATH_OCTETS:
        raise UsageError(
            f"{longest} is too long for a socket: {len(longest.encode())} octets, at most {_SOCKET_PATH_OCTETS}",
            remedy="choose a shorter --state, such as one in /run",
        )


def port_name(index: int, device: str) -> str:
    """Name of a bridge port: the device's own name where it fits (15 octets), its number otherwise."""
    return device if len(device.encode()) <= 15 else f"port{index}"


def encode_plan(plan: LabPlan) -> dict[str, Any]:
    """Return the plan as a JSON document."""
    return asdict(plan)


def decode_plan(document: dict[str, Any]) -> LabPlan:
    """Read a plan back. StateError when the file is not one of this version."""
    try:
        return LabPlan(
            state=document["state"],
            prefix=document["prefix"],
            mtu_octets=document["mtu_octets"],
            policy=document["policy"],
            devices=tuple(DevicePlan(**device) for device in document["devices"]),
            endpoints=tuple(
                EndpointPlan(**{**endpoint, "addresses": tuple(endpoint["addresses"])})
                for endpoint in document["endpoints"]
            ),
            peerings=tuple(
                PeeringPlan(name=one["name"], tenants=tuple(one["tenants"]), members=tuple(one["members"]))
                for one in document["peerings"]
            ),
            policy_git=document["policy_git"],
            policy_anchor=document["policy_anchor"],
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise StateError("the plan of this lab is not one of this version", remedy="ztdpu lab down") from error


def lab_command(verb: str, state: Path | str, rest: str = "", *, prefix: str = DEFAULT_PREFIX) -> str:
    """Return a `ztdpu lab` command that works as it is printed: it names the lab where that is not the usual one."""
    words = ["ztdpu", "lab", verb]
    if Path(state) != DEFAULT_STATE:
        words += ["--state", shlex.quote(str(state))]
    if verb == "up" and prefix != DEFAULT_PREFIX:
        words += ["--prefix", shlex.quote(prefix)]
    return " ".join([*words, rest]).rstrip()


def real_path(state: Path) -> Path:
    """The one name of a state directory, whichever way it was written."""
    return Path(os.path.realpath(state))


def family(address: str) -> int:
    """4 or 6."""
    return ip_address(address).version
