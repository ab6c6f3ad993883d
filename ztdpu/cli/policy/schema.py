"""`ztdpu policy schema`: JSON Schema of policy documents, for editors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ztdpu.cli.report import say


def schema(
    directory: Annotated[
        Path | None, typer.Argument(help="Where to write a file per kind and policy.json.", show_default=False)
    ] = None,
    verify: Annotated[  # noqa: FBT002 - typer makes a flag of it
        bool, typer.Option("--verify", help="Write nothing; exit status 1 when a file there is another.")
    ] = False,
) -> None:
    """Write JSON Schema of all kinds into a directory, or name the files without one.

    For an editor with a YAML language server, the first line of a policy file names it:
    `# yaml-language-server: $schema=../schema/policy.json`.
    """
    from ztdpu.policy.schema import schemas

    made = schemas()
    if directory is None:
        print("\n".join(made))
        return
    if verify:
        there = {path.name: path.read_text() for path in directory.glob("*.json")} if directory.is_dir() else {}
        wrong = sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))
        if wrong:
            say(f"{directory}: not what the models say: {', '.join(wrong)}", f"ztdpu policy schema {directory}")
            raise typer.Exit(1)
        return
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in made.items():
        (directory / name).write_text(text)
    print(f"{directory}: {len(made)} files")
