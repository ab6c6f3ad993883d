"""`ztdpu policy` towards control: take what the policy source has, hold and resume, and say how all of it stands."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ztdpu.cli.connection import ServerOption, as_age, as_time, connect
from ztdpu.cli.output import Format, FormatOption, print_document, print_rows
from ztdpu.cli.report import say

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ztdpu.model.administration import PolicyFaultPlace, PolicyStatus, PolicySync

ReasonOption = Annotated[str, typer.Option("--reason", "-r", help="Why; it stands in the audit log.")]
_ID_SHOWN = 12


def sync(
    reason: ReasonOption = "sync",
    server: ServerOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Have control look at its policy source now and push what changed; refused whole when anything is wrong."""
    with connect(server) as client:
        answer = client.sync_policy(reason=reason)
    _print_answer(answer, "nothing was applied: the policy before stays in force", output)


def hold(
    commit: Annotated[
        str,
        typer.Argument(help="Seven characters of its id, or more.", show_default="the one in force"),
    ] = "",
    *,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why; it stands in the audit log.")],
    server: ServerOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Go back to a commit that was in force, and stay there until `policy resume`, whatever is pushed."""
    with connect(server) as client:
        answer = client.hold_policy(commit, reason=reason)
    _print_answer(answer, "nothing was applied: the policy before stays in force", output)


def resume(
    reason: ReasonOption = "resume",
    server: ServerOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """End a hold by taking what the branch stands at; while that does not count, the hold stays."""
    with connect(server) as client:
        answer = client.resume_policy(reason=reason)
    _print_answer(answer, "nothing was applied: the hold stays", output)


def status(server: ServerOption = None, output: FormatOption = Format.TABLE) -> None:
    """Say which policy is in force, what became of the newest, and whether every device enforces it.

    Exit status 1 when the newest was refused, the repository does not answer, a device failed or a policy test fails.
    """
    with connect(server) as client:
        standing = client.policy_status()
    if output in (Format.JSON, Format.YAML):
        print_document(dataclasses.asdict(standing), output=output)
    else:
        _print_status(standing, output)
    source = standing.source
    is_well = source.standing in ("accepted", "held") and not standing.faults and not standing.tests.failed
    if not is_well or any(device.failed for device in standing.devices):
        raise typer.Exit(1)


def _print_answer(answer: PolicySync, otherwise: str, output: Format) -> None:
    if output in (Format.JSON, Format.YAML):
        print_document(dataclasses.asdict(answer), output=output)
    elif not answer.faults:
        changed = ", ".join(answer.changed_devices)
        source = answer.status.source
        held = " (held)" if source.held_by else ""
        commit = f"commit {source.commit_id[:_ID_SHOWN]}{held}, " if source.commit_id else ""
        news = f"changed for {changed}" if changed else "nothing changed"
        print(f"{commit}generation {answer.status.generation}; {news}")
    if answer.faults:
        _print_faults(answer.faults)
        print(otherwise, file=sys.stderr)
        raise typer.Exit(1)


def _print_status(status: PolicyStatus, output: Format) -> None:
    for name, value in _facts(status):
        print(f"{name.ljust(10)} {value}")
    print()
    rows = [dataclasses.asdict(device) | _enforcement(device) for device in status.devices]
    failed = ("failed",) if any(device.failed for device in status.devices) else ()
    print_rows(
        rows,
        columns=("device", "enforced", "wanted", "applied", *failed),
        wide=("generation_wanted", "generation_applied"),
        shrink=("failed",),
        output=output,
    )
    for line in status.tests.failed:
        say(f"policy test fails: {line}")
    _print_faults(status.faults)


def _facts(status: PolicyStatus) -> list[tuple[str, str]]:
    """Lines above the table: what is in force, then what became of the newest."""
    source = status.source
    facts = [("source", source.name)]
    if source.commit_id:
        facts.append(("in force", f"{source.commit_id}, generation {status.generation}"))
        committed = as_time(source.committed_unix_s * 1000)
        facts.append(("signer", f"{source.signer}, committed {committed}, accepted {as_time(source.accepted_unix_ms)}"))
    else:
        facts.append(("in force", f"generation {status.generation}, read {as_time(status.loaded_unix_ms)}"))
    since = f" for {as_age(source.since_unix_ms)}" if source.since_unix_ms else ""
    if source.held_by:
        facts.append(("newest", f"{source.tip[:_ID_SHOWN]} waits: held{since} by {source.held_by}: {source.why}"))
    elif source.commit_id:
        what = f"{source.tip[:_ID_SHOWN]} {source.standing}{since}"
        facts.append(("newest", f"{what}: {source.why}" if source.why else what))
    if source.looked_unix_ms:
        facts.append(("looked", f"{as_age(source.looked_unix_ms)} ago"))
    tests = status.tests
    if tests.tests:
        passed = tests.tests - len(tests.failed)
        facts.append(("tests", f"{passed} of {tests.tests} pass, run {as_age(tests.ran_unix_ms)} ago: {tests.cause}"))
    return facts


def _enforcement(device: Any) -> dict[str, Any]:
    return {
        "enforced": device.revision_applied == device.revision_wanted,
        "wanted": device.revision_wanted[:_ID_SHOWN],
        "applied": device.revision_applied[:_ID_SHOWN],
    }


def _print_faults(faults: Iterable[PolicyFaultPlace]) -> None:
    for fault in faults:
        say(f"{fault.where}: {fault.message}")
