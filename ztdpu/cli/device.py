"""`ztdpu device`: list, show, token, revoke, quarantine, restore."""

# ruff: noqa: FBT002 - typer makes flags of them
from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ztdpu.cli.connection import ServerOption, as_age, as_time, connect
from ztdpu.cli.output import Format, FormatOption, print_document, print_rows

if TYPE_CHECKING:
    from ztdpu.model.administration import BlastRadius, DeviceChange
    from ztdpu.model.device import DeviceStatus

app = typer.Typer(help="List, show, revoke, quarantine and restore devices.", no_args_is_help=True)

COLUMNS = ("name", "ready", "state", "tier", "lease", "policy", "key_epoch", "age")
WIDE = ("underlay", "profile", "boot", "version", "reason")

NameArgument = Annotated[str, typer.Argument(help="Name of the device, such as dpu-0.")]
ReasonOption = Annotated[str, typer.Option("--reason", "-r", help="Why; it stands in the audit log.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would happen, change nothing.")]
VersionOption = Annotated[
    int | None, typer.Option("--expected-version", help="Refuse if somebody changed the device since.")
]
RequestOption = Annotated[
    str | None, typer.Option("--request-id", help="Repeating the same id gives the same answer, once carried out.")
]


@app.command("list")
def list_devices(server: ServerOption = None, output: FormatOption = Format.TABLE) -> None:
    """List devices and how they stand."""
    with connect(server) as client:
        devices = client.list_devices()
    if output in (Format.JSON, Format.YAML):
        print_document([dataclasses.asdict(one) for one in devices], output=output)
        return
    print_rows(
        [device_row(one) for one in devices],
        columns=COLUMNS,
        wide=WIDE,
        output=output,
        empty="no devices: the policy in force has no Device documents",
    )


def device_row(one: DeviceStatus) -> dict[str, Any]:
    """One line of the list; `!` stands where a device does not enforce what it should."""
    same = one.revision_applied == one.revision_wanted and one.revision_applied
    epochs = sorted(set(one.key_epochs.values()))
    return {
        "name": one.name,
        "ready": one.ready,
        "state": str(one.state),
        "tier": one.tier,
        "lease": f"{one.lease_s:.0f}s" if one.lease_s else "-",
        "policy": f"{(one.revision_applied[:7] or 'none')}/{one.revision_wanted[:7]}{'' if same else ' !'}",
        "key_epoch": ",".join(map(str, epochs)),
        "age": as_age(one.since_unix_ms),
        "underlay": one.underlay_address,
        "profile": one.profile,
        "boot": one.boot_counter,
        "version": one.version,
        "reason": one.reason,
    }


@app.command()
def show(name: NameArgument, server: ServerOption = None, output: FormatOption = Format.TABLE) -> None:
    """Show everything about one device."""
    with connect(server) as client:
        device = client.get_device(name)
    if output in (Format.JSON, Format.YAML):
        print_document(dataclasses.asdict(device), output=output)
        return
    from rich.console import Console

    Console().print(_tree(device))


def _tree(one: DeviceStatus) -> Any:
    from rich.tree import Tree

    colour = "green" if one.ready else "yellow" if one.lease_s else "red"
    tree = Tree(f"[bold]{one.name}[/bold]  [{colour}]{one.state}[/{colour}]")
    state = tree.add(f"state since {as_time(one.since_unix_ms)} ({as_age(one.since_unix_ms)})")
    state.add(f"reason    {one.reason}")
    state.add(f"ready     {'yes' if one.ready else 'no: ' + (one.waiting_for or 'no lease')}")
    state.add(f"lease     {one.lease_s:.1f} s left" if one.lease_s else "lease     none")
    state.add(f"version   {one.version}")
    trust = tree.add(f"trust     tier {one.tier}")
    trust.add(f"profile   {one.profile}, boot {one.boot_counter}")
    trust.add(f"DeviceID  {one.device_id_sha256 or 'not pinned yet'}")
    trust.add(f"binding   {one.binding_sha256 or 'none'}")
    policy = tree.add(f"policy    tenants {', '.join(one.tenants) or 'none'}")
    policy.add(f"wanted    {one.revision_wanted[:16]} (generation {one.generation_wanted})")
    policy.add(f"applied   {one.revision_applied[:16] or 'none'} (generation {one.generation_applied})")
    policy.add(f"epochs    {', '.join(f'{t}={e}' for t, e in sorted(one.key_epochs.items())) or 'none'}")
    path = tree.add(f"traffic   underlay {one.underlay_address}, {'connected' if one.connected else 'not connected'}")
    path.add(f"sealed    {one.sealed_packets} packets")
    path.add(f"opened    {one.opened_packets} packets")
    for reason, count in sorted(one.packets_by_reason.items(), key=lambda pair: -pair[1]):
        path.add(f"{reason}  {count}")
    return tree


@app.command()
def token(
    name: NameArgument,
    ttl_s: Annotated[int, typer.Option("--ttl", help="Seconds until it expires; at most a day.")] = 3600,
    reason: ReasonOption = "enrolment",
    server: ServerOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Make a single-use join token for a device that has no pinned DeviceID. It is shown this once."""
    with connect(server) as client:
        made = client.create_join_token(name, ttl_s=ttl_s, reason=reason)
    if output in (Format.JSON, Format.YAML):
        print_document(dataclasses.asdict(made), output=output)
        return
    print(made.token)
    print(f"for {made.device}, once, until {as_time(made.expires_unix_ms)}", file=sys.stderr)


@app.command()
def revoke(
    name: NameArgument,
    reason: ReasonOption,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    expected_version: VersionOption = None,
    request_id: RequestOption = None,
    server: ServerOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Revoke a device: its keys and this boot never come back."""
    with connect(server) as client:
        preview = client.revoke_device(name, reason=reason, dry_run=True)
        if _stop_here("revoke", name, preview, yes=yes, dry_run=dry_run, output=output):
            return
        change = client.revoke_device(name, reason=reason, expected_version=expected_version, request_id=request_id)
    _print_change(change, output)


@app.command()
def quarantine(
    name: NameArgument,
    reason: ReasonOption,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    expected_version: VersionOption = None,
    request_id: RequestOption = None,
    server: ServerOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Quarantine a device: no lease, but it stays manageable."""
    with connect(server) as client:
        preview = client.quarantine_device(name, reason=reason, dry_run=True)
        if _stop_here("quarantine", name, preview, yes=yes, dry_run=dry_run, output=output):
            return
        change = client.quarantine_device(name, reason=reason, expected_version=expected_version, request_id=request_id)
    _print_change(change, output)


@app.command()
def restore(
    name: NameArgument,
    reason: ReasonOption,
    allow_rollback: Annotated[
        bool, typer.Option("--allow-rollback", help="Accept versions below the highest seen, once.")
    ] = False,
    dry_run: DryRunOption = False,
    expected_version: VersionOption = None,
    request_id: RequestOption = None,
    server: ServerOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Lead a revoked or quarantined device back to pending; fresh evidence does the rest."""
    with connect(server) as client:
        change = client.restore_device(
            name,
            reason=reason,
            expected_version=expected_version,
            request_id=request_id,
            dry_run=dry_run,
            allow_rollback=allow_rollback,
        )
    if dry_run:
        print(f"{name} would be restored to pending; nothing was changed", file=sys.stderr)
        return
    _print_change(change, output)
    print("a revoked device needs a newer boot and new keys; its agent sees to both by itself", file=sys.stderr)


def _stop_here(verb: str, name: str, preview: DeviceChange, *, yes: bool, dry_run: bool, output: Format) -> bool:
    """Show the blast radius and ask. True: do nothing."""
    if dry_run and output in (Format.JSON, Format.YAML):
        print_document(dataclasses.asdict(preview.blast_radius), output=output)
        return True
    _print_radius(verb, name, preview.blast_radius)
    if dry_run:
        print("dry run: nothing was changed", file=sys.stderr)
        return True
    if not yes:
        typer.confirm(f"{verb} {name}?", abort=True, err=True)
    return False


def _print_radius(verb: str, name: str, radius: BlastRadius) -> None:
    print(f"to {verb} {name} cuts off:", file=sys.stderr)
    print(f"  endpoints  {', '.join(radius.endpoints) or 'none'}", file=sys.stderr)
    print(f"  tenants    {', '.join(radius.tenants) or 'none'} (they keep their endpoints elsewhere)", file=sys.stderr)
    print(f"  peers      {', '.join(radius.peers) or 'none'}", file=sys.stderr)


def _print_change(change: DeviceChange, output: Format) -> None:
    if output in (Format.JSON, Format.YAML):
        print_document(dataclasses.asdict(change), output=output)
        return
    print(f"{change.device.name} is {change.device.state} (generation {change.generation})")
    for peer in change.peers:
        took = f"applied after {peer.duration_ms:.1f} ms" if peer.applied else "no answer within 1 s: its lease ends it"
        print(f"  {peer.device}  {took}")
