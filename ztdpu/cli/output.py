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
    floors: Mapping[str, int] | None = None,
    optional: Sequence[str] = (),
    output: Format = Format.TABLE,
    empty: str = "nothing there",
) -> bool:
    """Print one line per row. `columns` (and `wide`, with `-o wide`) name keys of the rows; json and yaml print all.

    `shrink` names the columns that give way in a narrow terminal, the first of them first; it may name columns that
    are not shown this time. `floors` says how many characters of one are still worth reading: below that an `optional`
    column is left out before any is cut further. Returns whether something was cut or left out.
    """
    if output in (Format.JSON, Format.YAML):
        print_document([dict(row) for row in rows], output=output)
        return False
    if not rows:
        print(empty, file=sys.stderr)
        return False
    shown = [*columns, *(wide if output is Format.WIDE else ())]
    table = {key: [key.replace("_", " ").upper(), *(plain(_cell(row.get(key))) for row in rows)] for key in shown}
    full = {key: max(map(len, cells)) for key, cells in table.items()}
    widths = dict(full)
    if output is Format.TABLE and is_terminal():
        widths = _fit(full, shrink, floors or {}, optional, shutil.get_terminal_size().columns)
    for number in range(len(rows) + 1):
        cells = (_cut(table[key][number], width).ljust(width) for key, width in widths.items())
        print(GAP.join(cells).rstrip())
    left_out = [table[key][0] for key in shown if key not in widths]
    if left_out:
        print(f"left out: {', '.join(left_out)} (-o wide has all)", file=sys.stderr)
    return widths != full


def _fit(
    full: Mapping[str, int], shrink: Sequence[str], floors: Mapping[str, int], optional: Sequence[str], limit: int
) -> dict[str, int]:
    """Widths of the columns that stay, so that a row has at most `limit` characters, if that can be had."""
    kept = dict(full)
    for spare in (None, *optional):
        kept.pop(spare or "", None)
        widths = _narrow(kept, shrink, floors, limit)
        if _width(widths) <= limit:
            return widths
    return _narrow(widths, shrink, {}, limit)


def _narrow(widths: Mapping[str, int], shrink: Sequence[str], floors: Mapping[str, int], limit: int) -> dict[str, int]:
    narrow = dict(widths)
    for key in shrink:
        if key in narrow:
            floor = min(narrow[key], floors.get(key, NARROWEST))
            narrow[key] = max(floor, narrow[key] - max(_width(narrow) - limit, 0))
    return narrow


def _width(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + len(GAP) * (len(widths) - 1)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "\u2026"


def is_terminal() -> bool:
    """Whether somebody reads stdout as lines of a certain width."""
    return sys.stdout.isatty()


def wrapped(line: str) -> list[str]:
    """A line for people as lines of a terminal: broken between words, what follows two deeper than the line began."""
    if not is_terminal():
        return [line]
    import textwrap

    start = len(line) - len(line.lstrip(" \u2502\u251c\u2514\u2500"))
    bar = line[:start].replace("\u251c", "\u2502").replace("\u2514", " ").replace("\u2500", " ")
    return textwrap.wrap(
        line,
        shutil.get_terminal_size().columns,
        subsequent_indent=f"{bar}  ",
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
        replace_whitespace=False,
        expand_tabs=False,
    ) or [line]


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
