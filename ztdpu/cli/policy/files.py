"""`ztdpu policy` on files alone: lint, explain. No control is asked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ztdpu.cli.output import Format, FormatOption, print_document
from ztdpu.cli.policy.place import (
    DirectoryArgument,
    DirectoryOption,
    last_commit,
    note_other_policy,
    read_or_exit,
    short,
)
from ztdpu.errors import PolicyError, PolicyRefusedError
from ztdpu.policy.example import EXAMPLE_POLICIES
from ztdpu.policy.startup import UNDERLAY_MTU_OCTETS

if TYPE_CHECKING:
    from ztdpu.errors import Location
    from ztdpu.policy.explain import Explanation


MtuOption = Annotated[
    int, typer.Option("--underlay-mtu", metavar="OCTETS", min=1280, max=65535, help="As in control's start-up file.")
]
_STATION_WIDTH = 8


def lint(
    directory: DirectoryArgument = EXAMPLE_POLICIES,
    mtu_octets: MtuOption = UNDERLAY_MTU_OCTETS,
    output: FormatOption = Format.TABLE,
) -> None:
    """Read every file and compile the tables of every device; say all that is wrong, with its line.

    Exit status 1 when something is wrong in the files, 2 when there are none.
    """
    from ztdpu.packet.tables import encode_tables
    from ztdpu.policy.compile import Compiler, assumed_networks
    from ztdpu.policy.load import load_directory

    directory = short(directory)
    try:
        cluster = load_directory(directory)
        compiler = Compiler(cluster, assumed_networks(cluster), underlay_mtu_octets=mtu_octets)
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
        "peerings": len(cluster.peerings),
        "network policies": len(cluster.network_policies) + len(cluster.cluster_network_policies),
        "tests": len(cluster.policy_tests),
    }
    if output in (Format.JSON, Format.YAML):
        print_document({"ok": True, "counts": counts, "empty_files": list(cluster.empty_files)}, output=output)
        return
    print(f"{directory}: good. " + ", ".join(f"{what}: {count}" for what, count in counts.items()))


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
    port: Annotated[str, typer.Option("--port", help="22/tcp, 53/udp, icmp, or its name at the destination: nfs.")],
    directory: DirectoryOption = EXAMPLE_POLICIES,
    output: FormatOption = Format.TABLE,
) -> None:
    """Say whether a new flow would pass, and which line decides.

    Answers for the files of --policy; a note says so when the control at hand enforces others. Exit status 0 when it
    would pass, 1 when it would be dropped, 2 when the question or the files are wrong.
    """
    from ztdpu.model.verdict import Verdict
    from ztdpu.policy.explain import explain as explain_flow
    from ztdpu.policy.explain import named_ports, parse_port

    cluster = read_or_exit(directory)
    protocol, number = parse_port(port, named_ports(cluster, destination))
    answer = explain_flow(cluster, source=source, destination=destination, protocol=protocol, port=number)
    if output not in (Format.JSON, Format.YAML):
        _print_explanation(answer, port)
    else:
        print_document(_explanation(answer), output=output)
    note_other_policy(short(directory))
    if answer.verdict is Verdict.DROP:
        raise typer.Exit(1)


def _print_explanation(answer: Explanation, port: str) -> None:
    print(f"{answer.verdict}  {answer.source} -> {answer.destination} {port}  ({answer.reason})")
    for step in answer.steps:
        place = f"  {step.where}" if step.where else ""
        named = step.where or step.nearest
        place += _commit_words(named) if named else ""
        print(f"  {step.station.ljust(_STATION_WIDTH)} {step.device}  {step.verdict}  {step.text}{place}")


def _commit_words(where: Location) -> str:
    commit = last_commit(Path(where.file))
    return f" ({commit})" if commit else ""


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
                "commit": last_commit(Path(step.where.file)) if step.where else None,
                "rule": step.rule or None,
                "nearest": str(step.nearest) if step.nearest else None,
                "nearest_commit": last_commit(Path(step.nearest.file)) if step.nearest else None,
            }
            for step in answer.steps
        ],
    }
