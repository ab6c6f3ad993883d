"""How every command prints: data on stdout as table, wide, json or yaml; words on stderr.

A table in a terminal has one line a row: what a command names as `shrink` is cut there until rows fit. Into a pipe or
a file nothing is ever cut or wrapped.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

GAP: Final = "  "
NARROWEST: Final = 8
"""No cell is cut to fewer characters."""


class Format(StrEnum):
    """Choices of `-o`."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


FormatOption = Annotated[
    Format, typer.Option("-o", "--output", metavar="FORMAT", help="table, wide, json or yaml.", case_sensitive=False)
]


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    *,
    columns: Sequence[str],
    wide: Sequence[str] = (),
    shrink: Sequence[str] = (),
    output: Format = Format.TABLE,
    empty: str = "nothing there",
) -> None:
    """Print one line per row. `columns` (and `wide`, with `-o wide`) name keys of the rows; json and yaml print all.

    `shrink` names the columns that give way in a narrow terminal, the first of them first; it may name columns that
    are not shown this time.
    """
    if output in (Format.JSON, Format.YAML):
        print_document([dict(row) for row in rows], output=output)
        return
    if not rows:
        print(empty, file=sys.stderr)
        return
    shown = [*columns, *(wide if output is Format.WIDE else ())]
    cells = [[plain(_cell(row.get(key))) for key in shown] for row in rows]
    heads = [key.replace("_", " ").upper() for key in shown]
    widths = [max(len(line[i]) for line in [heads, *cells]) for i in range(len(shown))]
    if output is Format.TABLE and sys.stdout.isatty():
        _fit(widths, [shown.index(key) for key in shrink if key in shown], shutil.get_terminal_size().columns)
    for line in [heads, *cells]:
        print(GAP.join(_cut(text, width).ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def _fit(widths: list[int], order: Sequence[int], limit: int) -> None:
    """Narrow columns in the given order until a row has at most `limit` characters, or none can give way."""
    for index in order:
        surplus = sum(widths) + len(GAP) * (len(widths) - 1) - limit
        widths[index] = max(min(widths[index], NARROWEST), widths[index] - max(surplus, 0))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "\u2026"


def print_document(document: Any, *, output: Format = Format.JSON) -> None:
    """Print one value as json, or as yaml for every other format."""
    if output is Format.JSON:
        print(json.dumps(document, indent=2, default=str))
        return
    from ruamel.yaml import YAML

    plain = json.loads(json.dumps(document, default=str))
    writer = YAML()
    writer.default_flow_style = False
    writer.width = sys.maxsize  # a long value stays on the line of its key
    writer.dump(plain, sys.stdout)


def plain(text: str) -> str:
    """One line without anything that a terminal obeys: much of what is printed was said by a device or a stranger."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value) or "-"
    if isinstance(value, Mapping):
        return ",".join(f"{key}={item}" for key, item in value.items()) or "-"
    return str(value)
