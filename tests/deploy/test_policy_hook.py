"""The pre-commit hook and the CI examples: what they stop, what they let through, that their commands exist."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from ruamel.yaml import YAML

from ztdpu.cli.policy import app
from ztdpu.lab.policy_repository import make_policy_repository

DEPLOY = Path(__file__).parents[2] / "deploy"
POLICIES = DEPLOY.parent / "policies"
EXAMPLES = ("policy-gitlab.yaml", "policy-github.yaml")


@pytest.fixture
def work(tmp_path):
    repository = make_policy_repository(tmp_path / "repository", POLICIES)
    hook = repository.work / ".githooks" / "pre-commit"
    hook.parent.mkdir()
    shutil.copy(DEPLOY / "hooks" / "pre-commit", hook)
    run(repository.work, "config", "core.hooksPath", ".githooks")
    return repository.work


def run(work, *words, check=True):
    environment = {"PATH": os.environ["PATH"], "HOME": str(work), "ZTDPU": f"{sys.executable} -m ztdpu"}
    return subprocess.run(
        ["git", *words], cwd=work, env=environment, capture_output=True, text=True, timeout=90, check=check
    )


def commit(work):
    return run(work, "commit", "--quiet", "-m", "x", check=False)


def test_the_hook_stops_what_control_would_refuse_and_nothing_else(work):
    tenant = work / "tenants" / "blue.yaml"
    good = tenant.read_text()
    tenant.write_text(good.replace("suite:", "suit:"))
    run(work, "add", "--all")
    tenant.write_text(good)  # what is staged counts, not what lies there
    stopped = commit(work)
    assert stopped.returncode == 1
    assert re.search(r"tenants/blue.yaml:\d+:3: spec.suit: unknown field", stopped.stderr)

    (work / "network" / "blue.yaml").unlink()
    run(work, "add", "--all")
    stopped = commit(work)
    assert stopped.returncode
    assert "isolation" in stopped.stdout + stopped.stderr, "a policy test fails"

    run(work, "checkout", "--quiet", "HEAD", ".")
    run(work, "config", "commit.gpgsign", "false")
    assert "without an SSH signature" in commit(work).stderr
    run(work, "config", "commit.gpgsign", "true")
    (work / "owners.yaml").write_text("kind: Owners\n")
    run(work, "add", "--all")
    assert "owners.yaml" in commit(work).stderr

    run(work, "checkout", "--quiet", "HEAD", "owners.yaml")
    tenant.write_text(f"# Blue.\n{good}")
    run(work, "add", "--all")
    passed = commit(work)
    assert passed.returncode == 0, passed.stderr
    assert not list(Path(os.environ.get("TMPDIR", "/tmp")).glob("ztdpu-policy.*")), "nothing is left behind"


def verify(work, *words):
    """From inside, as CI does."""
    command = [sys.executable, "-m", "ztdpu", "policy", "verify", ".", *words]
    return subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=60, check=False)


def test_verify_says_before_the_push_what_control_would_say(work):
    (work / "notes").write_text("one\n")
    run(work, "add", "--all")
    run(work, "commit", "--quiet", "--no-verify", "-m", "signed")
    good = verify(work, "--base", "HEAD~1")
    assert (good.returncode, "operator@lab.example" in good.stdout) == (0, True), good.stderr
    assert verify(work, "--base", "HEAD").stdout.startswith("nothing new")
    assert verify(work).returncode == 0
    run(work, "commit", "--quiet", "--no-verify", "--no-gpg-sign", "--allow-empty", "-m", "unsigned")
    bad = verify(work, "--base", "HEAD~2")
    assert bad.returncode == 1
    assert "is not signed" in bad.stderr
    assert verify(work, "--base", "nowhere").returncode == 2


@pytest.mark.parametrize("name", EXAMPLES)
def test_ci_examples_are_yaml_and_call_what_there_is(name):
    text = (DEPLOY / "ci" / name).read_text()
    assert YAML(typ="safe").load(text)
    verbs = set(typer.main.get_command(app).commands)
    called = set(re.findall(r"ztdpu policy ([a-z-]+)", text))
    assert called == {"lint", "test", "verify", "diff"}
    assert called <= verbs
