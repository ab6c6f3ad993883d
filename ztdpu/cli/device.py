"""`ztdpu device`: list, show, token, revoke, quarantine, restore."""

# ruff: noqa: FBT002 - typer makes flags of them
from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ztdpu.cli.connection import ServerOption, as_age, as_time, connect
from ztdpu.cli.device_sheet import device_sheet, in_time
from ztdpu.cli.output import Format, FormatOption, plain, print_document, print_rows, wrapped
from ztdpu.cli.report import say
from ztdpu.errors import PermissionDeniedError, StateError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ztdpu.model.administration import BlastRadius, DeviceChange
    from ztdpu.model.attestation import Finding
    from ztdpu.model.device import DeviceStatus
    from ztdpu.rpc.client import ControlClient

app = typer.Typer(help="List, show, revoke, quarantine and restore devices.", no_args_is_help=True)

COLUMNS = ("name", "ready", "state", "tier", "lease", "policy", "key_epoch", "age")
WIDE = ("underlay", "profile", "boot", "version", "next", "reason")

NameArgument = Annotated[str, typer.Argument(help="Name of the device, such as dpu-0.")]


def _require_reason(text: str) -> str:
    if not text.strip():
        raise UsageError("the reason is empty", remedy="say why with --reason; it stands in the audit log")
    return text


ReasonOption = Annotated[
    str, typer.Option("--reason", "-r", help="Why; it stands in the audit log.", callback=_require_reason)
]
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
    """List devices and how they stand.

    POLICY is the revision of the tables that a device enforces; ACKED/WANTED when it should enforce another. LEASE is
    what is left of it. KEY EPOCH is what it uses for its tenants' networks. AGE is since when it is in its state.
    """
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
        shrink=("policy", "name"),
        empty="no devices: the policy in force has no Device documents",
    )
    print_late(devices)


def print_late(devices: Iterable[DeviceStatus]) -> None:
    """Name devices that are ready and will not stay so."""
    for one in devices:
        if _late(one):
            print(f"{one.name} {_late(one)}; its lease ends in {one.lease_s:.0f} s", file=sys.stderr)


def device_row(one: DeviceStatus) -> dict[str, Any]:
    """One line of the list."""
    applied, wanted = one.revision_applied[:7] or "none", one.revision_wanted[:7]
    epochs = sorted(set(one.key_epochs.values()))
    return {
        "name": one.name,
        "ready": one.ready,
        "state": str(one.state),
        "tier": one.tier,
        "lease": f"{one.lease_s:.0f}s" if one.lease_s else "-",
        "policy": applied if one.revision_applied == one.revision_wanted else f"{applied}/{wanted}",
        "key_epoch": ",".join(map(str, epochs)),
        "age": as_age(one.since_unix_ms),
        "underlay": one.underlay_address,
        "profile": one.profile,
        "boot": one.boot_counter,
        "version": one.version,
        "next": f"{one.next}{in_time(one.deadline_unix_ms)}",
        "reason": one.reason,
    }


@app.command()
def show(name: NameArgument, server: ServerOption = None, output: FormatOption = Format.TABLE) -> None:
    """Show what a device is and is not, since when, why and what comes next; and what its last evidence showed."""
    with connect(server) as client:
        device = client.get_device(name)
        findings = _findings(client, device)
    if output in (Format.JSON, Format.YAML):
        document = dataclasses.asdict(device) | {"findings": [dataclasses.asdict(one) for one in findings]}
        print_document(document, output=output)
        return
    print("\n".join(part for line in device_sheet(device, findings) for part in wrapped(plain(line))))


def _findings(client: ControlClient, device: DeviceStatus) -> tuple[Finding, ...]:
    """Of the last appraisal; none before the first, or for whom may not read them."""
    if not device.appraised_unix_ms:
        return ()
    try:
        return client.get_attestation(device.name).findings
    except (StateError, PermissionDeniedError):
        return ()


def _late(one: DeviceStatus) -> str:
    """What a device that is ready waits for: it will not stay ready without it."""
    return f"waits for {one.waiting_for}" if one.ready and one.waiting_for else ""


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
        _ask(f"{verb} {name}?")
    return False


def _ask(question: str) -> None:
    """Return only after a yes."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        print("\nnothing was changed", file=sys.stderr)
        raise typer.Exit(130) from None
    if not answer:
        print(file=sys.stderr)
        say("nobody is there to answer; nothing was changed", "use --yes to do it without being asked")
        raise typer.Exit(1)
    if answer.strip().lower() not in ("y", "yes"):
        print("nothing was changed", file=sys.stderr)
        raise typer.Exit(1)


def _print_radius(verb: str, name: str, radius: BlastRadius) -> None:
    whom = f"tenant{'s' if len(radius.tenants) > 1 else ''} {', '.join(radius.tenants)}" if radius.tenants else "nobody"
    print(
        f"to {verb} {name} cuts off {_count(len(radius.jobs), 'job')}, {_count(radius.ranks, 'rank')}, "
        f"{_count(len(radius.endpoints), 'endpoint')} of {whom}; "
        f"{_count(len(radius.peers), 'peer')} {'lose' if len(radius.peers) != 1 else 'loses'} it",
        file=sys.stderr,
    )
    print(f"  jobs       {', '.join(radius.jobs) or 'none'}", file=sys.stderr)
    print(f"  endpoints  {', '.join(radius.endpoints) or 'none'}", file=sys.stderr)
    print(f"  tenants    {', '.join(radius.tenants) or 'none'} (they keep their endpoints elsewhere)", file=sys.stderr)
    print(f"  peers      {', '.join(radius.peers) or 'none'}", file=sys.stderr)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _print_change(change: DeviceChange, output: Format) -> None:
    if output in (Format.JSON, Format.YAML):
        print_document(dataclasses.asdict(change), output=output)
        return
    at = f", acknowledged {as_time(change.acknowledged_unix_ns // 1_000_000)}"
    print(f"{change.device.name} is {change.device.state} (generation {change.generation}){at}")
    for peer in change.peers:
        took = (
            f"applied it {peer.duration_ms:.1f} ms later" if peer.applied else "no answer within 1 s: its lease ends it"
        )
        print(f"  {peer.device}  {took}")
