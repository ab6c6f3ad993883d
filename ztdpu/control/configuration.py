"""The control service's start-up file (`ztdpu control run --config FILE`), read by `policy.load.read_strict`.

Unknown fields are refused. Nothing here changes at run time.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from ztdpu.keys.lease import LEASE_S_MAX, LEASE_S_MIN

TRUST_DOMAIN_PATTERN = r"^[a-z0-9]([a-z0-9._-]{0,253}[a-z0-9])?$"


def _check_listener(value: str) -> str:
    host, separator, port = value.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not separator or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"`{value}` is not ADDRESS:PORT")
    address = ipaddress.ip_address(host[1:-1] if bracketed else host)
    if (address.version == 6) != bracketed:
        raise ValueError(f"`{value}`: an IPv6 address stands in brackets, an IPv4 address does not")
    return value


Listener = Annotated[str, AfterValidator(_check_listener)]


class Section(BaseModel):
    """Base of all sections: camelCase in the file, unknown fields refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class Listen(Section):
    """Addresses of the two TLS ports; port 0 takes any free one."""

    enrolment: Listener
    """Server TLS only: agents without an identity attest here."""
    main: Listener
    """Mutual TLS with SVIDs."""


class Attestation(Section):
    """How often devices attest and how long what they get lasts."""

    interval_s: float = Field(default=10, ge=0.2, le=1800, alias="intervalS")
    lease_s: float = Field(default=60, ge=LEASE_S_MIN, le=LEASE_S_MAX, alias="leaseS")
    svid_s: int = Field(default=600, ge=5, le=3600, alias="svidS")
    """Life of a device's X.509-SVID."""


class Specification(Section):
    """Everything below `spec`."""

    trust_domain: str = Field(pattern=TRUST_DOMAIN_PATTERN)
    state_dir: Path
    """0700: authority, EAR key, store."""
    policy_dir: Path
    roster_file: Path
    roster_signature_file: Path
    roster_keys_file: Path
    """OpenSSH public keys of operators, one a line."""
    manufacturer_roots_file: Path
    """PEM bundle of device manufacturers' root certificates."""
    listen: Listen
    admin_socket: Path
    """UNIX socket; its directory is made 0700."""
    attestation: Attestation = Attestation()
    metrics_listen: Listener | None = None
    """Prometheus, plain HTTP; absent: none."""


class ControlConfiguration(Section):
    """The document as a whole."""

    api_version: Literal["ztdpu.dev/v1"]
    kind: Literal["ControlConfiguration"]
    spec: Specification
