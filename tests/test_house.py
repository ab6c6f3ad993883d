"""Habits that a machine can watch: sizes, names, layers, lightness."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ztdpu"
FILE_LINES, FUNCTION_LINES = 400, 60
DUMPING_GROUNDS = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}


def modules() -> Iterator[Path]:
    return (
        path
        for path in sorted(PACKAGE.rglob("*.py"))
        if not any(path.is_relative_to(PACKAGE / made) for made in ("v1", "workloadapi"))
    )


def test_no_module_is_a_dumping_ground() -> None:
    assert not [path for path in modules() if path.stem in DUMPING_GROUNDS]


def test_files_and_functions_stay_small() -> None:
    too_long = []
    for path in modules():
        text = path.read_text()
        if text.count("\n") > FILE_LINES:
            too_long.append(f"{path.relative_to(ROOT)}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES:
                    too_long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {lines} lines")
    assert not too_long


def test_every_module_says_what_it_owns() -> None:
    silent = [path for path in modules() if not ast.get_docstring(ast.parse(path.read_text()))]
    assert not silent


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=tree,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("tree")
    shutil.copytree(PACKAGE, tree / "ztdpu", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    return tree


def test_layers_hold(copy: Path) -> None:
    result = lint_imports(copy)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("psp/seal.py", "import ztdpu.policy.load", "Layers"),
        ("keys/lease.py", "import time", "Cores import no clock"),
        ("agent/mailbox.py", "import asyncio", "The worker stays light"),
        ("cli/version.py", "import ztdpu.v1.agent_pb2", "Generated code"),
        ("cli/app.py", "import pydantic", "The command line root is light"),
    ],
)
def test_a_planted_violation_is_caught(copy: Path, module: str, line: str, contract: str) -> None:
    path = copy / "ztdpu" / module
    good = path.read_text()
    path.write_text(
        good.replace("from __future__ import annotations\n", f"from __future__ import annotations\n{line}\n", 1)
    )
    try:
        result = lint_imports(copy)
    finally:
        path.write_text(good)
    assert result.returncode != 0
    broken = [row for row in result.stdout.splitlines() if row.endswith("BROKEN")]
    assert any(row.startswith(contract) for row in broken), result.stdout


def test_the_worker_and_the_help_screen_stay_light() -> None:
    heavy = (
        "asyncio",
        "grpc",
        "google",
        "pydantic",
        "sqlalchemy",
        "structlog",
        "ztdpu.policy",
        "ztdpu.trust",
        "ztdpu.rpc",
    )
    for statement, forbidden in (
        ("import ztdpu.agent.worker.__main__", heavy),
        ("import ztdpu.cli.app", (*heavy, "cryptography", "numpy", "scapy")),
    ):
        probe = f"import sys; {statement}; print([m for m in {forbidden!r} if m in sys.modules])"
        answer = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=30, check=True)
        if "cli" in statement:
            # rich and typer bring asyncio themselves; our own modules and the services are what counts there.
            answer.stdout = answer.stdout.replace("'asyncio'", "").replace("[, ", "[")
        assert answer.stdout.strip() == "[]", statement
