"""`ztdpu attestation`: how a report is printed, and evidence files without control and without Linux."""

from __future__ import annotations

import base64
import dataclasses
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.trust.conftest import World
from tests.trust.test_evidence_file import make_file
from ztdpu.cli import attestation
from ztdpu.cli.output import Format
from ztdpu.errors import StateError
from ztdpu.model.administration import AttestationReport
from ztdpu.model.attestation import Check, CheckResult, Dimension, Finding
from ztdpu.trust.evidence_file import encode_file

ROOT = Path(__file__).parents[2]

FINDING = Finding(
    code="measurement_unexpected",
    dimension=Dimension.EXECUTABLES,
    claim=96,
    message="nic-firmware is not what was expected",
    index=2,
    component="nic-firmware",
    expected=("aa",),
    seen="bb",
    source="reference.yaml:3:5",
)


def report(*findings: Finding) -> AttestationReport:
    vector = {"submods": {"dpu-0": {"ear_trustworthiness_vector": {"executables": 96 if findings else 3}}}}
    payload = base64.urlsafe_b64encode(json.dumps(vector).encode()).rstrip(b"=").decode()
    return AttestationReport(
        device="dpu-0",
        state="contraindicated" if findings else "affirming",
        tier="contraindicated" if findings else "affirming",
        ear=f"h.{payload}.s",
        findings=findings,
        appraised_unix_ms=1_700_000_000_000,
        profile="bluefield-3",
        device_id_sha256="ab" * 32,
        evidence=b"evidence",
    )


class Client:
    """Stands for control; the real one is used by tests/control."""

    def __init__(self, answer: AttestationReport) -> None:
        self._answer = answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def get_attestation(self, _name: str) -> AttestationReport:
        return self._answer

    def export_attestation(self, _name: str) -> bytes:
        return b"sealed"


@pytest.fixture
def answer_with(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda answer: monkeypatch.setattr(attestation, "connect", lambda _server: Client(answer))


def test_findings_are_printed_with_place_and_source(answer_with: Any, capsys: Any) -> None:
    answer_with(report(FINDING))
    attestation.show("dpu-0")
    shown = capsys.readouterr().out
    for words in ("contraindicated", "nic-firmware", "aa", "bb", "reference.yaml:3:5", "executables"):
        assert words in shown


def test_nothing_found_is_said(answer_with: Any, capsys: Any) -> None:
    answer_with(report())
    attestation.show("dpu-0")
    assert "no findings" in capsys.readouterr().out


def test_json_has_vector_and_evidence(answer_with: Any, capsys: Any) -> None:
    answer_with(report(FINDING))
    attestation.show("dpu-0", output=Format.JSON)
    document = json.loads(capsys.readouterr().out)
    assert document["vector"] == {"executables": 96}
    assert base64.b64decode(document["evidence"]) == b"evidence"
    assert document["findings"][0]["index"] == 2


def test_export_writes_the_octets(answer_with: Any, tmp_path: Any) -> None:
    answer_with(report())
    attestation.export("dpu-0", tmp_path / "dpu-0.evidence")
    assert (tmp_path / "dpu-0.evidence").read_bytes() == b"sealed"


LIGHT = """
import sys
for name in ("fcntl", "resource", "termios", "pyroute2", "grpc", "sqlalchemy", "google.protobuf"):
    sys.modules[name] = None
sys.argv = ["ztdpu", *sys.argv[1:]]
from ztdpu.cli import main
main()
"""


def test_verify_needs_neither_control_nor_linux(tmp_path: Path) -> None:
    """A file of a device that policies/ has; modules of other systems' absence stand for those systems."""
    world, file = World(), tmp_path / "dpu-0.evidence"
    octets = encode_file(make_file(world), world.ear_key)
    (tmp_path / "root.pem").write_text(world.manufacturer.root_pem())
    (tmp_path / "ear.pem").write_bytes(
        world.ear_key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )

    def verify(content: bytes, *more: str) -> subprocess.CompletedProcess[str]:
        file.write_bytes(content)
        command = [sys.executable, "-c", LIGHT, "attestation", "verify", str(file), "--policy", str(ROOT / "policies")]
        return subprocess.run([*command, *more], capture_output=True, text=True, timeout=60, check=False)

    named = ("--root", str(tmp_path / "root.pem"), "--ear-key", str(tmp_path / "ear.pem"))
    good = verify(octets, *named)
    assert (good.returncode, good.stderr) == (0, ""), good.stderr
    assert "dpu-0: affirming, gets a lease by policy standard" in good.stdout
    assert "said the same" in good.stdout
    assert "bluefield-3.yaml" in good.stdout
    assert "name your own with --root" in verify(octets).stderr
    changed = bytearray(octets)
    changed[random.Random(7).randrange(len(changed))] ^= 16
    bad = verify(bytes(changed), *named)
    assert (bad.returncode, bad.stdout) == (1, "")
    assert bad.stderr.startswith("error: ")
    assert "Traceback" not in bad.stderr


def test_table_shows_short_digests_and_wide_all_of_them(answer_with: Any, capsys: Any) -> None:
    check = Check(
        place="3",
        component="nic-firmware",
        dimension=Dimension.EXECUTABLES,
        result=CheckResult.UNEXPECTED,
        expected=("a" * 128,),
        seen="b" * 128,
        source="reference.yaml:3:5",
    )
    answer_with(dataclasses.replace(report(FINDING), checks=(check,)))
    attestation.show("dpu-0")
    shown = capsys.readouterr().out
    assert "b" * 12 + "…" in shown
    assert "b" * 13 not in shown
    attestation.show("dpu-0", output=Format.WIDE)
    assert "b" * 128 in capsys.readouterr().out


def test_the_signed_result_alone(answer_with: Any, capsys: Any) -> None:
    answer_with(dataclasses.replace(report(), ear_cwt=b"\xd2\x84"))
    attestation.show("dpu-0", ear=attestation.EarForm.JWT)
    attestation.show("dpu-0", ear=attestation.EarForm.CWT)
    assert capsys.readouterr().out.splitlines() == [report().ear, "d284"]
    answer_with(report())
    with pytest.raises(StateError, match="no signed result"):
        attestation.show("dpu-0", ear=attestation.EarForm.CWT)


def test_findings_with_one_cause_share_a_heading():
    def finding(code: str, index: int) -> Finding:
        return Finding(
            code=code, message=f"m{index}", dimension=Dimension.EXECUTABLES, claim=96, index=index,
            expected=(">= 1",), seen="0", source="a.yaml:1:1",
        )  # fmt: skip

    lines = attestation.findings_lines([finding("low", 1), finding("other", 2), finding("low", 3)], "  ")
    assert lines[0] == "  low, 2 times; executables becomes 96"
    assert lines[1:3] == [f"    index {n}: m{n}; expected >= 1, seen 0; by a.yaml:1:1" for n in (1, 3)]
    assert lines[3].startswith("  other (index 2): m2")
