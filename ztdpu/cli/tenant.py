"""`ztdpu tenant`: list, show."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from ztdpu.cli.connection import ServerOption, connect
from ztdpu.cli.output import Format, FormatOption, print_document, print_rows

app = typer.Typer(help="List and show tenants.", no_args_is_help=True)


@app.command("list")
def list_tenants(server: ServerOption = None, output: FormatOption = Format.TABLE) -> None:
    """List tenants and their networks."""
    with connect(server) as client:
        tenants = client.list_tenants()
    print_rows(
        [dataclasses.asdict(one) for one in tenants],
        columns=("name", "key_epoch", "endpoints", "devices"),
        wide=("network_id", "network_generation"),
        shrink=("endpoints", "devices"),
        output=output,
        empty="no tenants: the policy in force has no Tenant documents",
    )


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name of the tenant.")],
    server: ServerOption = None,
    output: FormatOption = Format.YAML,
) -> None:
    """Show one tenant."""
    with connect(server) as client:
        print_document(dataclasses.asdict(client.get_tenant(name)), output=output)
