"""`ztdpu policy` towards control: what it takes from its policy source, and what is in force."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ztdpu.cli.connection import ServerOption, as_time, connect
from ztdpu.cli.output import Format, FormatOption, print_document, print_rows
from ztdpu.cli.report import say

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ztdpu.model.administration import PolicyFaultPlace


def sync(
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why; it stands in the audit log.")] = "sync",
    server: ServerOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Have control read its policy directory again and push what changed; refused whole when anything is wrong."""
    with connect(server) as client:
        answer = client.sync_policy(reason=reason)
    if output in (Format.JSON, Format.YAML):
        print_document(dataclasses.asdict(answer), output=output)
    elif not answer.faults:
        changed = ", ".join(answer.changed_devices)
        print(f"generation {answer.status.generation}; {f'changed for {changed}' if changed else 'nothing changed'}")
    if answer.faults:
        _print_faults(answer.faults)
        print("nothing was applied: the policy before stays in force", file=sys.stderr)
        raise typer.Exit(1)


def status(server: ServerOption = None, output: FormatOption = Format.TABLE) -> None:
    """Say which policy is in force, and whether every device enforces it."""
    with connect(server) as client:
        standing = client.policy_status()
    if output in (Format.JSON, Format.YAML):
        print_document(dataclasses.asdict(standing), output=output)
        return
    print(f"{standing.directory}, generation {standing.generation}, read {as_time(standing.loaded_unix_ms)}\n")
    rows = [
        dataclasses.asdict(device)
        | {
            "enforced": device.revision_applied == device.revision_wanted,
            "wanted": device.revision_wanted[:12],
            "applied": device.revision_applied[:12],
        }
        for device in standing.devices
    ]
    print_rows(
        rows,
        columns=("device", "enforced", "wanted", "applied"),
        wide=("generation_wanted", "generation_applied"),
        output=output,
    )
    _print_faults(standing.faults)


def _print_faults(faults: Iterable[PolicyFaultPlace]) -> None:
    for fault in faults:
        say(f"{fault.where}: {fault.message}")
