"""`ztdpu endpoint`: list, show."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer

from ztdpu.cli.connection import ServerOption, connect
from ztdpu.cli.output import Format, FormatOption, print_document, print_rows

app = typer.Typer(help="List and show endpoints.", no_args_is_help=True)


@app.command("list")
def list_endpoints(
    tenant: Annotated[str, typer.Option("--tenant", help="Of this tenant only.")] = "",
    server: ServerOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """List endpoints and how their devices stand."""
    with connect(server) as client:
        endpoints = client.list_endpoints(tenant_name=tenant)
    print_rows(
        [_document(one) for one in endpoints],
        columns=("name", "ready", "tenant", "device", "device_state", "addresses"),
        wide=("labels", "endpoint_id"),
        shrink=("addresses",),
        output=output,
        empty="no endpoints: the policy in force has no Endpoint documents",
    )


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name of the endpoint.")],
    server: ServerOption = None,
    output: FormatOption = Format.YAML,
) -> None:
    """Show one endpoint."""
    with connect(server) as client:
        print_document(_document(client.get_endpoint(name)), output=output)


def _document(one: Any) -> dict[str, Any]:
    return dataclasses.asdict(one) | {"endpoint_id": one.endpoint_id.hex()}
