"""How every command prints: data on stdout as table, wide, json or yaml; words on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer


class Format(StrEnum):
    """Choices of `-o`."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


FormatOption = Annotated[Format, typer.Option("-o", "--output", help="How to print the result.")]


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    *,
    columns: Sequence[str],
    wide: Sequence[str] = (),
    output: Format = Format.TABLE,
    empty: str = "nothing there",
) -> None:
    """Print one line per row. `columns` (and `wide`, with `-o wide`) name keys of the rows; json and yaml print all."""
    if output in (Format.JSON, Format.YAML):
        print_document([dict(row) for row in rows], output=output)
        return
    if not rows:
        print(empty, file=sys.stderr)
        return
    shown = [*columns, *(wide if output is Format.WIDE else ())]
    cells = [[_cell(row.get(key)) for key in shown] for row in rows]
    heads = [key.replace("_", " ").upper() for key in shown]
    widths = [max(len(line[i]) for line in [heads, *cells]) for i in range(len(shown))]
    for line in [heads, *cells]:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def print_document(document: Any, *, output: Format = Format.JSON) -> None:
    """Print one value as json, or as yaml for every other format."""
    if output is Format.JSON:
        print(json.dumps(document, indent=2, default=str))
        return
    from ruamel.yaml import YAML

    plain = json.loads(json.dumps(document, default=str))
    writer = YAML()
    writer.default_flow_style = False
    writer.dump(plain, sys.stdout)


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
