"""Tables: they fit a terminal, and are whole everywhere else."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from ztdpu.cli import output
from ztdpu.cli.report import report
from ztdpu.errors import EvidenceError

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


HOSTILE = "fine\x1b[2J\x1b]0;title\x07\nok: verified\u202eabc"


def test_a_terminal_is_never_told_what_to_do(capsys: Any) -> None:
    """Names, reasons and findings are said by devices, and a table has one line a row."""
    output.print_rows([ROW | {"reason": HOSTILE}], columns=("name", "reason"))
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 2
    assert all(line.isprintable() for line in printed.splitlines())
    assert r"fine\x1b[2J" in printed
    assert output.plain("plain text, m\u00fctlich: 1 \u2192 2") == "plain text, m\u00fctlich: 1 \u2192 2"


@pytest.mark.parametrize("word", ["json", "yaml"])
def test_documents_are_escaped(word: str, capsys: Any) -> None:
    output.print_document({"reason": HOSTILE}, output=output.Format(word))
    assert "\x1b" not in capsys.readouterr().out


def test_errors_keep_their_lines_and_nothing_else(capsys: Any) -> None:
    report(EvidenceError(f"first\nthe control of {HOSTILE}", remedy=HOSTILE))
    printed = capsys.readouterr().err
    assert "error: first\n" in printed
    assert "\x1b" not in printed
    assert "\u202e" not in printed
