"""Every table of the command, as terminals of 80 and 100 columns show it: none fails, and every one fits."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ztdpu.cli
from ztdpu.cli import output
from ztdpu.cli.audit import fold

PRINTERS = ("print_rows", "_print_parts")
KEYWORDS = ("columns", "wide", "shrink", "floors", "optional")
PACKAGE = Path(ztdpu.cli.__file__).parent


class Unstarred(ast.NodeTransformer):
    """Takes columns that are only sometimes there as not there: what shrinks must bear it."""

    def visit_Starred(self, node: ast.Starred) -> Any:
        return None


def tables() -> Iterator[Any]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(("ztdpu.cli", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in PRINTERS:
                words = {one.arg: Unstarred().visit(one.value) for one in node.keywords if one.arg in KEYWORDS}
                if all(not isinstance(one, ast.Name) or one.id.isupper() for one in words.values()):
                    yield pytest.param(name, words, id=f"{name.removeprefix('ztdpu.cli.')}:{node.lineno}")


def literal(module: str, node: ast.expr) -> Any:
    source = compile(ast.Expression(ast.fix_missing_locations(node)), module, "eval")
    return eval(source, vars(importlib.import_module(module)))


@pytest.fixture(params=[80, 100])
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    return int(request.param)


@pytest.mark.parametrize(("module", "words"), list(tables()))
def test_every_table_is_shown_and_fits(module: str, words: dict[str, ast.expr], columns: int, capsys: Any) -> None:
    chosen = {key: literal(module, node) for key, node in words.items()}
    gives_way = {*chosen.get("shrink", ()), *chosen.get("optional", ())}
    row = {key: "x" * (40 if key in gives_way else 4) for key in (*chosen["columns"], *chosen.get("wide", ()))}
    output.print_rows([row], **chosen)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert max(map(len, lines)) <= columns
    output.print_rows([row], **chosen, output=output.Format.WIDE)
    assert capsys.readouterr().out.count("x" * 40) == sum(len(cell) == 40 for cell in row.values()), "wide cuts nothing"


def test_all_tables_are_seen() -> None:
    assert len(list(tables())) >= 15


def test_an_optional_column_goes_before_others_are_unreadable(columns: int, capsys: Any) -> None:
    row = {"name": "n" * 60, "where": "w" * 20}
    was_cut = output.print_rows(
        [row], columns=("name", "where"), shrink=("name",), floors={"name": 60}, optional=("where",)
    )
    printed = capsys.readouterr()
    assert ("w" * 20 in printed.out) is (columns == 100)
    assert ("left out: WHERE" in printed.err) is was_cut is (columns == 80)


LONG = "stale without fresh evidence, which is asked for every ten seconds while the agent is connected to control"


def test_a_terminal_breaks_lines_between_words(columns: int) -> None:
    lines = output.wrapped(f"  ├─ yes leased     {LONG}")
    assert max(map(len, lines)) <= columns
    assert len(lines) > 1
    assert all(line.startswith("  │ ") for line in lines[1:])
    assert " ".join(line.lstrip(" │├─") for line in lines).split() == f"yes leased {LONG}".split()
    assert output.wrapped("id " + "ab" * 60)[-1].endswith("ab" * 60), "an id is never broken"


def test_a_pipe_gets_lines_as_they_are() -> None:
    assert output.wrapped(f"  {LONG}") == [f"  {LONG}"]


def entry(index: int, **changed: Any) -> dict[str, Any]:
    found = {"index": index, "time": f"2026-12-01 04:56:{index:02}Z", "outcome": "refused", "actor": "dpu-1"}
    return found | {"action": "/ztdpu.v1.AgentService/OpenStream", "subject": "dpu-1", "reason": "revoked"} | changed


def test_equal_refusals_in_a_row_share_a_line() -> None:
    lines = fold([entry(1), entry(2), entry(3), entry(4, actor="dpu-2"), entry(5, outcome="done"), entry(6)])
    assert [line["index"] for line in lines] == ["1-3", 4, 5, 6]
    assert lines[0]["reason"] == "x3 revoked"
    assert lines[0]["action"] == "open-stream"
    assert lines[0]["time"] == "12-01 04:56:03Z"
    done = [entry(1, outcome="done", action="attest"), entry(2, outcome="done", action="attest")]
    assert [(line["index"], line["action"]) for line in fold(done)] == [(1, "attest"), (2, "attest")]
