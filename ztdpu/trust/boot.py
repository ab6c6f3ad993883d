"""One boot of an emulated device: from UDS, firmware and boot to the Alias key and its chain.

Called by `root.EmulatedRoot` alone. What comes out holds no UDS and no CDI: those are gone with the
local variables, as on a device whose layers forget them before the next one runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from ztdpu.errors import ConfigurationError
from ztdpu.trust import canonical, dice, extensions
from ztdpu.trust.firmware import Firmware, compute_fwid, measure
from ztdpu.trust.manufacture import DeviceSecrets, build_certificate
from ztdpu.trust.profile import ChainLevel, FwidExtension, LevelRole, Profile
from ztdpu.trust.spdm.evidence import MeasurementBlock

_BOOT_LABEL: Final = "ztdpu/v1/boot"


@dataclass(frozen=True, slots=True, kw_only=True)
class BootedDevice:
    """What runs after a boot: enough to answer SPDM and to bind keys, no secret but the Alias key."""

    profile: Profile
    boot: extensions.Boot
    ueid: bytes
    certificates: tuple[bytes, ...]
    """DER, root to Alias."""
    alias_key: ec.EllipticCurvePrivateKey
    blocks: tuple[MeasurementBlock, ...]


def boot_device(
    profile: Profile,
    secrets: DeviceSecrets,
    firmware: Firmware,
    boot: extensions.Boot,
    *,
    alias_key: ec.EllipticCurvePrivateKey | None = None,
) -> BootedDevice:
    """Boot: measure the firmware, derive layer and Alias keys, certify them.

    The same arguments give the same keys and the same certificates; any other firmware, counter or
    nonce gives another Alias. `alias_key` is for the emulation of a fault: certified instead of the derived one.

    Raises:
        ConfigurationError: secrets and profile do not fit each other, or a boot value is out of bounds.

    """
    _check(profile, secrets, boot)
    blocks = measure(profile, firmware)
    issuer = x509.load_der_x509_certificate(secrets.certificates[-1])
    issuer_key = dice.derive_key(secrets.uds, profile.curve_name)
    device_id_spki = dice.encode_spki(issuer_key.public_key())
    not_before = issuer.not_valid_before_utc
    cdi = dice.Cdi(attest=secrets.uds, seal=secrets.uds)
    chain = list(secrets.certificates)
    for level in profile.levels[profile.device_id_level + 1 :]:
        fwid = compute_fwid(profile, level, blocks)
        cdi = dice.derive_cdi(cdi, _inputs(level, blocks, boot))
        key = dice.derive_key(cdi.attest, profile.curve_name)
        if alias_key is not None and level.role is LevelRole.ALIAS:
            key = alias_key
        issuer = build_certificate(
            profile,
            level,
            public_key=key.public_key(),
            issuer=issuer.subject,
            issuer_key=issuer_key,
            not_before=not_before,
            extra=_extensions(profile, level, fwid, device_id_spki, boot, secrets.serial),
        )
        chain.append(issuer.public_bytes(Encoding.DER))
        issuer_key = key
    return BootedDevice(
        profile=profile,
        boot=boot,
        ueid=dice.make_ueid(device_id_spki),
        certificates=tuple(chain),
        alias_key=issuer_key,
        blocks=blocks,
    )


def _check(profile: Profile, secrets: DeviceSecrets, boot: extensions.Boot) -> None:
    if secrets.profile != profile.name or len(secrets.certificates) != profile.device_id_level + 1:
        raise ConfigurationError(f"the device's secrets are not of profile {profile.name}")
    if not 0 <= boot.counter < 1 << 64 or len(boot.nonce) != extensions.BOOT_NONCE_OCTETS:
        raise ConfigurationError("boot counter or boot nonce is out of bounds")


def _inputs(level: ChainLevel, blocks: Sequence[MeasurementBlock], boot: extensions.Boot) -> dice.InputValues:
    values = {block.index: block.value for block in blocks}
    code = hashlib.sha512(b"".join(values[index] for index in level.fwid_covers)).digest()
    descriptor = canonical.encode([_BOOT_LABEL, boot.counter, boot.nonce])
    return dice.InputValues(code=code, configuration=hashlib.sha512(descriptor).digest())


def _extensions(
    profile: Profile, level: ChainLevel, fwid: bytes, device_id_spki: bytes, boot: extensions.Boot, serial: str
) -> tuple[x509.ExtensionType, ...]:
    identity = extensions.Fwid(hash=profile.hash, digest=fwid)
    if profile.fwid_extension is FwidExtension.COMPOSITE_DEVICE_ID:
        dice_der = extensions.encode_composite_device_id(
            extensions.CompositeDeviceId(device_id_spki=device_id_spki, fwid=identity)
        )
    else:
        dice_der = extensions.encode_tcb_info(
            extensions.TcbInfo(
                vendor=profile.vendor,
                model=profile.model,
                layer=profile.levels.index(level) - profile.device_id_level,
                fwids=(identity,),
            )
        )
    dice_extension = x509.UnrecognizedExtension(extensions.TCG_DICE_OID, dice_der)
    if level.role is not LevelRole.ALIAS:
        return (dice_extension,)
    info = extensions.encode_device_info(vendor=profile.vendor, model=profile.model, serial=serial)
    return (
        dice_extension,
        x509.UnrecognizedExtension(extensions.BOOT_OID, extensions.encode_boot(boot)),
        x509.SubjectAlternativeName([x509.OtherName(extensions.DMTF_DEVICE_INFO_OID, info)]),
    )
