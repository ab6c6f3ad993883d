"""The control service's start-up file (`ztdpu control run --config FILE`), read by `policy.load.read_strict`.

Unknown fields are refused. Nothing here changes at run time.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from ztdpu.keys.lease import LEASE_S_MAX, LEASE_S_MIN
from ztdpu.policy.startup import UNDERLAY_MTU_OCTETS, Listener, TrustDomain, UnderlayMtu

_SSH_PATH: Final = re.compile(r"[\w./+:,@=-]+")
"""Paths that OpenSSH reads as they stand: it splits at blanks, and expands %, ~ and $."""


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
    workload_svid_s: int = Field(default=300, ge=4, le=3600, alias="workloadSvidS")
    """Life of an X.509-SVID of an endpoint or a rank; JWT-SVIDs live at most 300 s."""

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


class GitPolicy(Section):
    """Policy from signed commits of a git repository."""

    repository: str = Field(max_length=1024)
    """An absolute path, or an URL: `file://`, `ssh://USER@HOST/PATH`, `https://`."""
    ref: str = Field(default="refs/heads/main", pattern=r"^refs/heads/[A-Za-z0-9][A-Za-z0-9._/-]{0,199}$")
    """The branch, in full. A tag is refused: it can be moved without a trace."""
    anchor: str = Field(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")
    """Id of the first commit that is believed, in full. Everything after it is verified."""
    poll_s: float = Field(default=30, ge=0.2, le=86_400, alias="pollS")
    """Seconds between two looks at the repository, a tenth more or less."""
    deadline_s: float = Field(default=30, ge=1, le=600, alias="deadlineS")
    """Seconds that each step of a look may take (asking, fetching, reading objects); git is ended then."""
    deploy_key_file: Path | None = None
    """Private key for `ssh://`, without a passphrase."""
    known_hosts_file: Path | None = None
    """Host keys for `ssh://`; any other host key is refused."""
    ca_file: Path | None = None
    """PEM bundle of the only authorities for `https://`; absent: those that the machine trusts."""
    revoked_signers_file: Path | None = None
    """Public keys or SHA256 fingerprints, one a line, that are refused at once, whatever the repository says."""

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        """Refuse what git would ask a person about, or take for an option."""
        scheme, separator, rest = self.repository.partition("://")
        if not separator and not self.repository.startswith("/"):
            raise ValueError("repository is neither an absolute path nor an URL (file://, ssh://, https://)")
        if separator and (scheme not in ("file", "ssh", "https") or not rest or rest.startswith("-")):
            raise ValueError(f"repository: {scheme}:// is not fetched from; use file://, ssh:// or https://")
        if any(character.isspace() or not character.isprintable() for character in self.repository):
            raise ValueError("repository has a space or a control character in it")
        if scheme == "ssh" and separator and not (self.deploy_key_file and self.known_hosts_file):
            raise ValueError("ssh:// wants deployKeyFile and knownHostsFile: nobody is there to be asked")
        for file in filter(None, (self.deploy_key_file, self.known_hosts_file)):
            if not _SSH_PATH.fullmatch(str(file)):
                raise ValueError(f"{file}: ssh would read another path; use letters, digits and ./_+:,@=- only")
        if self.ca_file and scheme != "https":
            raise ValueError("caFile is for https:// only")
        if ".." in self.ref or self.ref.endswith(("/", ".", ".lock")) or "//" in self.ref:
            raise ValueError("ref is not a name of a branch")
        return self


class Specification(Section):
    """Everything below `spec`."""

    trust_domain: TrustDomain
    state_dir: Path
    """0700: authority, EAR key, store."""
    policy_dir: Path | None = None
    """Directory of policy files; give this or `policyGit`."""
    policy_git: GitPolicy | None = None
    """Git repository of policy files."""
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
    floor_file: Path | None = None
    """Where the highest generation is remembered outside of the store; default: in the state directory. Name a place
    that no backup of the store puts back: that is how a store that went back is noticed."""
    attestation: Attestation = Attestation()
    authority_life_s: int = Field(default=365 * 86_400, ge=30, le=10 * 365 * 86_400, alias="authorityLifeS")
    """Life of an authority that is made from now on; `ztdpu identity rotate-authority` replaces one before its end."""
    metrics_listen: Listener | None = None
    """Prometheus, plain HTTP; absent: none."""

    @model_validator(mode="after")
    def _one_source_of_policy(self) -> Self:
        """Refuse two sources, and none."""
        if (self.policy_dir is None) == (self.policy_git is None):
            raise ValueError("policy comes from one place: give policyDir or policyGit")
        return self

    @property
    def policy_source(self) -> str:
        """Where policy comes from, for people."""
        if self.policy_git is not None:
            return f"{self.policy_git.repository} {self.policy_git.ref}"
        return str(self.policy_dir)


class ControlConfiguration(Section):
    """The document as a whole."""

    api_version: Literal["ztdpu.dev/v1"]
    kind: Literal["ControlConfiguration"]
    spec: Specification
