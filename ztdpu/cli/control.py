"""`ztdpu control`: run, healthcheck."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ztdpu.cli.connection import ServerOption, connect

app = typer.Typer(help="Run the control service.", no_args_is_help=True)


@app.command()
def run(
    config: Annotated[Path, typer.Option("--config", "-c", help="Start-up file (ControlConfiguration).")],
) -> None:
    """Run control until SIGTERM; SIGHUP has it read the policy again."""
    # gRPC's lines for its own developers do not belong between ours, which are JSON.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from ztdpu.control.configuration import ControlConfiguration
    from ztdpu.control.run import run as run_control
    from ztdpu.policy.load import read_strict

    run_control(read_strict(config, ControlConfiguration))


@app.command()
def healthcheck(server: ServerOption = None) -> None:
    """Succeed when control serves; for supervisors and containers."""
    with connect(server) as client:
        client.status()
    print("serving")
