"""`ztdpu identity` against a real control: what people and machines read, and a rotation from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ztdpu.lab.bench.plant import build_plant, running_control


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    timing = {"intervalS": 300, "leaseS": 3600, "svidS": 3600}
    plant = build_plant(tmp_path_factory.mktemp("plant"), devices=1, attestation=timing, pinned=True)
    with running_control(plant):
        yield plant


def ztdpu(server, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"ZTDPU_SERVER": str(server.admin_socket), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "ztdpu", "identity", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=60)


def test_a_rotation_from_the_command_line(server):
    (before,) = [one for one in listed(server) if one["kind"] == "authority"]
    refused = ztdpu(server, "rotate-authority", "retire")
    assert refused.returncode == 1
    assert "activate" in refused.stderr
    for step, words in (("prepare", "next: activate"), ("activate", "next: retire"), ("retire", "refused from now on")):
        done = ztdpu(server, "rotate-authority", step, "--reason", "test")
        assert (done.returncode, done.stderr) == (0, "")
        assert words in done.stdout
    (after,) = [one for one in listed(server) if one["kind"] == "authority"]
    assert after["authority"] != before["authority"]
    assert after["state"] == "active"


def listed(server) -> list[dict]:
    return json.loads(ztdpu(server, "list", "-o", "json").stdout)["identities"]


def test_the_bundle_for_machines_people_and_start_up_files(server):
    document = json.loads(ztdpu(server, "bundle", "-o", "json").stdout)
    assert {one["use"] for one in document["keys"]} == {"x509-svid", "jwt-svid"}
    assert document["spiffe_sequence"] > 0
    pem = ztdpu(server, "bundle", "--pem").stdout
    assert pem == (Path(server.folder) / "state" / "bundle.pem").read_text()
    assert f"sequence {document['spiffe_sequence']}" in ztdpu(server, "bundle").stdout


def test_show_tells_of_control_and_refuses_what_is_not_there(server, tmp_path):
    told = ztdpu(server, "show")
    assert [line.split()[0] for line in told.stdout.splitlines()] == ["KIND", "authority", "control"]
    missing = ztdpu(server, "show", "--device", "dpu-0")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "dpu-0" in missing.stderr
    nothing = ztdpu(server, "show", "--state", str(tmp_path))
    assert nothing.returncode == 1
    assert "stateDir" in nothing.stderr
