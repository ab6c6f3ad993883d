"""The emulated factory."""

import hashlib
import json
from datetime import UTC, datetime

import pytest
from cryptography import x509

from ztdpu.errors import ConfigurationError
from ztdpu.trust import dice
from ztdpu.trust.manufacture import create_manufacturer, decode_secrets, encode_secrets
from ztdpu.trust.profile import load_profile

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
PROFILE = load_profile("bluefield-3")
UDS = b"\x5a" * 32


def seeded(seed: bytes):
    state = [seed]

    def random(octets: int) -> bytes:
        state[0] = hashlib.sha256(state[0]).digest()
        return state[0][:octets]

    return random


MANUFACTURER = create_manufacturer(profile=PROFILE, random=seeded(b"factory"), now=NOW)
DEVICE = MANUFACTURER.make_device(serial="EMU0001", uds=UDS, now=NOW)


def test_chain_goes_from_root_to_device_id():
    chain = [x509.load_der_x509_certificate(der) for der in DEVICE.certificates]
    assert chain[0] == MANUFACTURER.root
    for issuer, certificate in zip(chain[:1] + chain[:-1], chain, strict=True):
        certificate.verify_directly_issued_by(issuer)
    assert [c.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length for c in chain] == [
        4,
        3,
        2,
        1,
    ]
    assert chain[3].public_key() == dice.derive_key(UDS).public_key()


def test_every_subject_says_emulated_and_none_names_a_real_anchor():
    for der in DEVICE.certificates:
        subject = x509.load_der_x509_certificate(der).subject.rfc4514_string()
        assert "emulated" in subject
        assert "O=ztdpu-emu" in subject


def test_same_secret_same_device():
    assert MANUFACTURER.make_device(serial="EMU0001", uds=UDS, now=NOW) == DEVICE
    other = MANUFACTURER.make_device(serial="EMU0001", uds=b"\x5b" * 32, now=NOW)
    assert other.certificates[:3] == DEVICE.certificates[:3]
    assert other.certificates[3] != DEVICE.certificates[3]


def test_another_factory_has_other_keys():
    other = create_manufacturer(profile=PROFILE, random=seeded(b"other"), now=NOW)
    assert other.root.public_key() != MANUFACTURER.root.public_key()
    assert other.root.subject == MANUFACTURER.root.subject
    assert "BEGIN CERTIFICATE" in other.root_pem()


@pytest.mark.parametrize("uds", [b"", bytes(32), b"\1" * 31, b"\1" * 33])
def test_unprovisioned_and_odd_secrets_are_refused(uds):
    with pytest.raises(ConfigurationError):
        MANUFACTURER.make_device(serial="EMU0002", uds=uds, now=NOW)


def test_secrets_file_round_trip():
    assert decode_secrets(encode_secrets(DEVICE)) == DEVICE


def alter(**changes):
    return json.dumps({**json.loads(encode_secrets(DEVICE)), **changes})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 100000,
        encode_secrets(DEVICE)[:-1],
        alter(format=2),
        alter(uds="00" * 32),
        alter(uds="5a" * 31),
        alter(uds="zz" * 32),
        alter(uds=5),
        alter(boot_counter=-1),
        alter(boot_counter=True),
        alter(boot_counter="1"),
        alter(boot_counter=(1 << 64) - 1),
        alter(firmware=[]),
        alter(firmware={"version": [1]}),
        alter(certificates=["zz"]),
        alter(certificates=[1]),
        alter(colour="red"),
    ],
)
def test_malformed_secrets_are_refused_without_quoting_them(text):
    with pytest.raises(ConfigurationError) as caught:
        decode_secrets(text)
    assert UDS.hex()[:8] not in str(caught.value)
    assert caught.value.__cause__ is None


def test_secrets_are_not_printed():
    assert UDS.hex() not in repr(DEVICE)
    assert repr(UDS) not in repr(DEVICE)
