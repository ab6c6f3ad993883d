"""Open Profile derivations against known answers."""

import json
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from ztdpu.trust import dice

VECTORS = Path(__file__).parents[3] / "shared" / "vectors" / "dice" / "open_dice_kat.json"


def private_value(key: ec.EllipticCurvePrivateKey) -> int:
    return key.private_numbers().private_value


def known_answers() -> list:
    if not VECTORS.is_file():
        return [pytest.param(None, marks=pytest.mark.skip(reason=f"{VECTORS.name} is not here"))]
    return [pytest.param(vector, id=vector["name"]) for vector in json.loads(VECTORS.read_text())["vectors"]]


@pytest.mark.parametrize("vector", known_answers())
def test_known_answers(vector):
    octets = {name: bytes.fromhex(text) for name, text in vector.items() if isinstance(text, str) and name != "name"}
    cdi = dice.derive_cdi(
        dice.Cdi(attest=octets["cur_a"], seal=octets["cur_s"]),
        dice.InputValues(
            code=octets["code"],
            configuration=octets["config"],
            authority=octets["auth"],
            mode=dice.DiceMode(vector["mode"]),
            hidden=octets["hidden"],
        ),
    )
    assert (cdi.attest, cdi.seal) == (octets["cdi_attest"], octets["cdi_seal"])
    seed = dice.derive_key_seed(cdi.attest)
    assert seed == octets["ed25519_seed"]
    assert dice.derive_id(octets["ed25519_public"]) == octets["ed25519_id"]
    p256 = dice.derive_ec_key(seed, ec.SECP256R1())
    assert private_value(p256) == int(vector["p256_private"], 16)
    assert p256.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)[1:] == octets["p256_public_xy"]
    assert dice.derive_key_id(p256.public_key()) == octets["p256_id"]
    assert private_value(dice.derive_key(cdi.attest)) == int(vector["p384_private"], 16)


@pytest.mark.parametrize("vector", known_answers())
def test_certificates_of_another_implementation(vector):
    """Issued by the key of the secret before, for the key of the secret after; named by both keys' ids."""
    before, after = (dice.derive_key_seed(bytes.fromhex(vector[name])) for name in ("cur_a", "cdi_attest"))
    for kind, make in (
        ("p256", lambda seed: dice.derive_ec_key(seed, ec.SECP256R1())),
        ("ed25519", Ed25519PrivateKey.from_private_bytes),
    ):
        certificate = x509.load_der_x509_certificate(bytes.fromhex(vector[f"x509_{kind}_cert"]))
        issuer, subject = make(before).public_key(), make(after).public_key()
        assert certificate.public_key() == subject
        identity = bytes.fromhex(vector[f"{kind}_id"])
        assert certificate.serial_number.to_bytes(20, "big") == identity
        assert certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest == identity
        signed = (certificate.signature, certificate.tbs_certificate_bytes)
        scheme = [ec.ECDSA(certificate.signature_hash_algorithm)] if kind == "p256" else []
        issuer.verify(*signed, *scheme)
        with pytest.raises(InvalidSignature):
            subject.verify(*signed, *scheme)


def test_every_vector_is_read_here_or_by_the_extensions():
    if not VECTORS.is_file():
        pytest.skip(f"{VECTORS.name} is not here")
    assert {path.name for path in VECTORS.parent.iterdir()} == {
        "open_dice_kat.json", "tcbinfo_kat.json", "caliptra_fmc_alias.json",
    }  # fmt: skip


def test_literal_answer():
    zero = bytes(32)
    cdi = dice.derive_cdi(
        dice.Cdi(attest=zero, seal=zero),
        dice.InputValues(code=bytes(64), configuration=bytes(64), mode=dice.DiceMode.NOT_CONFIGURED),
    )
    assert cdi.attest.hex() == "fbfc679771342eeacb908659ce49d6b63b4535da2c51433d7f04efa6319e0c19"
    assert private_value(dice.derive_key(cdi.attest)) == int(
        "b9ffe6ee0e0d3236aaf0a1385baea47dd978b15f3d2b0e183944acdead93a3d9e74095fbe1f8c19333bb76dc68e85920", 16
    )


@pytest.mark.parametrize("field", ["code", "configuration", "authority", "hidden"])
@pytest.mark.parametrize("size", [0, 63, 65])
def test_inputs_of_another_size_are_refused(field, size):
    good = {"code": bytes(64), "configuration": bytes(64)}
    dice.InputValues(**good)
    with pytest.raises(ValueError, match="64 octets"):
        dice.InputValues(**{**good, field: bytes(size)})


def test_lasting_secret_survives_new_code_but_not_a_new_authority():
    current = dice.Cdi(attest=b"\1" * 32, seal=b"\1" * 32)
    one = dice.derive_cdi(current, dice.InputValues(code=b"a" * 64, configuration=bytes(64)))
    two = dice.derive_cdi(current, dice.InputValues(code=b"b" * 64, configuration=bytes(64)))
    three = dice.derive_cdi(current, dice.InputValues(code=b"a" * 64, configuration=bytes(64), authority=b"c" * 64))
    assert one.attest != two.attest
    assert one.seal == two.seal
    assert three.seal != one.seal


@given(st.binary(min_size=1, max_size=128))
def test_ids_are_positive_serial_numbers(key):
    identity = dice.derive_id(key)
    assert len(identity) == 20
    assert identity[0] < 0x80


def test_secrets_are_not_printed():
    assert "01" not in repr(dice.Cdi(attest=b"\1" * 32, seal=b"\1" * 32))
