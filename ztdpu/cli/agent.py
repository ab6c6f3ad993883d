"""`ztdpu agent`: run the agent of a device, and ask whether one is well."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ztdpu.cli.output import Format, FormatOption, print_document

app = typer.Typer(no_args_is_help=True, help="Run the agent of a device.")

ConfigOption = Annotated[
    Path, typer.Option("--config", envvar="ZTDPU_AGENT_CONFIG", help="Start-up file (kind: AgentConfiguration).")
]


@app.command()
def run(config: ConfigOption) -> None:
    """Run the agent of one device in the foreground until SIGTERM."""
    from ztdpu.agent.run import run_agent

    run_agent(config)


@app.command()
def healthcheck(config: ConfigOption, output: FormatOption = Format.TABLE) -> None:
    """Leave with 0 when the agent here holds a lease and is ready, 1 when not yet, 3 when none runs."""
    from dataclasses import asdict

    from ztdpu.agent.run import read_configuration
    from ztdpu.agent.statement import read_health
    from ztdpu.errors import StateError

    health = read_health(read_configuration(config).state_dir)
    if output in (Format.JSON, Format.YAML):
        print_document(asdict(health), output=output)
    elif health.ready:
        print("ready")
    if not health.ready:
        raise StateError(f"not ready: waits for {health.waiting_for}", remedy="the agent's log says why")
