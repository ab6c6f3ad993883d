"""The root command: its own options, wrong words, and how failures look."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ztdpu
from ztdpu.cli.app import NOUNS


def run(*arguments: str, columns: int = 200) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": str(columns)}
    command = [sys.executable, "-c", "from ztdpu.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=30, check=False)


def test_version_both_ways() -> None:
    assert run("--version").stdout == run("version").stdout == f"ztdpu {ztdpu.__version__}\n"


@pytest.mark.parametrize("noun", NOUNS)
def test_completion_is_offered_at_the_root_alone(noun: str) -> None:
    answer = run(noun, "--help")
    assert answer.returncode == 0, answer.stderr
    assert "completion" not in answer.stdout
    assert "table|wide" not in answer.stdout


def test_root_help_names_exit_statuses_and_completion() -> None:
    shown = run("--help").stdout
    assert "install-completion" in shown
    assert "Exit status" in shown


@pytest.mark.parametrize(
    ("arguments", "message", "remedy"),
    [
        (("devices", "list"), "no command 'devices'", "did you mean `ztdpu device list`?"),
        (("frobnicate",), "no command 'frobnicate'", "`ztdpu --help`"),
        (("device", "lst"), "no command 'lst'", "did you mean `ztdpu device list`?"),
        (("device", "list", "--foo"), "no such option: --foo", "`ztdpu device list --help`"),
        (("device", "revoke", "dpu-0"), "missing option '--reason' / '-r'", "`ztdpu device revoke --help`"),
        (("device", "list", "-o", "xml"), "invalid value for '-o' / '--output'", "`ztdpu device list --help`"),
    ],
)
def test_usage_errors_look_like_all_others(arguments: tuple[str, ...], message: str, remedy: str) -> None:
    answer = run(*arguments)
    assert answer.returncode == 2
    assert not answer.stdout
    first, second = answer.stderr.splitlines()
    assert first.startswith(f"error: {message}")
    assert second == f"  next: {remedy}"


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    program = (
        "from ztdpu.cli import attestation; from ztdpu.cli import main\n"
        "class Client:\n"
        "    def __enter__(self): return self\n"
        "    def __exit__(self, *_): pass\n"
        "    def export_attestation(self, _): return b'x'\n"
        "attestation.connect = lambda _: Client()\n"
        "main()\n"
    )
    target = str(tmp_path / "nowhere" / "ev")
    command = [sys.executable, "-c", program, "attestation", "export", "dpu-0", "-o", target]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert answer.returncode == 1
    assert answer.stderr.splitlines() == [f"error: {target}: No such file or directory", "  next: check the path"]
