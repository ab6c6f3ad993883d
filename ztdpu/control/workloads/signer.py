"""Signatures for workloads: X.509-SVIDs with control's authority, JWT-SVIDs with a key that signs nothing else.

Takes the authority and the bundle from the issuer at every use, so that a change of either is followed. Decides
nothing: `workloads` does.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final, Protocol

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from ztdpu.control.clock import Clock, as_datetime
from ztdpu.errors import ConfigurationError, Location
from ztdpu.trust.jwt_svid import JWT_SVID_LIFETIME_LIMIT_S, issue_jwt_svid, jwt_bundle
from ztdpu.trust.spiffe_id import SpiffeId
from ztdpu.trust.svid import BACKDATING, Authority, Bundle, issue_svid

JWT_KEY: Final = "jwt.key"


class SigningAuthority(Protocol):
    """What is needed of `issue.Issuer`."""

    @property
    def trust_domain(self) -> str:
        """Whose identities these are."""

    @property
    def authority(self) -> Authority:
        """Who signs now."""

    @property
    def bundle(self) -> Bundle:
        """Whom everybody believes now."""


def ensure_jwt_key(state_dir: Path) -> ec.EllipticCurvePrivateKey:
    """Load the P-256 key of JWT-SVIDs (0600), or make it.

    Raises:
        ConfigurationError: the file is damaged.

    """
    path = state_dir / JWT_KEY
    if not path.exists():
        made = ec.generate_private_key(ec.SECP256R1())
        partial = path.with_name(f"{path.name}.part")
        partial.unlink(missing_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        partial.rename(path)
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"no usable key: {error}", remedy="restore it from a backup", where=Location(file=str(path), line=0)
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise ConfigurationError("not a key on P-256", where=Location(file=str(path), line=0))
    return key


class WorkloadSigner:
    """One per control process."""

    def __init__(
        self, issuer: SigningAuthority, jwt_key: ec.EllipticCurvePrivateKey, clock: Clock, *, ttl_s: int
    ) -> None:
        self._issuer = issuer
        self._jwt_key = jwt_key
        self._clock = clock
        self._ttl_s = ttl_s
        self._encoded: tuple[Bundle, tuple[bytes, ...]] | None = None
        self.jwt_bundle = jwt_bundle([jwt_key.public_key()])
        """What verifies JWT-SVIDs: a JWK set."""

    @property
    def trust_domain(self) -> str:
        """Whose identities these are."""
        return self._issuer.trust_domain

    @property
    def authorities(self) -> tuple[bytes, ...]:
        """What verifies X.509-SVIDs, DER."""
        bundle = self._issuer.bundle
        if self._encoded is None or self._encoded[0] is not bundle:
            self._encoded = (bundle, tuple(one.public_bytes(Encoding.DER) for one in bundle.authorities))
        return self._encoded[1]

    def sign_x509(self, spiffe_id: SpiffeId, public_key: ec.EllipticCurvePublicKey) -> tuple[tuple[bytes, ...], int]:
        """(chain in DER, leaf first; when it ends in unix seconds). Raises SvidError."""
        now = as_datetime(self._clock.now())
        authority = self._issuer.authority
        not_after = min(now + timedelta(seconds=self._ttl_s), authority.certificate.not_valid_after_utc)
        chain = issue_svid(
            authority,
            trust_domain=self.trust_domain,
            path=spiffe_id.path,
            public_key=public_key,
            not_before=now - BACKDATING,
            not_after=not_after,
            serial=secrets.randbits(127) | 1,
        )
        return chain, int(not_after.timestamp())

    def sign_jwt(self, spiffe_id: SpiffeId, audience: Sequence[str]) -> tuple[str, int]:
        """(token, when it ends in unix seconds). Raises SvidError."""
        now = as_datetime(self._clock.now())
        ttl_s = min(self._ttl_s, JWT_SVID_LIFETIME_LIMIT_S)
        token = issue_jwt_svid(key=self._jwt_key, spiffe_id=spiffe_id, audience=audience, now=now, ttl_s=ttl_s)
        return token, int(now.timestamp()) + ttl_s
