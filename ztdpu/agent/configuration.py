"""The agent's start-up file: what a device believes before it has spoken to anybody.

Read once by `agent.run` through the strict loader. Everything that anchors trust (domain, control's CA,
manufacturer roots, operator keys) comes from here and from nowhere else. Holds no secret, does no I/O.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from ztdpu.keys.lease import LEASE_S_MAX
from ztdpu.policy.startup import UNDERLAY_MTU_OCTETS, AddressAndPort, TrustDomain, UnderlayMtu
from ztdpu.psp import UDP_PORT

NAME_PATTERN: Final = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class ControlSection(_Strict):
    """Where control is and what makes it control."""

    enrolment: AddressAndPort
    """Server TLS and attestation."""
    main: AddressAndPort
    """Mutual TLS with SVIDs."""
    bundle_file: Path
    """PEM certificates of control's own authority."""


class UnderlaySection(_Strict):
    """Where this device stands on the untrusted network."""

    address: IPv4Address | IPv6Address
    mtu_octets: UnderlayMtu = UNDERLAY_MTU_OCTETS
    port: int = Field(default=UDP_PORT, ge=1, le=65_535)
    """UDP port of PSP, here and at every peer. Another than PSP's own only where nobody may bind that (labs without
    privilege): the tables do not carry it."""


class RootOfTrustSection(_Strict):
    """The emulated root of trust; its process alone reads the secrets file."""

    secrets_file: Path
    profile: str
    fault: Literal["firmware-altered"] | None = None
    """Boot with a fault, to see it refused. Emulation only."""
    fault_socket: Path | None = None
    """Where `ztdpu lab fault` makes the device misbehave. Labs only; without it there is no such door."""


class VirtualFunctionsSection(_Strict):
    """Who makes virtual functions for endpoints."""

    factory_socket: Path


class AgentSpec(_Strict):
    """The body of the start-up file."""

    device: str = Field(pattern=NAME_PATTERN)
    trust_domain: TrustDomain
    state_dir: Path
    """Run-time directory, made 0700; holds sockets, never a key."""
    floors_dir: Path | None = None
    """Where the floors are kept below which nothing is believed again; must outlive a reboot. None: `state_dir`."""
    control: ControlSection
    manufacturer_roots_file: Path
    roster_keys_file: Path
    """Operators' public keys, one OpenSSH line each."""
    underlay: UnderlaySection
    root_of_trust: RootOfTrustSection
    virtual_functions: VirtualFunctionsSection
    sidecar_dir: Path | None = None
    """A directory per endpoint lies here, with its api.sock; None: below `state_dir`."""
    join_token_file: Path | None = None
    max_lease_s: int = Field(default=LEASE_S_MAX, ge=1, le=LEASE_S_MAX)
    """The device's own bound on any lease, whatever control grants."""

    @property
    def sidecar_folder(self) -> Path:
        """Where the directories of endpoints lie."""
        return self.sidecar_dir or self.state_dir / "sidecar"

    @property
    def floors_folder(self) -> Path:
        """Where the floors are kept."""
        return self.floors_dir or self.state_dir


class AgentConfiguration(_Strict):
    """The start-up file as a whole."""

    api_version: Literal["ztdpu.dev/v1"]
    kind: Literal["AgentConfiguration"]
    spec: AgentSpec
