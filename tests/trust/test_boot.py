"""What one boot makes of secrets, firmware and boot."""

import dataclasses
from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from ztdpu.errors import ConfigurationError
from ztdpu.trust import dice, extensions
from ztdpu.trust.boot import boot_device
from ztdpu.trust.extensions import Boot
from ztdpu.trust.firmware import FirmwareFault, alter_firmware, compute_fwid
from ztdpu.trust.manufacture import create_manufacturer
from ztdpu.trust.profile import FwidExtension, load_profile

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
PROFILE = load_profile("bluefield-3")
MANUFACTURER = create_manufacturer(profile=PROFILE, random=lambda octets: b"\x31" * octets, now=NOW)
SECRETS = MANUFACTURER.make_device(serial="EMU0001", uds=b"\x5a" * 32, now=NOW)
BOOT = Boot(counter=7, nonce=b"\x01" * 16)
ALTERED = alter_firmware(PROFILE, SECRETS.firmware, FirmwareFault.FIRMWARE_ALTERED)
DEVICE = boot_device(PROFILE, SECRETS, SECRETS.firmware, BOOT)
CHAIN = [x509.load_der_x509_certificate(der) for der in DEVICE.certificates]


def extension(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> bytes:
    return certificate.extensions.get_extension_for_oid(oid).value.value


def test_same_arguments_same_chain():
    again = boot_device(PROFILE, SECRETS, SECRETS.firmware, BOOT)
    assert again.certificates == DEVICE.certificates


@pytest.mark.parametrize(
    ("firmware", "boot"),
    [
        pytest.param(ALTERED, BOOT, id="firmware"),
        pytest.param(SECRETS.firmware, Boot(counter=8, nonce=BOOT.nonce), id="counter"),
        pytest.param(SECRETS.firmware, Boot(counter=7, nonce=b"\x02" * 16), id="nonce"),
    ],
)
def test_anything_else_is_another_alias_of_the_same_device(firmware, boot):
    other = boot_device(PROFILE, SECRETS, firmware, boot)
    assert other.alias_key.public_key() != DEVICE.alias_key.public_key()
    assert other.certificates[:4] == DEVICE.certificates[:4]
    assert other.ueid == DEVICE.ueid


def test_chain_verifies_and_the_leaf_issues_nothing():
    for issuer, certificate in zip(CHAIN[:1] + CHAIN[:-1], CHAIN, strict=True):
        certificate.verify_directly_issued_by(issuer)
    leaf = CHAIN[-1].extensions
    assert leaf.get_extension_for_class(x509.KeyUsage).value.digital_signature
    assert not leaf.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    with pytest.raises(x509.ExtensionNotFound):
        leaf.get_extension_for_class(x509.BasicConstraints)
    assert CHAIN[4].extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    assert CHAIN[-1].public_key() == DEVICE.alias_key.public_key()
    serial = CHAIN[-1].subject.get_attributes_for_oid(NameOID.SERIAL_NUMBER)[0].value
    assert serial == dice.derive_key_id(DEVICE.alias_key.public_key()).hex()


def test_boot_and_device_info_stand_in_the_leaf():
    assert extensions.decode_boot(extension(CHAIN[-1], extensions.BOOT_OID)) == BOOT
    names = CHAIN[-1].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    (other,) = names.get_values_for_type(x509.OtherName)
    assert other.type_id == extensions.DMTF_DEVICE_INFO_OID
    assert other.value[2:] == b"NVIDIA:BlueField-3:EMU0001"


def test_fwids_equal_what_is_measured():
    for level, certificate in zip(PROFILE.levels[4:], CHAIN[4:], strict=True):
        composite = extensions.decode_composite_device_id(extension(certificate, extensions.TCG_DICE_OID))
        assert composite.device_id_spki == dice.encode_spki(CHAIN[3].public_key())
        assert composite.fwid.digest == compute_fwid(PROFILE, level, DEVICE.blocks)


def test_ueid_names_the_device_id():
    assert extensions.decode_ueid(extension(CHAIN[3], extensions.TCG_UEID_OID)) == DEVICE.ueid
    assert DEVICE.ueid == dice.make_ueid(dice.encode_spki(CHAIN[3].public_key()))


def test_tcb_info_where_the_profile_asks_for_it():
    profile = dataclasses.replace(PROFILE, fwid_extension=FwidExtension.TCB_INFO)
    device = boot_device(profile, SECRETS, SECRETS.firmware, BOOT)
    for layer, der in enumerate(device.certificates[4:], start=1):
        info = extensions.decode_tcb_info(extension(x509.load_der_x509_certificate(der), extensions.TCG_DICE_OID))
        assert (info.vendor, info.model, info.layer) == ("NVIDIA", "BlueField-3", layer)
        assert info.fwids[0].digest == compute_fwid(profile, profile.levels[3 + layer], device.blocks)


@pytest.mark.parametrize("boot", [Boot(counter=-1, nonce=bytes(16)), Boot(counter=1, nonce=bytes(8))])
def test_boot_values_out_of_bounds_are_refused(boot):
    with pytest.raises(ConfigurationError):
        boot_device(PROFILE, SECRETS, SECRETS.firmware, boot)


def test_secrets_of_another_product_are_refused():
    with pytest.raises(ConfigurationError):
        boot_device(PROFILE, dataclasses.replace(SECRETS, profile="generic"), SECRETS.firmware, BOOT)
    with pytest.raises(ConfigurationError):
        boot_device(PROFILE, dataclasses.replace(SECRETS, certificates=()), SECRETS.firmware, BOOT)
