"""`ztdpu policy`: verbs on files alone (`files`), and verbs towards control (`source`)."""

from __future__ import annotations

import typer

from ztdpu.cli.policy.files import explain, lint
from ztdpu.cli.policy.source import status, sync

app = typer.Typer(no_args_is_help=True, help="Lint and explain policy files; sync them into control.")

for verb in (lint, explain, sync, status):
    app.command()(verb)
