"""`ztdpu policy` on files: exit statuses that scripts can trust, faults with their remedies, json that can be read."""

from __future__ import annotations

import json
import os
import re
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


def test_a_test_that_fails_is_4_and_says_where(policies: Path) -> None:
    good = run("test", str(policies), "-o", "json")
    assert good.returncode == 0, good
    assert json.loads(good.stdout)["counts"] == {"passed": 8, "failed": 0}
    rules = policies / "network" / "red.yaml"
    rules.write_text(rules.read_text().replace("port: 1024, endPort: 65535", "port: 22, endPort: 65535"))
    bad = run("test", str(policies), "--only-failed", "-o", "json")
    assert bad.returncode == 4
    (line,) = json.loads(bad.stdout)["results"]
    assert line["line"] == "everybody -> everybody 22/tcp drop"
    assert "red-0 -> red-1: passes on 22/tcp" in line["detail"]
    assert line["where"].startswith(f"{policies}/tests/isolation.yaml:")
    assert "FAIL  everybody -> everybody 22/tcp drop" in run("test", str(policies)).stdout
    rules.write_text("kind: [")
    assert run("test", str(policies)).returncode == 2


def test_a_difference_is_4_and_the_largest_comes_first(policies: Path, tmp_path: Path) -> None:
    before = tmp_path / "before"
    shutil.copytree(policies, before)
    same = run("diff", str(before), str(policies))
    assert (same.returncode, same.stdout) == (0, "no flow is gained or lost\n")
    rules = policies / "network" / "blue.yaml"
    rules.write_text(
        rules.read_text().replace("port: 1024, endPort", "port: 1000, endPort").replace("port: nfs", "port: 22")
    )
    answer = run("diff", str(before), str(policies), "-o", "json")
    assert answer.returncode == 4
    changes = json.loads(answer.stdout)["changes"]
    assert {(one["change"], one["ports"]) for one in changes} == {
        ("gained", "1000-1023/tcp"), ("gained", "1000-1023/udp"), ("lost", "2049/tcp"),
    }  # fmt: skip
    assert [one["change"] for one in changes][-2:] == ["lost", "lost"]
    assert run("diff", str(before), "no-such-thing", "--policy", str(policies)).returncode == 2


def test_a_difference_of_commits(policies: Path) -> None:
    def git(*words: str) -> None:
        author = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *author, "-C", str(policies), *words], check=True, capture_output=True)

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    rules = policies / "network" / "green.yaml"
    rules.write_text(rules.read_text().replace("peering: blue-green", "endpointSelector: {}"))
    git("commit", "-q", "-a", "-m", "two")
    answer = run("diff", "HEAD~1", "HEAD", "--policy", str(policies), "-o", "json")
    assert answer.returncode == 4, answer
    assert {(one["change"], one["to"]) for one in json.loads(answer.stdout)["changes"]} == {("lost", "green-0")}
    told = run("explain", "--policy", str(policies), *FLOW, "5000/tcp", "-o", "json")
    commits = {step["commit"] for step in json.loads(told.stdout)["steps"] if step["where"]}
    assert all(re.fullmatch("[0-9a-f]{7,}", commit) for commit in commits), commits


def test_a_proof_names_what_passes(policies: Path) -> None:
    proof = run("prove", str(policies), "-o", "json")
    assert proof.returncode == 0
    answer = json.loads(proof.stdout)
    assert (answer["pairs"], [one["peering"] for one in answer["witnesses"]]) == (3, ["blue-green"])
    assert run("prove", str(policies), "--without-peerings").returncode == 4


def test_schemas_are_verified(tmp_path: Path) -> None:
    assert run("schema", str(tmp_path)).returncode == 0
    assert run("schema", str(tmp_path), "--verify").returncode == 0
    (tmp_path / "Tenant.json").write_text("{}")
    answer = run("schema", str(tmp_path), "--verify")
    assert answer.returncode == 1
    assert "Tenant.json" in answer.stderr
