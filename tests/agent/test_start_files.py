from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ztdpu.agent.configuration import AgentSpec
from ztdpu.agent.start_files import lock_state_dir, make_state_dir, read_start_files
from ztdpu.errors import ConfigurationError, StateError
from ztdpu.trust.svid import create_authority


@pytest.fixture
def spec(tmp_path: Path) -> AgentSpec:
    authority = create_authority("ztdpu.lab", datetime.now(UTC), ec.generate_private_key(ec.SECP384R1()), 1)
    pem = authority.certificate.public_bytes(Encoding.PEM)
    (tmp_path / "bundle.pem").write_bytes(pem)
    (tmp_path / "roots.pem").write_bytes(pem)
    key = Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (tmp_path / "operators.pub").write_bytes(b"# who signs rosters\n\n" + key + b" somebody\n")
    (tmp_path / "token").write_text("one-time\n")
    return AgentSpec.model_validate(
        {
            "device": "dpu-0",
            "trustDomain": "ztdpu.lab",
            "stateDir": str(tmp_path / "run"),
            "control": {
                "enrolment": "127.0.0.1:1",
                "main": "127.0.0.1:2",
                "bundleFile": str(tmp_path / "bundle.pem"),
            },
            "manufacturerRootsFile": str(tmp_path / "roots.pem"),
            "rosterKeysFile": str(tmp_path / "operators.pub"),
            "underlay": {"address": "127.0.0.1"},
            "rootOfTrust": {"secretsFile": "/nonexistent", "profile": "bluefield-3"},
            "virtualFunctions": {"factorySocket": "/nonexistent"},
            "joinTokenFile": str(tmp_path / "token"),
        }
    )


def test_all_are_read(spec):
    files = read_start_files(spec)
    assert len(files.manufacturer_roots) == 1
    assert len(files.operator_keys) == 1
    assert files.join_token == "one-time"


@pytest.mark.parametrize("name", ["bundle.pem", "roots.pem", "operators.pub", "token"])
def test_a_missing_file_is_named(spec, tmp_path, name):
    (tmp_path / name).unlink()
    with pytest.raises(ConfigurationError) as caught:
        read_start_files(spec)
    assert name in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["bundle.pem", "roots.pem", "operators.pub"])
@pytest.mark.parametrize("content", [b"", b"nonsense", b"\xff" * 100], ids=["empty", "text", "octets"])
def test_a_malformed_file_is_named(spec, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        read_start_files(spec)
    assert name in str(caught.value)


def test_there_is_a_bound_on_operator_keys(spec, tmp_path):
    line = (tmp_path / "operators.pub").read_bytes().splitlines(keepends=True)[-1]
    (tmp_path / "operators.pub").write_bytes(line * 64)
    assert len(read_start_files(spec).operator_keys) == 64
    (tmp_path / "operators.pub").write_bytes(line * 65)
    with pytest.raises(ConfigurationError, match="65 operator keys"):
        read_start_files(spec)


def test_a_key_of_another_kind_is_named_with_its_line(spec, tmp_path):
    other = ec.generate_private_key(ec.SECP256R1()).public_key()
    with (tmp_path / "operators.pub").open("ab") as file:
        file.write(other.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    with pytest.raises(ConfigurationError) as caught:
        read_start_files(spec)
    assert caught.value.where is not None
    assert caught.value.where.line == 4


def test_state_directory_is_for_its_owner_alone(spec):
    make_state_dir(spec)
    assert spec.state_dir.stat().st_mode & 0o777 == 0o700
    spec.state_dir.chmod(0o755)
    make_state_dir(spec)
    assert spec.state_dir.stat().st_mode & 0o777 == 0o700


def test_state_directory_too_long_for_sockets_is_refused(spec, tmp_path):
    long = spec.model_copy(update={"state_dir": tmp_path / ("x" * 100)})
    with pytest.raises(ConfigurationError):
        make_state_dir(long)


def test_state_directory_belongs_to_one_agent(spec):
    make_state_dir(spec)
    held = lock_state_dir(spec)
    with pytest.raises(StateError, match="another agent runs on") as caught:
        lock_state_dir(spec)
    assert caught.value.remedy
    os.close(held)
    os.close(lock_state_dir(spec))
