"""`ztdpu audit`: list, show."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ztdpu.cli.connection import ServerOption, as_time, connect
from ztdpu.cli.output import Format, FormatOption, print_document, print_rows

if TYPE_CHECKING:
    from ztdpu.model.administration import AuditEntry

app = typer.Typer(help="Who changed what, and what was refused.", no_args_is_help=True)


@app.command("list")
def list_audit(
    first: Annotated[int | None, typer.Option("--from", help="First index; default: the newest entries.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many.")] = 50,
    server: ServerOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """List entries, oldest first."""
    with connect(server) as client:
        entries = client.list_audit(first=first, limit=limit)
    print_rows(
        [_row(one) for one in entries],
        columns=("index", "time", "outcome", "action", "subject", "reason"),
        wide=("actor", "role", "request_id", "leaf_hash"),
        shrink=("reason", "subject"),
        output=output,
        empty="no entries",
    )


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


def _row(entry: AuditEntry) -> dict[str, Any]:
    document = json.loads(entry.leaf)
    return {
        "index": entry.index,
        "time": as_time(document["time_unix_ms"]),
        **document,
        "leaf_hash": entry.leaf_hash.hex(),
    }
