"""`ztdpu audit`: list, show."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ztdpu.cli.connection import ServerOption, as_time, connect
from ztdpu.cli.output import Format, FormatOption, print_document, print_rows

if TYPE_CHECKING:
    from ztdpu.model.administration import AuditEntry

app = typer.Typer(help="Who changed what, and what was refused.", no_args_is_help=True)

_YEAR: Final = len("2026-")
_INNER_CAPITAL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@app.command("list")
def list_audit(
    first: Annotated[int | None, typer.Option("--from", help="First index; default: the newest entries.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many.")] = 50,
    server: ServerOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """List entries, oldest first.

    In the table refusals that follow each other and are alike share a line, and times have no year; -o wide, json and
    yaml have every entry.
    """
    with connect(server) as client:
        entries = client.list_audit(first=first, limit=limit)
    rows = [_row(one) for one in entries]
    was_cut = print_rows(
        rows if output is not Format.TABLE else fold(rows),
        columns=("index", "time", "outcome", "action", "subject", "reason"),
        wide=("actor", "role", "request_id", "leaf_hash"),
        shrink=("subject", "reason", "action"),
        floors={"subject": 10, "reason": 18, "action": 17},
        output=output,
        empty="no entries",
    )
    if was_cut:
        print("all of one entry: ztdpu audit show INDEX", file=sys.stderr)


@app.command()
def show(
    index: Annotated[int, typer.Argument(min=0, help="Index of the entry.")],
    server: ServerOption = None,
    output: FormatOption = Format.YAML,
) -> None:
    """Show one entry and the hash of its leaf; `-o json` has the leaf too, the text that is hashed."""
    with connect(server) as client:
        entry = client.get_audit(index)
    leaf = {"leaf": entry.leaf.decode("ascii", "replace")} if output is Format.JSON else {}
    print_document(_row(entry) | leaf, output=output)


def fold(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Lines for people: an action in words, a time without its year, and equal refusals in a row as one."""
    lines: list[dict[str, Any]] = []
    for _, group in itertools.groupby(rows, key=_likeness):
        alike = list(group)
        first, last = alike[0], alike[-1]
        line = {**last, "time": str(last["time"])[_YEAR:], "action": _verb(str(first["action"]))}
        if len(alike) > 1:
            line["index"] = f"{first['index']}-{last['index']}"
            line["reason"] = f"x{len(alike)} {last['reason']}"
        lines.append(line)
    return lines


def _likeness(row: Mapping[str, Any]) -> tuple[Any, ...]:
    if row["outcome"] != "refused":
        return (row["index"],)
    return ("refused", row["actor"], row["action"], row["subject"], row["reason"], str(row.get("detail", "")))


def _verb(action: str) -> str:
    """`revoke-device`, also of an entry that names the whole method: /ztdpu.v1.DeviceService/RevokeDevice."""
    method = action.rpartition("/")[2]
    return _INNER_CAPITAL.sub("-", method).lower() if method != action else action


def _row(entry: AuditEntry) -> dict[str, Any]:
    document = json.loads(entry.leaf)
    return {
        "index": entry.index,
        "time": as_time(document["time_unix_ms"]),
        **document,
        "leaf_hash": entry.leaf_hash.hex(),
    }
