"""`ztdpu policy verify`: control's own judgement of commits, before they are pushed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ztdpu.cli.output import Format, FormatOption, print_document, print_rows

_ID_SHOWN = 12
_PATHS_SHOWN = 3


def verify(
    directory: Annotated[Path, typer.Argument(help="Checkout of the policy repository.")] = Path(),
    base: Annotated[
        str, typer.Option("--base", help="Commit that control has accepted; without it only files are looked at.")
    ] = "",
    tip: Annotated[str, typer.Option("--tip", help="Last commit to judge.")] = "HEAD",
    output: FormatOption = Format.TABLE,
) -> None:
    """Judge commits as control does: signatures, owners of paths, history, owners of tenants, tests of both ends.

    Exit status 1 when control would refuse them.
    """
    from ztdpu.control.source.local_history import verify_files, verify_history

    if not base:
        cluster = verify_files(directory)
        print(f"{directory}: owners and signers are good. {len(cluster.placed)} documents")
        return
    found = verify_history(directory, base=base, tip=tip, now_unix_s=int(time.time()))
    rows = [
        {
            "commit": step.commit.commit_id[:_ID_SHOWN],
            "signer": step.signer,
            "paths": ", ".join(step.paths[:_PATHS_SHOWN]) + (", ..." if len(step.paths) > _PATHS_SHOWN else ""),
        }
        for step in found.steps
    ]
    if output in (Format.JSON, Format.YAML):
        print_document({"ok": True, "commits": rows}, output=output)
    elif rows:
        print_rows(rows, columns=("commit", "signer", "paths"), shrink=("paths",), output=output)
    else:
        print(f"nothing new since {base}")
