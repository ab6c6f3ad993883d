"""Values of the sidecar: which identities an endpoint has, their SVIDs, and what a caller may see of them now."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Standing(StrEnum):
    """Whether a caller has an identity."""

    STARTING = "starting"
    """Not known yet: the same question gets another answer in a moment."""
    DENIED = "denied"
    """The device holds no lease, or policy does not have the endpoint here."""
    READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """One identity that an endpoint has, as control says."""

    endpoint: str
    tenant: str
    job: str = ""
    """Empty: the endpoint itself."""
    rank: int = 0
    world_size: int = 0
    epoch: int = 0

    def spiffe_id(self, trust_domain: str) -> str:
        """Its name."""
        if self.job:
            return f"spiffe://{trust_domain}/tenant/{self.tenant}/job/{self.job}/rank/{self.rank}"
        return f"spiffe://{trust_domain}/tenant/{self.tenant}/endpoint/{self.endpoint}"

    @property
    def hint(self) -> str:
        """What it is for; different for each identity of an endpoint."""
        return f"job:{self.job}" if self.job else "endpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Svid:
    """An X.509-SVID with its key, which was made on this device. Secret."""

    membership: Membership
    spiffe_id: str
    chain: tuple[bytes, ...]
    """DER, leaf first."""
    key: bytes
    """PKCS#8, DER."""
    expires_unix_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Everything that one endpoint may see at one moment."""

    standing: Standing
    version: int
    """Another one means that something changed."""
    trust_domain: str = ""
    authorities: tuple[bytes, ...] = ()
    """DER."""
    jwt_bundle: bytes = b""
    memberships: tuple[Membership, ...] = ()
    """Jobs first, newest first; the endpoint itself last."""
    svids: tuple[Svid, ...] = ()
    """In the same order; one that is not signed yet is absent."""
