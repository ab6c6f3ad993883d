"""`ztdpu policy` on files alone: lint, explain. No control is asked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ztdpu.cli.output import Format, FormatOption, print_document
from ztdpu.cli.report import report
from ztdpu.errors import PolicyError, PolicyRefusedError
from ztdpu.policy.example import EXAMPLE_POLICIES

if TYPE_CHECKING:
    from ztdpu.policy.explain import Explanation

EXAMPLE = "the example cluster, as for `lab up`"
DirectoryOption = Annotated[
    Path, typer.Option("--policy", help="Directory of policy files.", show_default=EXAMPLE, resolve_path=False)
]

_STATION_WIDTH = 8


def lint(
    directory: Annotated[
        Path, typer.Argument(help="Directory of policy files.", show_default=EXAMPLE)
    ] = EXAMPLE_POLICIES,
    output: FormatOption = Format.TABLE,
) -> None:
    """Read every file and compile the tables of every device; say all that is wrong, with its line.

    Exit status 1 when something is wrong in the files, 2 when there are none.
    """
    from ztdpu.packet.tables import encode_tables
    from ztdpu.policy.compile import Compiler, assumed_networks
    from ztdpu.policy.load import load_directory

    directory = _short(directory)
    try:
        cluster = load_directory(directory)
        compiler = Compiler(cluster, assumed_networks(cluster))
        for name in cluster.devices:
            encode_tables(compiler.tables(name)[0])
    except PolicyError as error:
        if output in (Format.JSON, Format.YAML):
            faults = error.faults if isinstance(error, PolicyRefusedError) else (error,)
            print_document({"ok": False, "faults": [_fault(fault) for fault in faults]}, output=output)
            raise typer.Exit(error.exit_status) from None
        raise
    for file in cluster.empty_files:
        print(f"warning: {file}: no document in it", file=sys.stderr)
    counts = {
        "devices": len(cluster.devices),
        "tenants": len(cluster.tenants),
        "endpoints": len(cluster.endpoints),
        "network policies": len(cluster.network_policies),
    }
    if output in (Format.JSON, Format.YAML):
        print_document({"ok": True, "counts": counts, "empty_files": list(cluster.empty_files)}, output=output)
        return
    print(f"{directory}: good. " + ", ".join(f"{count} {what}" for what, count in counts.items()))


def _short(directory: Path) -> Path:
    """The example cluster as seen from here, when here is the checkout; else what was given."""
    if directory == EXAMPLE_POLICIES and directory.is_relative_to(Path.cwd()):
        return directory.relative_to(Path.cwd())
    return directory


def _fault(fault: PolicyError) -> dict[str, Any]:
    where = fault.where
    return {
        "file": where.file if where else "",
        "line": where.line if where else 0,
        "column": where.column if where else 0,
        "message": fault.message,
        "remedy": fault.remedy,
    }


def explain(
    source: Annotated[str, typer.Option("--from", help="Endpoint that opens the flow.")],
    destination: Annotated[str, typer.Option("--to", help="Endpoint or overlay address.")],
    port: Annotated[str, typer.Option("--port", help="22/tcp, 53/udp or icmp.")],
    directory: DirectoryOption = EXAMPLE_POLICIES,
    output: FormatOption = Format.TABLE,
) -> None:
    """Say whether a new flow would pass, and which line decides.

    Exit status 0 when it would pass, 1 when it would be dropped, 2 when the question or the files are wrong.
    """
    from ztdpu.model.verdict import Verdict
    from ztdpu.policy.explain import explain as explain_flow
    from ztdpu.policy.explain import parse_port
    from ztdpu.policy.load import load_directory

    protocol, number = parse_port(port)
    try:
        cluster = load_directory(_short(directory))
    except PolicyError as error:
        report(error)
        raise typer.Exit(2) from None  # 1 is an answer to the question
    answer = explain_flow(cluster, source=source, destination=destination, protocol=protocol, port=number)
    if output not in (Format.JSON, Format.YAML):
        _print_explanation(answer, port)
    else:
        print_document(_explanation(answer), output=output)
    if answer.verdict is Verdict.DROP:
        raise typer.Exit(1)


def _print_explanation(answer: Explanation, port: str) -> None:
    print(f"{answer.verdict}  {answer.source} -> {answer.destination} {port}  ({answer.reason})")
    for step in answer.steps:
        place = f"  {step.where}" if step.where else ""
        print(f"  {step.station.ljust(_STATION_WIDTH)} {step.device}  {step.verdict}  {step.text}{place}")


def _explanation(answer: Explanation) -> dict[str, Any]:
    return {
        "verdict": answer.verdict,
        "reason": answer.reason,
        "from": answer.source,
        "to": answer.destination,
        "protocol": answer.protocol,
        "port": answer.port,
        "steps": [
            {
                "station": step.station,
                "device": step.device,
                "verdict": step.verdict,
                "reason": step.reason,
                "text": step.text,
                "where": str(step.where) if step.where else None,
            }
            for step in answer.steps
        ],
    }
