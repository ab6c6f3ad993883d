"""`ztdpu job`: token, list, show, end."""

# ruff: noqa: FBT002 - typer makes flags of them
from __future__ import annotations

import dataclasses
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ztdpu.cli.connection import ServerOption, as_age, as_time, connect
from ztdpu.cli.output import Format, FormatOption, print_document, print_rows
from ztdpu.errors import UsageError

if TYPE_CHECKING:
    from ztdpu.model.job import JobStatus

app = typer.Typer(help="Open jobs, see who joined them, end them.", no_args_is_help=True)

_DURATION: Final = re.compile(r"(\d{1,6})([smhd]?)")
_UNITS_S: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}

TenantOption = Annotated[str, typer.Option("--tenant", "-t", help="Whose job it is.")]
NameArgument = Annotated[str, typer.Argument(help="Name of the job, such as train-1.")]


def read_duration_s(text: str) -> int:
    """Seconds of `90`, `90s`, `15m`, `1h`, `1d`. Raises UsageError."""
    match = _DURATION.fullmatch(text)
    if match is None or int(match[1]) == 0:
        raise UsageError(f"{text!r} is no duration", remedy="write 90s, 15m, 1h or 1d")
    return int(match[1]) * _UNITS_S[match[2]]


@app.command()
def token(
    tenant: TenantOption,
    job: Annotated[str, typer.Option("--job", "-j", help="Name of the job: lower-case letters, digits, dashes.")],
    world_size: Annotated[int, typer.Option("--world-size", "-n", help="How many ranks it has.")],
    ttl: Annotated[str, typer.Option("--ttl", help="How long ranks may join: 90s, 15m, 1h; at most 1d.")] = "1h",
    replace: Annotated[bool, typer.Option("--replace", help="Although it is open: its ranks and token end.")] = False,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why; it stands in the audit log.")] = "a job begins",
    server: ServerOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Open a job and print the token that its ranks join with. It is shown this once."""
    ttl_s = read_duration_s(ttl)
    with connect(server) as client:
        made = client.create_job_token(tenant, job, world_size=world_size, ttl_s=ttl_s, replace=replace, reason=reason)
    if output in (Format.JSON, Format.YAML):
        print_document(dataclasses.asdict(made), output=output)
        return
    print(made.token)
    ranks = f"ranks 0 to {made.world_size - 1}" if made.world_size > 1 else "rank 0"
    print(
        f"for {ranks} of {made.job}, tenant {made.tenant}, each once, until {as_time(made.expires_unix_ms)}",
        file=sys.stderr,
    )


@app.command("list")
def list_jobs(
    tenant: Annotated[str, typer.Option("--tenant", "-t", help="Of this tenant alone.")] = "",
    server: ServerOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """List jobs: how many of their ranks joined, and until when ranks may join."""
    with connect(server) as client:
        jobs = client.list_jobs(tenant)
    if output in (Format.JSON, Format.YAML):
        print_document([dataclasses.asdict(one) for one in jobs], output=output)
        return
    print_rows(
        [_row(one) for one in jobs],
        columns=("tenant", "job", "state", "joined", "age", "join_until"),
        wide=("epoch", "endpoints"),
        shrink=("endpoints",),
        output=output,
        empty="no jobs: open one with `ztdpu job token`",
    )


@app.command()
def show(
    name: NameArgument, tenant: TenantOption, server: ServerOption = None, output: FormatOption = Format.YAML
) -> None:
    """Show one job and where each rank joined from."""
    with connect(server) as client:
        print_document(dataclasses.asdict(client.get_job(tenant, name)), output=output)


@app.command()
def end(
    name: NameArgument,
    tenant: TenantOption,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why; it stands in the audit log.")] = "the job is over",
    server: ServerOption = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """End a job: the identity of each rank ends at once, and its token is void."""
    with connect(server) as client:
        ended = client.end_job(tenant, name, reason=reason)
    if output in (Format.JSON, Format.YAML):
        print_document(dataclasses.asdict(ended), output=output)
        return
    print(f"{ended.name} of {ended.tenant} ended; {len(ended.ranks)} of {ended.world_size} ranks had joined")


def _row(job: JobStatus) -> dict[str, Any]:
    return {
        "tenant": job.tenant,
        "job": job.name,
        "state": str(job.state),
        "joined": f"{len(job.ranks)}/{job.world_size}",
        "age": as_age(job.created_unix_ms),
        "join_until": as_time(job.token_expires_unix_ms),
        "epoch": job.epoch,
        "endpoints": [one.endpoint for one in job.ranks],
    }
