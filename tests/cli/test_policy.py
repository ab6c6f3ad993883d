"""`ztdpu policy lint` and `explain`: exit statuses that scripts can trust, and faults with their remedies."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ztdpu.policy.example import EXAMPLE_POLICIES

FLOW = ("--from", "blue-0", "--to", "blue-1", "--port")


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200"}
    command = [sys.executable, "-c", "from ztdpu.cli import main; main()", "policy", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=30, check=False, cwd=cwd)


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLE_POLICIES, tmp_path / "policies")
    return tmp_path / "policies"


def test_default_is_the_example_wherever_one_stands(tmp_path: Path) -> None:
    answer = run("lint", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith(f"{EXAMPLE_POLICIES}: good.")
    assert run("lint", cwd=EXAMPLE_POLICIES.parent).stdout.startswith("policies: good.")
    assert run("explain", *FLOW, "5000/tcp", cwd=tmp_path).returncode == 0


def test_explain_tells_a_drop_from_a_mistake(policies: Path, tmp_path: Path) -> None:
    where = ("--policy", str(policies))
    passes = run("explain", *FLOW, "5000/tcp", *where)
    assert (passes.returncode, passes.stderr) == (0, ""), passes
    assert "revision" not in passes.stdout
    dropped = run("explain", "--from", "blue-0", "--to", "red-0", "--port", "22/tcp", *where)
    assert dropped.returncode == 1
    assert "no_route" in dropped.stdout
    for mistake in (
        ("--from", "blue-9", "--to", "blue-1", "--port", "22/tcp", *where),
        (*FLOW, "22/sctp", *where),
        (*FLOW, "22/tcp", "--policy", str(tmp_path / "nowhere")),
    ):
        answer = run("explain", *mistake)
        assert answer.returncode == 2, mistake
        assert "error: " in answer.stderr
        assert not answer.stdout
    (policies / "broken.yaml").write_text("kind: [")
    assert run("explain", *FLOW, "5000/tcp", *where).returncode == 2


def test_lint_tells_faults_from_a_wrong_path(policies: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path, words in (
        (tmp_path / "empty", "no policy documents in"),
        (tmp_path / "nowhere", "no such directory"),
        (policies / "tenants" / "blue.yaml", "is a file"),
    ):
        answer = run("lint", str(path))
        assert answer.returncode == 2
        assert words in answer.stderr
    (policies / "later.yaml").write_text("# nothing yet\n")
    answer = run("lint", str(policies))
    assert answer.returncode == 0
    assert answer.stderr == f"warning: {policies}/later.yaml: no document in it\n"


def test_each_remedy_stands_below_its_fault_once(policies: Path) -> None:
    for name in ("one", "two"):
        (policies / f"{name}.yaml").write_text(f"apiVersion: v0\nkind: Tenant\nmetadata: {{name: {name}}}\n")
    (policies / "zebra.yaml").write_text("apiVersion: ztdpu.dev/v1\nkind: Zebra\n")
    answer = run("lint", str(policies))
    assert answer.returncode == 1
    kinds = [line.split()[0] for line in answer.stderr.splitlines()]
    assert kinds == ["error:", "next:", "error:", "error:", "next:"], answer.stderr
    answer = run("lint", str(policies), "-o", "json")
    assert answer.returncode == 1
    assert [fault["line"] for fault in json.loads(answer.stdout)["faults"]] == [1, 1, 2]
