"""Everything that exists before the first process of a lab starts: devices, operator, roster, start-up files.

Called by `cluster`. Plays three parts that are people and factories outside a lab: the manufacturer (device
secrets, certificates), the operator (roster and its signature) and the installer (start-up files). Secrets
stay in the state directory: the manufacturer's key is dropped, the operator's is 0600, a device's secrets lie
in that device's directory, owned by its uid range.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from ztdpu.lab.documents import write_yaml
from ztdpu.lab.layout import (
    ENROLMENT_PORT,
    MAIN_PORT,
    METRICS_PORT,
    OOB_CONTROL,
    TRUST_DOMAIN,
    DevicePlan,
    LabPlan,
)
from ztdpu.policy.roster_file import RosterWishes, plan_roster
from ztdpu.trust.firmware import compute_fwid, default_firmware, measure
from ztdpu.trust.manufacture import DeviceSecrets, create_manufacturer, encode_secrets
from ztdpu.trust.profile import Profile, load_profile
from ztdpu.trust.roster import encode_roster, sign_roster

API_VERSION: Final = "ztdpu.dev/v1"
BUNDLE: Final = "control.pem"
ROOTS: Final = "manufacturers.pem"
ROSTER_KEYS: Final = "operators.pub"
ROSTER: Final = "roster.cbor"
ROSTER_SIGNATURE: Final = "roster.sig"
OPERATOR_KEY: Final = "operator.key"
AGENT_FILE: Final = "agent.yaml"
CONTROL_FILE: Final = "control.yaml"
DEVICE_SECRETS: Final = "device-secrets.json"
FAULT_SOCKET: Final = "fault.sock"
POLICY_POLL_S: Final = 1
JOIN_TOKEN: Final = "join-token"  # noqa: S105 - a file name


def make_directories(plan: LabPlan) -> None:
    """Make the state directory's tree; everything private is 0700, a device's part belongs to its uid range."""
    paths = plan.paths
    for directory in (paths.control, paths.secrets, paths.logs):
        directory.mkdir(mode=0o700, parents=True)
    paths.public.mkdir(mode=0o755)
    (paths.state / "devices").mkdir(mode=0o711)
    for device in plan.devices:
        own = [paths.device(device.name), paths.device(device.name) / "endpoints"]
        own += [paths.sidecar(device.name, one.name) for one in plan.endpoints if one.device == device.name]
        for directory in own:
            directory.mkdir(mode=0o755 if directory.parent.name == "endpoints" else 0o700)
            if device.uid_base != os.geteuid():
                os.chown(directory, device.uid_base, device.uid_base)
        write_private(paths.agent_log(device.name), "", owner=device.uid_base)


def manufacture(plan: LabPlan) -> None:
    """Make device secrets, operator key and roster."""
    now = datetime.now(UTC)
    profiles = {name: load_profile(name) for name in sorted({device.profile for device in plan.devices})}
    makers = {
        name: create_manufacturer(profile=profile, random=secrets.token_bytes, now=now)
        for name, profile in profiles.items()
    }
    made: dict[str, DeviceSecrets] = {}
    for device in plan.devices:
        serial, uds = f"EMU{secrets.token_hex(4).upper()}", secrets.token_bytes(32)
        made[device.name] = makers[device.profile].make_device(serial=serial, uds=uds, now=now)
        path = plan.paths.device(device.name) / DEVICE_SECRETS
        write_private(path, encode_secrets(made[device.name]), owner=device.uid_base)
    (plan.paths.public / ROOTS).write_text("".join(maker.root_pem() for maker in makers.values()))
    _sign_roster(plan, profiles, made)


def _sign_roster(plan: LabPlan, profiles: Mapping[str, Profile], made: Mapping[str, DeviceSecrets]) -> None:
    wishes = RosterWishes(
        tenants={
            device.name: tuple(sorted({e.tenant for e in plan.endpoints if e.device == device.name}))
            for device in plan.devices
        },
        networks={endpoint.tenant: () for endpoint in plan.endpoints}
        | {peering.name: peering.tenants for peering in plan.peerings},
        fwids={name: _shipped_fwids(profile) for name, profile in profiles.items()},
        device_ids={},
    )
    roster = plan_roster(
        wishes,
        trust_domain=TRUST_DOMAIN,
        before=None,
        device_ids={name: one.device_id_sha256 for name, one in made.items()},
        draw_network_id=lambda: secrets.token_bytes(16),
    )
    operator = Ed25519PrivateKey.generate()
    blob = encode_roster(roster)
    public = plan.paths.public
    (public / ROSTER).write_bytes(blob)
    (public / ROSTER_SIGNATURE).write_text(sign_roster(blob, operator))
    key = operator.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    (public / ROSTER_KEYS).write_text(f"{key} operator of the lab\n")
    secret = operator.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
    write_private(plan.paths.secrets / OPERATOR_KEY, secret)


def _shipped_fwids(profile: Profile) -> tuple[str, ...]:
    blocks = measure(profile, default_firmware(profile))
    levels = (level for level in profile.levels if level.fwid_covers)
    return tuple(sorted(compute_fwid(profile, level, blocks).hex() for level in levels))


def write_start_up_files(plan: LabPlan, *, interval_s: float, lease_s: float) -> None:
    """Write what control and each agent read when they start."""
    paths = plan.paths
    (paths.control / CONTROL_FILE).write_text(
        write_yaml(control_document(plan, interval_s=interval_s, lease_s=lease_s))
    )
    for device in plan.devices:
        text = write_yaml(agent_document(plan, device))
        write_private(paths.device(device.name) / AGENT_FILE, text, owner=device.uid_base)


def control_document(plan: LabPlan, *, interval_s: float, lease_s: float) -> dict[str, Any]:
    """Return control's start-up file."""
    paths = plan.paths
    spec = {
        "trustDomain": TRUST_DOMAIN,
        "stateDir": str(paths.control / "state"),
        **_policy_source(plan),
        "rosterFile": str(paths.public / ROSTER),
        "rosterSignatureFile": str(paths.public / ROSTER_SIGNATURE),
        "rosterKeysFile": str(paths.public / ROSTER_KEYS),
        "manufacturerRootsFile": str(paths.public / ROOTS),
        "listen": {"enrolment": f"{OOB_CONTROL}:{ENROLMENT_PORT}", "main": f"{OOB_CONTROL}:{MAIN_PORT}"},
        "underlayMtuOctets": plan.mtu_octets,
        "adminSocket": str(paths.admin_socket),
        "attestation": {"intervalS": interval_s, "leaseS": lease_s},
        "metricsListen": f"{OOB_CONTROL}:{METRICS_PORT}",
    }
    return {"apiVersion": API_VERSION, "kind": "ControlConfiguration", "spec": spec}


def _policy_source(plan: LabPlan) -> dict[str, Any]:
    if not plan.policy_git:
        return {"policyDir": plan.policy}
    return {"policyGit": {"repository": plan.policy_git, "anchor": plan.policy_anchor, "pollS": POLICY_POLL_S}}


def agent_document(plan: LabPlan, device: DevicePlan) -> dict[str, Any]:
    """Return the start-up file of one agent."""
    paths = plan.paths
    own = paths.device(device.name)
    spec = {
        "device": device.name,
        "trustDomain": TRUST_DOMAIN,
        "stateDir": str(own / "run"),
        "control": {
            "enrolment": f"{OOB_CONTROL}:{ENROLMENT_PORT}",
            "main": f"{OOB_CONTROL}:{MAIN_PORT}",
            "bundleFile": str(paths.public / BUNDLE),
        },
        "manufacturerRootsFile": str(paths.public / ROOTS),
        "rosterKeysFile": str(paths.public / ROSTER_KEYS),
        "underlay": {"address": device.underlay_address, "mtuOctets": plan.mtu_octets},
        "rootOfTrust": {
            "secretsFile": str(own / DEVICE_SECRETS),
            "profile": device.profile,
            "faultSocket": str(own / FAULT_SOCKET),
        },
        "virtualFunctions": {"factorySocket": str(paths.factory_socket(device.name))},
        "joinTokenFile": str(own / JOIN_TOKEN),
        "sidecarDir": str(own / "endpoints"),
    }
    return {"apiVersion": API_VERSION, "kind": "AgentConfiguration", "spec": spec}


def write_private(path: Path, text: str, *, owner: int | None = None) -> None:
    """Write a 0600 file that belongs to `owner` (without one: us); never readable by others, not for a moment."""
    fresh = path.with_name(f".{path.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
        if owner is not None and owner != os.geteuid():
            os.fchown(stream.fileno(), owner, owner)
    os.replace(fresh, path)  # noqa: PTH105 - the atomic call by its name
