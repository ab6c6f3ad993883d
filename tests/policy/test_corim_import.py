"""Manifests onto profiles: what maps, stands in the document; what does not, is named."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from ruamel.yaml import YAML
from typer.testing import CliRunner

from ztdpu.cli.policy.corim import import_corim as command
from ztdpu.errors import ConfigurationError, PolicyError, UsageError
from ztdpu.policy.corim_import import import_corim
from ztdpu.policy.documents.attestation import ReferenceValues
from ztdpu.trust import cose, strict_cbor
from ztdpu.trust.corim import Corim, Environment, Measurement, ReferenceTriple, read_corim
from ztdpu.trust.firmware import default_firmware, measure
from ztdpu.trust.profile import HASH_OCTETS, MeasurementKind, load_profile
from ztdpu.trust.strict_cbor import Tag

SHARED_VECTORS = Path(__file__).resolve().parents[3] / "shared" / "vectors"
PROFILE = load_profile("bluefield-3")
CLASS = Environment(vendor="NVIDIA", model="BlueField-3")
GOOD = Measurement(key=3, digests={"sha512": "ab" * 64})
SVN_INDEX = next(spec.index for spec in PROFILE.measurements if spec.kind is MeasurementKind.SVN)


def run(measurement=GOOD, environment=CLASS, **changes):
    triple = ReferenceTriple(environment=environment, measurements=(measurement,))
    manifest = Corim(**{"name": "x", "is_signed": False, "triples": (triple,)} | changes)
    return import_corim(manifest, name="imported", profile=PROFILE)


def test_a_good_measurement_maps():
    imported = run()
    assert imported.left_out == ()
    document = ReferenceValues.model_validate(imported.document)
    assert document.spec.measurements[0].component == "nic-firmware"
    assert document.spec.measurements[0].digests == ["ab" * 64]


@pytest.mark.parametrize(
    ("changes", "environment", "said"),
    [
        ({}, {"vendor": "ACME"}, "is about ACME BlueField-3"),
        ({}, {"vendor": "", "class_id": "uuid x"}, "uuid x is given"),
        ({}, {"unread": ("an instance",)}, "narrowed by an instance"),
        ({}, {"index": 0}, "index 0 of a class"),
        ({}, {"layer": 1}, "not of its layer 1"),
        ({"key": 250}, {}, "no measurement 250"),
        ({"key": "uuid x"}, {}, "key is uuid x"),
        ({"key": None}, {}, "neither a key nor a layer"),
        ({"key": None}, {"layer": 0}, "no certificate of profile"),
        ({"key": None}, {"layer": 1}, "no digest of sha384"),
        ({"key": None, "digests": {"sha384": "ab" * 48}, "minimum_svn": 1}, {"layer": 1}, "of a layer is not compared"),
        ({"digests": {"sha256": "ab" * 32}}, {}, "is no digest of sha256"),
        ({"digests": {}}, {}, "no digest and no minimum"),
        ({"key": SVN_INDEX}, {}, "is no digest of sha512"),
        ({"minimum_svn": 3}, {}, "is no security version"),
        ({"svn": 3}, {}, "exactly 3"),
        ({"version": "1.0"}, {}, "version 1.0"),
        ({"unread": ("flags",)}, {}, "flags is not compared"),
    ],
)
def test_what_does_not_map_is_named_and_not_taken(changes, environment, said):
    imported = run(dataclasses.replace(GOOD, **changes), dataclasses.replace(CLASS, **environment))
    assert imported.document == {}
    assert any(said in line for line in imported.left_out), imported.left_out


def test_what_the_manifest_says_elsewhere_is_named():
    imported = run(unread=("a CoSWID tag",))
    assert imported.left_out == ("a CoSWID tag",)
    assert imported.document


def test_a_vector_maps_onto_the_profile_of_its_product():
    path = SHARED_VECTORS / "rats" / "veraison_corim-1.cbor"
    if not path.exists():
        pytest.skip("veraison_corim-1.cbor is not here")
    manifest = read_corim(path.read_bytes(), now=datetime(2025, 12, 1, tzinfo=UTC))
    product = dataclasses.replace(load_profile("generic"), vendor="ACME Inc.", model="ACME RoadRunner")
    imported = import_corim(manifest, name="acme", profile=product)
    assert imported.left_out == ("reference triple 1, measurement 1: version 1.0.0: only a minimum is compared",)
    (triple,) = manifest.triples
    plain = dataclasses.replace(triple.measurements[0], version="")
    manifest = dataclasses.replace(manifest, triples=(dataclasses.replace(triple, measurements=(plain,)),))
    (fwid,) = import_corim(manifest, name="acme", profile=product).document["spec"]["fwids"]
    assert fwid["digests"] == ["44aa336af4cb14a879432e53dd6571c7fa9bccafb75f488259262d6ea3a4d91b"]
    assert product.levels[fwid["level"]].role == fwid["component"]


# --- the command ---


def manifest_of_shipped_firmware() -> bytes:
    """What the maker of the emulated devices would publish."""
    algorithms = {"sha384": 7, "sha512": 8}
    hashed = [
        {0: spec.index, 1: {2: [[algorithms[PROFILE.measurement_hash], block.value]]}}
        for spec, block in zip(PROFILE.measurements, measure(PROFILE, default_firmware(PROFILE)), strict=True)
        if len(block.value) == HASH_OCTETS[PROFILE.measurement_hash] and not block.raw
    ]
    described = {1: PROFILE.vendor, 2: PROFILE.model}
    triples = [
        [{0: described}, [*hashed, {0: SVN_INDEX, 1: {1: Tag(553, 1)}}]],
        [{0: described | {3: 1}}, [{1: {2: [[7, bytes(48)]]}}]],
    ]
    comid = Tag(506, strict_cbor.encode({1: {0: "tag"}, 4: {0: triples}}))
    return strict_cbor.encode(Tag(501, {0: "shipped", 1: [comid]}))


@pytest.fixture
def files(tmp_path):
    key = ec.derive_private_key(9, ec.SECP256R1())
    pem = tmp_path / "maker.pem"
    pem.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    header = {3: "application/rim+cbor", 8: strict_cbor.encode({0: {0: "the maker"}})}
    signed = tmp_path / "signed.cbor"
    signed.write_bytes(cose.sign(manifest_of_shipped_firmware(), key=key, header=header, unprotected={}))
    plain = tmp_path / "plain.cbor"
    plain.write_bytes(manifest_of_shipped_firmware())
    return signed, plain, pem


def test_the_command_prints_a_document_that_policy_takes(files, capsys):
    signed, plain, pem = files
    command(signed, profile="bluefield-3", key=pem)
    text = capsys.readouterr().out
    assert text.startswith("# From CoRIM 'shipped', signed by 'the maker'.\n")
    document = ReferenceValues.model_validate(YAML(typ="safe").load(text))
    assert {3, 4} <= {one.index for one in document.spec.measurements}
    assert [one.version for one in document.spec.minimum_versions] == ["1"]
    assert [one.level for one in document.spec.fwids] == [PROFILE.device_id_level + 1]
    command(plain, profile="bluefield-3", unsigned=True, name="other")
    assert "not signed" in capsys.readouterr().out


def test_the_command_refuses_for_people(files, capsys, tmp_path):
    signed, plain, pem = files
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing")
    for arguments, error, said in (
        ((signed, {}), UsageError, "signed or not"),
        ((signed, {"key": pem, "unsigned": True}), UsageError, "signed or not"),
        ((signed, {"unsigned": True}), PolicyError, "signed"),
        ((plain, {"key": pem}), PolicyError, "not signed"),
        ((pem, {"key": pem}), PolicyError, "CBOR"),
        ((signed, {"key": wrong}), ConfigurationError, "no public key"),
        ((tmp_path / "none", {"unsigned": True}), ConfigurationError, "cannot be read"),
        ((plain, {"unsigned": True, "name": "No Name"}), UsageError, "no name"),
        ((plain, {"unsigned": True, "profile": "generic"}), PolicyError, "2 parts"),
        ((plain, {"unsigned": True, "profile": "generic", "leave_out": True}), PolicyError, "nothing in the manifest"),
    ):
        with pytest.raises(error, match=said) as caught:
            command(arguments[0], **{"profile": "bluefield-3"} | arguments[1])
        assert caught.value.remedy
    assert capsys.readouterr().out == ""


def test_the_command_is_there():
    from ztdpu.cli.policy import app

    assert "--leave-out" in CliRunner().invoke(app, ["import-corim", "--help"], env={"COLUMNS": "200"}).output
