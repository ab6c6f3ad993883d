"""Tables: they fit a terminal, and are whole everywhere else."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from ztdpu.cli import output

ROW = {"name": "dpu-0", "reason": "a very long reason " * 10, "hash": "ab" * 32}


def test_a_terminal_gets_rows_that_fit(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output.print_rows([ROW], columns=("name", "reason"), shrink=("reason",))
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[1].endswith("\u2026")


def test_a_pipe_gets_everything(capsys: Any) -> None:
    output.print_rows([ROW], columns=("name", "reason"), shrink=("reason",))
    assert ROW["reason"].strip() in capsys.readouterr().out


def test_yaml_never_breaks_a_value(capsys: Any) -> None:
    output.print_document(ROW, output=output.Format.YAML)
    assert len(capsys.readouterr().out.splitlines()) == 3
