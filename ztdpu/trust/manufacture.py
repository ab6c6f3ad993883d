"""The emulated factory: a test PKI in memory, and what it burns into a device.

Called by the lab before it starts devices, and by tests. Keys come from the caller's randomness and
dates from the caller's clock; no private key of the PKI is ever written. Every subject says *emulated*.

    L1 root -> L2 family -> L3 provisioner        `create_manufacturer`
                              -> L4 DeviceID       `Manufacturer.make_device`, from the device's UDS
                                   -> L5, L6       made by `root` at every boot
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from ztdpu.errors import ConfigurationError
from ztdpu.trust import dice, extensions
from ztdpu.trust.firmware import Firmware, default_firmware
from ztdpu.trust.profile import ChainLevel, LevelRole, Profile
from ztdpu.trust.spdm.suite import suite_of

NO_END: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""RFC 5280, 4.1.2.5: a certificate with no well-defined end."""
SECRETS_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSecrets:
    """Everything that makes one emulated device itself. Secret; stands for fuses and flash."""

    profile: str
    serial: str
    """Serial number on the label."""
    uds: bytes
    """Unique device secret, 32 octets."""
    certificates: tuple[bytes, ...]
    """DER, L1 to L4 (root first)."""
    firmware: Firmware
    boot_counter: int
    """Boots so far; raised and written back at each start, before anything is answered."""

    @property
    def device_id_sha256(self) -> bytes:
        """SHA-256 of the DeviceID's SPKI: what a roster or a Device document pins."""
        key = x509.load_der_x509_certificate(self.certificates[-1]).public_key()
        return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()

    def __repr__(self) -> str:
        return f"DeviceSecrets(serial={self.serial!r}, profile={self.profile!r}, ...)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manufacturer:
    """The keys and certificates of an emulated manufacturer, for one profile."""

    profile: Profile
    certificates: tuple[x509.Certificate, ...]
    """Root first, provisioner last."""
    provisioner_key: ec.EllipticCurvePrivateKey

    @property
    def root(self) -> x509.Certificate:
        """The anchor that verifiers pin."""
        return self.certificates[0]

    def root_pem(self) -> str:
        """Give the anchor as it goes into a manufacturer-roots file."""
        return self.root.public_bytes(Encoding.PEM).decode()

    def make_device(self, *, serial: str, uds: bytes, now: datetime, firmware: Firmware | None = None) -> DeviceSecrets:
        """Make a device: certify the DeviceID that its UDS gives.

        Raises:
            ConfigurationError: the UDS has another size, or is all zero (unprovisioned).

        """
        if len(uds) != dice.UDS_OCTETS or not any(uds):
            raise ConfigurationError(f"a UDS has {dice.UDS_OCTETS} octets and is not zero")
        level = self.profile.levels[self.profile.device_id_level]
        device_id = dice.derive_key(uds, self.profile.curve_name).public_key()
        ueid = extensions.encode_ueid(dice.make_ueid(dice.encode_spki(device_id)))
        certificate = build_certificate(
            self.profile,
            level,
            public_key=device_id,
            issuer=self.certificates[-1].subject,
            issuer_key=self.provisioner_key,
            not_before=now,
            extra=(x509.UnrecognizedExtension(extensions.TCG_UEID_OID, ueid),),
        )
        chain = (*self.certificates, certificate)
        return DeviceSecrets(
            profile=self.profile.name,
            serial=serial,
            uds=uds,
            certificates=tuple(item.public_bytes(Encoding.DER) for item in chain),
            firmware=firmware or default_firmware(self.profile),
            boot_counter=0,
        )


def create_manufacturer(*, profile: Profile, random: Callable[[int], bytes], now: datetime) -> Manufacturer:
    """Create the PKI above the devices of a profile.

    Args:
        profile: levels and names.
        random: gives that many fresh random octets; keys come from it.
        now: from when the certificates are valid.

    """
    certificates: list[x509.Certificate] = []
    issuer: x509.Name | None = None
    issuer_key: ec.EllipticCurvePrivateKey | None = None
    for level in profile.levels[: profile.device_id_level]:
        key = dice.derive_ec_key(random(32), dice.CURVES[profile.curve_name])
        certificate = build_certificate(
            profile,
            level,
            public_key=key.public_key(),
            issuer=issuer,
            issuer_key=issuer_key or key,
            not_before=now,
        )
        certificates.append(certificate)
        issuer, issuer_key = certificate.subject, key
    if issuer_key is None:
        raise ConfigurationError(f"profile {profile.name} has no level above its DeviceID")
    return Manufacturer(profile=profile, certificates=tuple(certificates), provisioner_key=issuer_key)


def build_certificate(
    profile: Profile,
    level: ChainLevel,
    *,
    public_key: ec.EllipticCurvePublicKey,
    issuer: x509.Name | None,
    issuer_key: ec.EllipticCurvePrivateKey,
    not_before: datetime,
    extra: tuple[x509.ExtensionType, ...] = (),
) -> x509.Certificate:
    """Build the certificate of one level; `issuer` None means self-signed.

    Serial number and subject serialNumber follow from the key (Open Profile ids), the signature is
    deterministic: the same inputs give the same octets.
    """
    identity = dice.derive_key_id(public_key)
    subject = _subject(profile, level, identity)
    issues = level.role is not LevelRole.ALIAS
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(public_key)
        .serial_number(int.from_bytes(identity, "big") or 1)
        .not_valid_before(not_before.replace(microsecond=0))
        .not_valid_after(NO_END)
        .add_extension(_key_usage(issues=issues), critical=True)
        .add_extension(x509.SubjectKeyIdentifier(identity), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier(dice.derive_key_id(issuer_key.public_key()), None, None), critical=False
        )
    )
    if issues:
        below = sum(later.role is not LevelRole.ALIAS for later in profile.levels[profile.levels.index(level) + 1 :])
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=below), critical=True)
    for extension in extra:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(issuer_key, suite_of(profile).algorithm, ecdsa_deterministic=True)


def encode_secrets(secrets: DeviceSecrets) -> str:
    """Give the text of a secrets file (JSON); whoever writes it makes it 0600."""
    return json.dumps(
        {
            "format": SECRETS_FORMAT,
            "profile": secrets.profile,
            "serial": secrets.serial,
            "uds": secrets.uds.hex(),
            "boot_counter": secrets.boot_counter,
            "firmware": dict(secrets.firmware.components),
            "certificates": [der.hex() for der in secrets.certificates],
        },
        indent=1,
    )


def decode_secrets(text: str) -> DeviceSecrets:
    """Read a secrets file.

    Raises:
        ConfigurationError: malformed. The message never quotes the file.

    """
    try:
        return _read_secrets(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        # `from None`: the cause may quote the UDS.
        raise ConfigurationError("the device's secrets are malformed", remedy="make the device anew") from None


def _read_secrets(document: dict[str, Any]) -> DeviceSecrets:
    if document.pop("format") != SECRETS_FORMAT:
        raise ValueError("another format")
    counter, firmware = document.pop("boot_counter"), document.pop("firmware")
    uds = bytes.fromhex(document.pop("uds"))
    if len(uds) != dice.UDS_OCTETS or not any(uds):
        raise ValueError("another size of UDS")
    if isinstance(counter, bool) or not isinstance(counter, int) or not 0 <= counter < (1 << 64) - 1:
        raise ValueError("boot counter out of bounds")
    if not all(isinstance(value, str | int) and isinstance(name, str) for name, value in firmware.items()):
        raise ValueError("firmware is a table of texts and numbers")
    return DeviceSecrets(
        uds=uds,
        certificates=tuple(bytes.fromhex(der) for der in document.pop("certificates")),
        firmware=Firmware(components=firmware),
        boot_counter=counter,
        **document,
    )


def _subject(profile: Profile, level: ChainLevel, identity: bytes) -> x509.Name:
    attributes = [
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, profile.organization),
        x509.NameAttribute(NameOID.COMMON_NAME, level.common_name),
    ]
    if level.role in {LevelRole.DEVICE_ID, LevelRole.LAYER, LevelRole.ALIAS}:
        attributes.append(x509.NameAttribute(NameOID.SERIAL_NUMBER, identity.hex()))
    return x509.Name(attributes)


def _key_usage(*, issues: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not issues,
        key_cert_sign=issues,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
