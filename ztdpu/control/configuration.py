"""The control service's start-up file (`ztdpu control run --config FILE`), read by `policy.load.read_strict`.

Unknown fields are refused. Nothing here changes at run time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from ztdpu.keys.lease import LEASE_S_MAX, LEASE_S_MIN
from ztdpu.policy.startup import UNDERLAY_MTU_OCTETS, Listener, TrustDomain, UnderlayMtu


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

    @model_validator(mode="after")
    def _one_attestation_may_fail(self) -> Self:
        """Refuse what would let healthy devices go dark between two attestations."""
        for name, lasts_s in (("leaseS", self.lease_s), ("svidS", self.svid_s)):
            if self.interval_s * 2 > lasts_s:
                raise ValueError(
                    f"intervalS {self.interval_s:g} is more than half of {name} {lasts_s:g}: "
                    f"lower intervalS to {lasts_s / 2:g} or raise {name} to {self.interval_s * 2:g}"
                )
        return self


class Specification(Section):
    """Everything below `spec`."""

    trust_domain: TrustDomain
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
    underlay_mtu_octets: UnderlayMtu = UNDERLAY_MTU_OCTETS
    """What the network between devices carries in one packet; endpoints get what is left after PSP."""
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
