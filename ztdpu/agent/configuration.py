"""The agent's start-up file: what a device believes before it has spoken to anybody.

Read once by `agent.run` through the strict loader. Everything that anchors trust (domain, control's CA,
manufacturer roots, operator keys) comes from here and from nowhere else. Holds no secret, does no I/O.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from ztdpu.keys.lease import LEASE_S_MAX

NAME_PATTERN: Final = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
TRUST_DOMAIN_PATTERN: Final = r"^[a-z0-9]([a-z0-9._-]{0,253}[a-z0-9])?$"


def _check_address_and_port(text: str) -> str:
    """Accept `192.0.2.1:7401` and `[2001:db8::1]:7401`; names are refused, since resolving them trusts a resolver."""
    host, separator, port = text.rpartition(":")
    if not separator or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError("expected ADDRESS:PORT, such as 10.91.0.1:7401 or [fd00::1]:7401")
    bracketed = host.startswith("[") and host.endswith("]")
    address = ip_address(host[1:-1] if bracketed else host)
    if bracketed != (address.version == 6):
        raise ValueError("write an IPv6 address in brackets, such as [fd00::1]:7401, and an IPv4 address without")
    return text


AddressAndPort = Annotated[str, AfterValidator(_check_address_and_port)]


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
    mtu_octets: int = Field(default=9000, ge=1280, le=65535)


class RootOfTrustSection(_Strict):
    """The emulated root of trust; its process alone reads the secrets file."""

    secrets_file: Path
    profile: str
    fault: Literal["firmware-altered"] | None = None
    """Boot with a fault, to see it refused. Emulation only."""


class VirtualFunctionsSection(_Strict):
    """Who makes virtual functions for endpoints."""

    factory_socket: Path


class AgentSpec(_Strict):
    """The body of the start-up file."""

    device: str = Field(pattern=NAME_PATTERN)
    trust_domain: str = Field(pattern=TRUST_DOMAIN_PATTERN)
    state_dir: Path
    """Run-time directory, made 0700; holds sockets and the highest roster serial, never a key."""
    control: ControlSection
    manufacturer_roots_file: Path
    roster_keys_file: Path
    """Operators' public keys, one OpenSSH line each."""
    underlay: UnderlaySection
    root_of_trust: RootOfTrustSection
    virtual_functions: VirtualFunctionsSection
    join_token_file: Path | None = None
    max_lease_s: int = Field(default=LEASE_S_MAX, ge=1, le=LEASE_S_MAX)
    """The device's own bound on any lease, whatever control grants."""


class AgentConfiguration(_Strict):
    """The start-up file as a whole."""

    api_version: Literal["ztdpu.dev/v1"]
    kind: Literal["AgentConfiguration"]
    spec: AgentSpec
