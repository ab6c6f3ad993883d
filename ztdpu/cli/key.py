"""`ztdpu key`: list, rotate. Keys themselves are never shown."""

# ruff: noqa: FBT002 - typer makes flags of them
from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from ztdpu.cli.connection import ServerOption, as_age, connect
from ztdpu.cli.output import Format, FormatOption, print_document, print_rows

app = typer.Typer(help="List and rotate keys.", no_args_is_help=True)


@app.command("list")
def list_keys(server: ServerOption = None, output: FormatOption = Format.TABLE) -> None:
    """List the epoch key of each tenant's network, and who uses it."""
    with connect(server) as client:
        keys = client.list_keys()
    if output in (Format.JSON, Format.YAML):
        print_document([dataclasses.asdict(one) for one in keys], output=output)
        return
    print_rows(
        [dataclasses.asdict(one) | {"age": as_age(one.created_unix_ms)} for one in keys],
        columns=("tenant", "epoch", "age", "cause", "devices_current", "devices_behind"),
        wide=("network_id", "network_generation"),
        shrink=("cause", "devices_current", "devices_behind"),
        output=output,
        empty="no keys: the signed roster names no networks",
    )


@app.command()
def rotate(
    tenant: Annotated[str | None, typer.Option("--tenant", help="A new epoch for this tenant's network.")] = None,
    device: Annotated[str | None, typer.Option("--device", help="A new master key on this device.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Although a leased sender lags behind.")] = False,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why; it stands in the audit log.")] = "rotation",
    server: ServerOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Rotate keys: the new one is in use before the old one goes."""
    with connect(server) as client:
        rotation = client.rotate_keys(tenant=tenant, device=device, force=force, reason=reason)
    if output in (Format.JSON, Format.YAML):
        print_document(dataclasses.asdict(rotation), output=output)
        return
    what = f"epoch {rotation.epoch} of {tenant}" if tenant else f"master key of {device}"
    print(f"{what}: told {', '.join(rotation.devices) or 'nobody (no leased device is connected)'}")
