"""`ztdpu lab`: an emulated cluster on this machine."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from ztdpu.cli.lab_device import fault, reference_values, root_of_trust
from ztdpu.cli.output import Format, FormatOption, print_document, print_rows
from ztdpu.lab.fabric.choice import BETWEEN, Fabric
from ztdpu.lab.layout import DEFAULT_MTU_OCTETS, DEFAULT_PREFIX, DEFAULT_STATE, lab_command, real_path
from ztdpu.rpc.places import ADMIN_SOCKET_OF_LAB

if TYPE_CHECKING:
    from ztdpu.lab.record import LabRecord

app = typer.Typer(no_args_is_help=True, help="An emulated cluster on this machine.")

StateOption = Annotated[Path, typer.Option("--state", envvar="ZTDPU_STATE", help="Directory of the lab.")]
FabricOption = Annotated[
    Fabric | None,
    typer.Option("--fabric", envvar="ZTDPU_FABRIC", help="What the lab is made of; default: the best that works here."),
]
DevicesOption = Annotated[int | None, typer.Option(min=1, help="How many devices; what the policy lacks is generated.")]
PolicyGitOption = Annotated[
    Path | None,
    typer.Option("--policy-git", help="New directory for a git repository of the policy, which control reads."),
]
StrangerOption = Annotated[list[str] | None, typer.Option(hidden=True, help="A device without endpoint and agent.")]
_UNKNOWN: Final = "?"


@app.command()
def up(
    *,
    devices: DevicesOption = None,
    policy: Annotated[Path | None, typer.Option(help="Directory of policy files.")] = None,
    policy_git: PolicyGitOption = None,
    state: StateOption = DEFAULT_STATE,
    mtu: Annotated[int, typer.Option(min=1400, max=65535, help="MTU of the fabric, octets.")] = DEFAULT_MTU_OCTETS,
    prefix: Annotated[str, typer.Option(help="First part of the namespaces' names.")] = DEFAULT_PREFIX,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between two attestations.")] = 10,
    lease: Annotated[float, typer.Option(min=2, help="Seconds that a lease lasts.")] = 60,
    fabric: FabricOption = None,
    replace: Annotated[bool, typer.Option("--replace", help="Take a lab that is there down first.")] = False,
    stranger: StrangerOption = None,
) -> None:
    """Build a cluster and return when every device is attested and ready."""
    from ztdpu.lab.cluster import start_lab
    from ztdpu.lab.fabric.choice import choose_fabric
    from ztdpu.lab.interruption import Interruption
    from ztdpu.lab.takedown import say_on_stderr, stop_lab

    start = time.monotonic()

    def progress(words: str) -> None:
        say_on_stderr(f"{time.monotonic() - start:6.2f} s  {words}")

    choice = choose_fabric(fabric, command="ztdpu lab up")
    progress(f"{choice.fabric} fabric: {choice.why}")
    if choice.more:
        progress(choice.more)
    record = None
    with Interruption() as interruption:
        with suppress(KeyboardInterrupt):
            record = start_lab(
                state=state,
                fabric=choice.fabric,
                prefix=prefix,
                mtu_octets=mtu,
                policy=policy,
                policy_git=policy_git,
                devices=devices,
                strangers=tuple(stranger or ()),
                interval_s=interval,
                lease_s=lease,
                replace=replace,
                progress=progress,
            )
        if record is None or interruption.number:
            if record is not None:  # the signal came when all was up
                stop_lab(state)
            say_on_stderr("interrupted: nothing of the lab is left")
            raise typer.Exit(interruption.exit_status)
    progress("ready")
    _print_what_is_there(record)


def _print_what_is_there(record: LabRecord) -> None:
    """Print devices and endpoints, and a command that shows something."""
    from ztdpu.lab.takedown import say_on_stderr

    plan = record.plan
    if Path(plan.state) != DEFAULT_STATE:
        socket = shlex.quote(str(Path(plan.state) / ADMIN_SOCKET_OF_LAB))
        say_on_stderr(f"other commands find it with: export ZTDPU_STATE={shlex.quote(plan.state)}")
        say_on_stderr(f"  (or, control alone: ZTDPU_SERVER={socket})")
    print(f"{len(plan.devices)} devices, {len(plan.endpoints)} endpoints: {', '.join(e.name for e in plan.endpoints)}")
    tenants = [[e.name for e in plan.endpoints if e.tenant == first.tenant] for first in plan.endpoints]
    pair = next((names for names in tenants if len(names) > 1), None)
    if pair:
        say_on_stderr(f"try: {lab_command('exec', plan.state, f'{pair[0]} -- ping -c3 {pair[1]}')}")


@app.command()
def status(*, state: StateOption = DEFAULT_STATE, output: FormatOption = Format.TABLE) -> None:
    """Say how the lab stands; the exit status is 1 when a part of it is dead."""
    from ztdpu.lab.record import require_record
    from ztdpu.lab.status import describe_lab

    document = describe_lab(require_record(real_path(state)))
    if output in (Format.JSON, Format.YAML):
        print_document(document, output=output)
    else:
        _print_status(document, output)
    if document["trouble"]:
        raise typer.Exit(1)


def _print_status(document: Mapping[str, Any], output: Format) -> None:
    control = document["control"]
    print(f"lab {document['state']}")
    fabric = Fabric(document["fabric"])
    print(f"fabric {fabric}, isolation {document['isolation']}, MTU {document['mtu_octets']}", end="; ")
    print(
        "control answers"
        if control["answers"]
        else "control is dead"
        if control["pid"] is None
        else "control is silent"
    )
    print(BETWEEN[fabric])
    for trouble in document["trouble"]:
        print(f"\n{trouble['what']}")
        if trouble["log"]:
            print(f"  log:  {trouble['log']}")
        print(f"  next: {trouble['next']}")
    for device in document["devices"]:
        if device["trouble"] == "not ready" and device["waiting_for"]:
            print(f"\n{device['name']} waits for {device['waiting_for']}")
    print()
    _print_parts(
        document["devices"],
        shrink=("name",),
        columns=("name", "state", "ready", "lease", "agent_pid", "worker_pid"),
        wide=(
            "tier",
            "underlay_address",
            "namespace",
            "oob_address",
            "root_of_trust_pid",
            "uid_base",
            "waiting_for",
            "log",
        ),
        output=output,
    )
    print()
    _print_parts(
        document["endpoints"],
        shrink=("addresses", "name"),
        columns=("name", "tenant", "device", "ready", "addresses"),
        wide=("pid", "namespace", "mtu_octets", "uid_base"),
        output=output,
    )


def _print_parts(
    parts: list[dict[str, Any]],
    *,
    columns: tuple[str, ...],
    wide: tuple[str, ...],
    shrink: tuple[str, ...],
    output: Format,
) -> None:
    """Print one table; what only control knows and does not say is `?`, and TROUBLE is a column when there is some."""
    told = ("state", "tier", "ready", "lease_s", "waiting_for")
    rows = [
        {key: _UNKNOWN if value is None and key in told else value for key, value in part.items()} | _lease(part)
        for part in parts
    ]
    trouble = ("trouble",) if any(part["trouble"] for part in parts) else ()
    print_rows(rows, columns=(*columns, *trouble), wide=wide, shrink=shrink, output=output)


def _lease(part: dict[str, Any]) -> dict[str, str]:
    """As `device list` shows it."""
    left_s = part.get("lease_s")
    return {"lease": _UNKNOWN if left_s is None else f"{left_s:.0f}s" if left_s else "-"}


class Exec(TyperCommand):
    """Shows where the options end and the command begins."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002 (the base class fixes the signature)
        """Return what follows the command's name in the usage line."""
        return ["[OPTIONS] TARGET -- COMMAND [ARGS]..."]


@app.command(name="exec", cls=Exec, context_settings={"ignore_unknown_options": True})
def execute(
    target: Annotated[str, typer.Argument(help="An endpoint, a device, `fabric` or `control`.", show_default=False)],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND [ARGS]", help="What to run there.", show_default=False),
    ] = None,
    *,
    state: StateOption = DEFAULT_STATE,
) -> None:
    """Run a command inside, in the present directory where it is visible: ztdpu lab exec blue-0 -- ping -c3 blue-1."""
    from ztdpu.errors import UsageError
    from ztdpu.lab.enter import run_inside
    from ztdpu.lab.processes import base_environment
    from ztdpu.lab.record import require_record

    if not command:
        raise UsageError("no command to run", remedy=lab_command("exec", state, f"{target} -- COMMAND [ARGS]..."))
    record = require_record(real_path(state))
    raise typer.Exit(run_inside(record, target, command, environment=base_environment(record.plan.state)))


@app.command()
def restart(
    name: Annotated[str, typer.Argument(help="A device (its agent), `control` or `factory`.", show_default=False)],
    *,
    state: StateOption = DEFAULT_STATE,
) -> None:
    """Start a part that is dead (or not) anew, and return when it works; the rest of the lab goes on."""
    from ztdpu.lab.restart import restart_part

    restart_part(state, name, lambda words: print(words, file=sys.stderr))
    print(f"{name} works again", file=sys.stderr)


@app.command()
def down(*, state: StateOption = DEFAULT_STATE) -> None:
    """Take the cluster away: no namespace, process or file stays, also after a crash."""
    from ztdpu.lab.takedown import stop_lab

    found = stop_lab(state)
    print("the lab is down" if found else f"no lab in {state}", file=sys.stderr)


app.command()(fault)
app.command(name="root-of-trust")(root_of_trust)
app.command(name="reference-values")(reference_values)
