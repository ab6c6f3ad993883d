"""What control signs with: its authorities, its own certificate, SVIDs of devices, the key of attestation results.

Files in the state directory (0700): `authority.key` and `authority.pem` (the first authority), `authority-NAME.key` of
later ones, `ear.key`, `ear.pem`, and `bundle.pem`, which is for the start-up files of new agents. Which authorities
there are and which of them signs stands in the store (`authority.standing`); `authority.rotation` changes it. The lab
calls `ensure_authority` before agents start, so that they can be given the bundle. Issues nothing on its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from ztdpu.control.authority.key_store import FileKeyStore, SigningKeyStore, load_key, write_secret
from ztdpu.control.authority.standing import AuthorityRecord, AuthorityState, Standing, decode_standing, encode_standing
from ztdpu.control.clock import Clock, SystemClock, as_datetime
from ztdpu.control.store.store import Transaction
from ztdpu.errors import ConfigurationError, Location, StateError
from ztdpu.trust.bundle_document import BundleDocument, encode_bundle_document
from ztdpu.trust.svid import (
    BACKDATING,
    Authority,
    Bundle,
    create_authority,
    issue_control_certificate,
    issue_svid,
)

CONTROL_CERTIFICATE_LIFETIME: Final = timedelta(hours=24)
CONTROL_CERTIFICATE_RENEWAL: Final = timedelta(hours=12)
AUTHORITY_LIFETIME: Final = timedelta(days=365)
REFRESH_HINT_S: Final = 300
FIRST: Final = "authority"
AUTHORITY_CERTIFICATE: Final = "authority.pem"
BUNDLE_FILE: Final = "bundle.pem"
STANDING: Final = "authorities"
"""Name of the text in the store."""


def ensure_authority(
    state_dir: Path, trust_domain: str, *, clock: Clock | None = None, lifetime: timedelta = AUTHORITY_LIFETIME
) -> Authority:
    """Load control's first authority, or make it when there is none.

    Raises:
        ConfigurationError: files that are damaged, half there, or of another trust domain.

    """
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    keys, certificate_file = FileKeyStore(state_dir), state_dir / AUTHORITY_CERTIFICATE
    if not certificate_file.exists():  # a key without it was written before it: a first start that was cut short
        now = as_datetime((clock or SystemClock()).now())
        made = create_authority(trust_domain, now, keys.make(FIRST), _serial(), lifetime=lifetime)
        write_secret(certificate_file, made.certificate.public_bytes(Encoding.PEM))
    certificate = _load_certificate(certificate_file)
    return _open_authority(keys, FIRST, certificate, trust_domain, where=certificate_file)


def ensure_ear_key(state_dir: Path) -> ec.EllipticCurvePrivateKey:
    """Load the P-256 key that signs attestation results, or make it; its public half stands in `ear.pem`."""
    key_file = state_dir / "ear.key"
    if not key_file.exists():
        write_secret(key_file, _private_pem(ec.generate_private_key(ec.SECP256R1())))
    key = load_key(key_file)
    write_secret(state_dir / "ear.pem", key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return key


def load_standing(
    transaction: Transaction, state_dir: Path, trust_domain: str, *, clock: Clock, lifetime: timedelta
) -> Standing:
    """How the authorities stand, or the first one alone when control never started here.

    Raises:
        ConfigurationError: damaged, or of another trust domain.

    """
    text = transaction.get_text(STANDING)
    if text:
        return decode_standing(text)
    first = ensure_authority(state_dir, trust_domain, clock=clock, lifetime=lifetime)
    now_unix_ms = clock.now().unix_ms
    record = AuthorityRecord(
        key_name=FIRST, certificate=first.certificate, state=AuthorityState.ACTIVE, since_unix_ms=now_unix_ms
    )
    standing = Standing(authorities=(record,), sequence=now_unix_ms)
    transaction.put_text(STANDING, encode_standing(standing))
    return standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What control shows on its own ports."""

    key_pem: bytes
    chain_pem: bytes
    certificate: x509.Certificate
    authority: str
    """Who signed it."""
    renewal: datetime
    made: datetime


class Issuer:
    """Signs for control. One per process."""

    def __init__(
        self,
        standing: Standing,
        ear_key: ec.EllipticCurvePrivateKey,
        clock: Clock,
        *,
        trust_domain: str,
        keys: SigningKeyStore,
        state_dir: Path,
        lifetime: timedelta = AUTHORITY_LIFETIME,
    ) -> None:
        self.trust_domain = trust_domain
        """Whose identities these are."""
        self.ear_key = ear_key
        self.keys = keys
        self.lifetime = lifetime
        """Of authorities that are made from now on."""
        self.jwt_keys: Mapping[str, ec.EllipticCurvePublicKey] = {}
        """What verifies JWT-SVIDs, by key id; part of the bundle."""
        self._clock = clock
        self._state_dir = state_dir
        self._own: Credentials | None = None
        self.standing: Standing
        self.authority: Authority
        """The one that signs."""
        self.adopt(standing)

    def adopt(self, standing: Standing) -> None:
        """Sign and believe as it stands now; call after the commit that changed it.

        Raises:
            ConfigurationError: the key of the active authority is not there, or is another one's.

        """
        active = standing.active
        where = self._state_dir / AUTHORITY_CERTIFICATE
        self.authority = _open_authority(self.keys, active.key_name, active.certificate, self.trust_domain, where=where)
        self.standing = standing
        self.__dict__.pop("bundle", None)
        self.__dict__.pop("bundle_document", None)
        write_secret(self._state_dir / BUNDLE_FILE, self.bundle_pem)

    def make_authority(self, *, now_unix_ms: int) -> AuthorityRecord:
        """A new key and its certificate, of the length that new authorities have; nobody believes it yet."""
        name = f"{FIRST}-{secrets.token_hex(4)}"
        made = create_authority(
            self.trust_domain,
            as_datetime(self._clock.now()),
            self.keys.make(name),
            _serial(),
            lifetime=self.lifetime,
        )
        return AuthorityRecord(
            key_name=name, certificate=made.certificate, state=AuthorityState.PREPARED, since_unix_ms=now_unix_ms
        )

    @cached_property
    def bundle(self) -> Bundle:
        """Whom control itself believes."""
        certificates = tuple(one.certificate for one in self.standing.authorities)
        return Bundle(trust_domain=self.trust_domain, authorities=certificates)

    @property
    def bundle_pem(self) -> bytes:
        """The same for TLS libraries."""
        return b"".join(one.public_bytes(Encoding.PEM) for one in self.bundle.authorities)

    @cached_property
    def bundle_document(self) -> bytes:
        """The same for everybody else, with its sequence."""
        return encode_bundle_document(
            BundleDocument(
                trust_domain=self.trust_domain,
                sequence=self.standing.sequence,
                refresh_hint_s=REFRESH_HINT_S,
                authorities=self.bundle.authorities,
                jwt_keys=self.jwt_keys,
            )
        )

    @property
    def ear_public_key(self) -> bytes:
        """SubjectPublicKeyInfo, DER."""
        return self.ear_key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    def own(self) -> Credentials:
        """What control shows; made anew, with a new key, after half its life and when another authority signs."""
        now = as_datetime(self._clock.now())
        own, authority = self._own, self.standing.active.name
        if own is not None and self.authority.certificate.not_valid_after_utc <= now:
            return own  # nothing follows it; that it is over is told by `authority.view`
        if own is None or own.authority != authority or not own.made <= now < own.renewal:
            key = ec.generate_private_key(ec.SECP256R1())
            until = min(now + CONTROL_CERTIFICATE_LIFETIME, self.authority.certificate.not_valid_after_utc)
            chain = issue_control_certificate(
                self.authority,
                public_key=key.public_key(),
                not_before=now - BACKDATING,
                not_after=_after(now, until),
                serial=_serial(),
            )
            own = self._own = Credentials(
                key_pem=_private_pem(key),
                chain_pem=pem_chain(chain),
                certificate=x509.load_der_x509_certificate(chain[0]),
                authority=authority,
                renewal=now + min((until - now) / 2, CONTROL_CERTIFICATE_RENEWAL),
                made=now,
            )
        return own

    def name_of_authority(self, certificate: x509.Certificate) -> str:
        """Name of the authority with this certificate; empty when it is none of those believed."""
        return next((one.name for one in self.standing.authorities if one.certificate == certificate), "")

    @property
    def client_roots_pem(self) -> bytes:
        """Whose SVIDs control's main port believes: a prepared authority has signed nothing yet."""
        signing = (one for one in self.standing.authorities if one.state is not AuthorityState.PREPARED)
        return b"".join(one.certificate.public_bytes(Encoding.PEM) for one in signing)

    def control_credentials(self) -> tuple[bytes, bytes]:
        """(private key, chain) in PEM for control's own server."""
        own = self.own()
        return own.key_pem, own.chain_pem

    def issue_device_svid(self, device: str, public_key: ec.EllipticCurvePublicKey, *, ttl_s: int) -> tuple[bytes, ...]:
        """SVID `spiffe://TD/dpu/NAME` for a bound TLS key, DER, leaf first; never longer than its authority.

        Raises:
            StateError: the authority is over.

        """
        now = as_datetime(self._clock.now())
        until = min(now + timedelta(seconds=ttl_s), self.authority.certificate.not_valid_after_utc)
        return issue_svid(
            self.authority,
            trust_domain=self.trust_domain,
            path=f"/dpu/{device}",
            public_key=public_key,
            not_before=now - BACKDATING,
            not_after=_after(now, until),
            serial=_serial(),
        )


def pem_chain(chain: tuple[bytes, ...]) -> bytes:
    """DER certificates as one PEM text."""
    return b"".join(x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM) for der in chain)


def _after(now: datetime, until: datetime) -> datetime:
    if until <= now:
        raise StateError(
            f"control's authority ended at {until:%Y-%m-%d %H:%M:%S} UTC: it signs nothing any more",
            remedy="`ztdpu identity rotate-authority`, then give agents the new bundle by hand",
        )
    return until


def _serial() -> int:
    return secrets.randbits(127) | 1


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _open_authority(
    keys: SigningKeyStore, name: str, certificate: x509.Certificate, trust_domain: str, *, where: Path
) -> Authority:
    """Join a key and its certificate. ConfigurationError when they are not a pair, or another domain's."""
    key = keys.open(name)
    if certificate.public_key() != key.public_key():
        raise ConfigurationError(
            f"{name}.key and the authority's certificate do not belong together",
            remedy="restore both from one backup",
            where=Location(file=str(where.with_name(f"{name}.key")), line=0),
        )
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if names.get_values_for_type(x509.UniformResourceIdentifier) != [f"spiffe://{trust_domain}"]:
        raise ConfigurationError(
            f"the authority is not that of trust domain {trust_domain}",
            remedy="mend trustDomain, or use another stateDir",
            where=Location(file=str(where), line=0),
        )
    return Authority(trust_domain=trust_domain, key=key, certificate=certificate)


def _load_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"no usable certificate: {error}", remedy="restore it from a backup", where=Location(file=str(path), line=0)
        ) from error
