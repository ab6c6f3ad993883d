"""`ztdpu lab`: an emulated cluster on this machine."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from ztdpu.cli.output import Format, FormatOption, print_document, print_rows
from ztdpu.lab.layout import DEFAULT_MTU_OCTETS, DEFAULT_PREFIX, DEFAULT_STATE

app = typer.Typer(no_args_is_help=True, help="An emulated cluster on this machine.")

StateOption = Annotated[Path, typer.Option("--state", envvar="ZTDPU_STATE", help="Directory of the lab.")]


@app.command()
def up(
    *,
    devices: Annotated[
        int | None, typer.Option(min=1, help="How many devices; what the policy lacks is generated.")
    ] = None,
    policy: Annotated[Path | None, typer.Option(help="Directory of policy files.")] = None,
    state: StateOption = DEFAULT_STATE,
    mtu: Annotated[int, typer.Option(min=1400, max=65535, help="MTU of the fabric, octets.")] = DEFAULT_MTU_OCTETS,
    prefix: Annotated[str, typer.Option(help="First part of the namespaces' names.")] = DEFAULT_PREFIX,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between two attestations.")] = 10,
    lease: Annotated[float, typer.Option(min=2, help="Seconds that a lease lasts.")] = 60,
    stranger: Annotated[
        list[str] | None, typer.Option(hidden=True, help="A device without endpoint and agent.")
    ] = None,
) -> None:
    """Build a cluster and return when every device is attested and ready."""
    from ztdpu.lab.cluster import start_lab

    start = time.monotonic()

    def progress(words: str) -> None:
        print(f"{time.monotonic() - start:6.2f} s  {words}", file=sys.stderr)

    record = start_lab(
        state=state,
        prefix=prefix,
        mtu_octets=mtu,
        policy=policy,
        devices=devices,
        strangers=tuple(stranger or ()),
        interval_s=interval,
        lease_s=lease,
        progress=progress,
    )
    plan = record.plan
    print(f"{time.monotonic() - start:6.2f} s  ready", file=sys.stderr)
    print(f"{len(plan.devices)} devices, {len(plan.endpoints)} endpoints: {', '.join(e.name for e in plan.endpoints)}")
    tenants = [[e.name for e in plan.endpoints if e.tenant == first.tenant] for first in plan.endpoints]
    pair = next((names for names in tenants if len(names) > 1), None)
    if pair:
        print(f"try: ztdpu lab exec {pair[0]} -- ping -c3 {pair[1]}", file=sys.stderr)


@app.command()
def status(*, state: StateOption = DEFAULT_STATE, output: FormatOption = Format.TABLE) -> None:
    """Say how the lab stands."""
    from ztdpu.lab.record import require_record
    from ztdpu.lab.status import describe_lab

    document = describe_lab(require_record(state.absolute()))
    if output in (Format.JSON, Format.YAML):
        print_document(document, output=output)
        return
    control = document["control"]
    where = f"isolation {document['isolation']}, fabric {document['fabric']}, MTU {document['mtu_octets']}"
    print(f"lab {document['state']} ({where}); control {'answers' if control['answers'] else control['trouble']}\n")
    print_rows(
        document["devices"],
        columns=("name", "state", "tier", "ready", "lease_s", "underlay_address", "agent_pid", "worker_pid"),
        wide=("namespace", "oob_address", "root_of_trust_pid", "uid_base", "waiting_for", "log"),
        output=output,
    )
    print()
    print_rows(
        document["endpoints"],
        columns=("name", "tenant", "device", "ready", "addresses", "pid"),
        wide=("namespace", "mtu_octets", "uid_base"),
        output=output,
    )


@app.command(name="exec", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def execute(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="An endpoint, a device, `fabric` or `control`.")],
    *,
    state: StateOption = DEFAULT_STATE,
) -> None:
    """Run a command inside: ztdpu lab exec blue-0 -- ping -c3 blue-1."""
    from ztdpu.errors import UsageError
    from ztdpu.lab.enter import base_environment, run_inside
    from ztdpu.lab.record import require_record

    argv = context.args[1:] if context.args[:1] == ["--"] else context.args
    if not argv:
        raise UsageError("no command to run", remedy=f"ztdpu lab exec {target} -- COMMAND [ARGUMENT...]")
    record = require_record(state.absolute())
    raise typer.Exit(run_inside(record, target, argv, environment=base_environment(record.plan.state)))


@app.command()
def down(*, state: StateOption = DEFAULT_STATE) -> None:
    """Take the cluster away: no namespace, process or file stays, also after a crash."""
    from ztdpu.lab.cluster import require_root
    from ztdpu.lab.takedown import stop_lab

    require_root()
    found = stop_lab(state.absolute())
    print("the lab is down" if found else f"no lab in {state}", file=sys.stderr)
