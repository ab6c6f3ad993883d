"""`ztdpu status`: the whole cluster on one screen."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import typer

from ztdpu.cli.connection import ServerOption, as_age, connect
from ztdpu.cli.device import COLUMNS, device_row, print_late
from ztdpu.cli.output import Format, FormatOption, print_document, print_rows

if TYPE_CHECKING:
    from ztdpu.rpc.client import ControlClient

app = typer.Typer()


@app.command()
def status(server: ServerOption = None, output: FormatOption = Format.TABLE) -> None:
    """Show how the whole cluster stands."""
    with connect(server) as client:
        control, devices = client.status(), client.list_devices()
        ending = _ending(client)
    if output in (Format.JSON, Format.YAML):
        document = dataclasses.asdict(control) | {
            "device_list": [dataclasses.asdict(one) for one in devices],
            "identities_ending": ending,
        }
        print_document(document, output=output)
        return
    print(
        f"control    ztdpu {control.version}, trust domain {control.trust_domain}, up {as_age(control.started_unix_ms)}"
    )
    print(
        f"devices    {control.devices_ready} of {control.devices} ready,"
        f" {control.devices_leased} leased, {control.devices_connected} connected"
    )
    faults = f", {control.policy_faults} FAULTS at the last sync" if control.policy_faults else ""
    print(f"policy     {control.tenants} tenants, {control.endpoints} endpoints{faults}")
    print(
        f"state      generation {control.generation}, roster {control.roster_serial},"
        f" {control.audit_size} audit entries"
    )
    if ending:
        print(f"identities ABOUT TO END, or over: {', '.join(ending)} (`ztdpu identity list`)")
    print()
    print_rows([device_row(one) for one in devices], columns=COLUMNS, shrink=("policy", "name"))
    print_late(devices)


def _ending(client: ControlClient) -> list[str]:
    """Names of authorities, of control and of connected devices whose certificates have little life left."""
    from ztdpu.model.device import DeviceState
    from ztdpu.model.identity import Expiry, IdentityKind

    away = {DeviceState.STALE, DeviceState.PENDING, DeviceState.REVOKED}
    return [
        one.authority if one.kind is IdentityKind.AUTHORITY else one.spiffe_id.rpartition("/")[2]
        for one in client.list_identities().identities
        if one.expiry is not Expiry.OK and one.state not in away
    ]
