"""`ztdpu policy` before it bites: test, diff, prove. Exit status 4 when one of them found something."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ztdpu.cli.output import Format, FormatOption, print_document, print_rows
from ztdpu.cli.policy.place import DirectoryArgument, DirectoryOption, note, read_or_exit, read_source
from ztdpu.policy.example import EXAMPLE_POLICIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ztdpu.policy.diff import Change
    from ztdpu.policy.load import Known
    from ztdpu.policy.prove import Proof, Witness
    from ztdpu.policy.tests import TestResult

FOUND: Final = 4
_SHOWN: Final = 200
"""Lines of a difference that a terminal gets; json has all."""


def run_policy_tests(
    directory: DirectoryArgument = EXAMPLE_POLICIES,
    only_failed: Annotated[bool, typer.Option("--only-failed", help="Leave out what passed.")] = False,  # noqa: FBT002
    output: FormatOption = Format.TABLE,
) -> None:
    """Run the PolicyTest documents.

    Exit status 0 when all hold (or there are none), 4 when one fails, 2 when the files are wrong.
    """
    from ztdpu.policy.tests import run_tests

    cluster = read_or_exit(directory)
    note("testing")
    results = run_tests(cluster)
    failed = [result for result in results if not result.passed]
    shown = failed if only_failed else results
    if output in (Format.JSON, Format.YAML):
        counts = {"passed": len(results) - len(failed), "failed": len(failed)}
        print_document({"ok": not failed, "counts": counts, "results": [_result(r) for r in shown]}, output=output)
    else:
        _print_results(shown)
        print(f"{len(results) - len(failed)} passed, {len(failed)} failed" if results else "no PolicyTest documents")
    if failed:
        raise typer.Exit(FOUND)


def _print_results(results: Sequence[TestResult]) -> None:
    for name, group in groupby(results, key=lambda result: result.test):
        print(name)
        for result in group:
            pairs = f"  ({result.checked} pairs)" if result.checked > 1 else ""
            print(f"  {'ok  ' if result.passed else 'FAIL'}  {result.line}{pairs}")
            if not result.passed:
                print(f"        {result.where}: {result.detail}")


def _result(result: TestResult) -> dict[str, Any]:
    return {
        "test": result.test,
        "line": result.line,
        "passed": result.passed,
        "detail": result.detail,
        "where": str(result.where),
        "pairs": result.checked,
    }


def diff(
    before: Annotated[str, typer.Argument(help="A directory, or a commit.")],
    after: Annotated[str, typer.Argument(help="A directory, or a commit.")],
    directory: DirectoryOption = EXAMPLE_POLICIES,
    output: FormatOption = Format.TABLE,
) -> None:
    """Say which flows a change of policy opens and closes, the largest first.

    Compared is what is enforced. Commits are of the repository in which --policy stands. Exit status 0 when nothing
    changes, 4 when something does, 2 when the question or the files are wrong.
    """
    from ztdpu.policy.diff import diff_worlds
    from ztdpu.policy.reach import build_world

    note(f"reading {before} and {after}")
    known: Known = {}
    clusters = [read_source(text, folder=directory, known=known) for text in (before, after)]
    note("comparing")
    changes = diff_worlds(*map(build_world, clusters))
    gained = sum(change.gained for change in changes)
    if output in (Format.JSON, Format.YAML):
        print_document({"changes": [_change(one) for one in changes]}, output=output)
    elif changes:
        rows = [_change(one) | {"change": "+" if one.gained else "-"} for one in changes[:_SHOWN]]
        print_rows(rows, columns=("change", "from", "to", "ports"), wide=("addresses",), output=output)
        more = f" ({len(changes) - _SHOWN} not shown; -o json has all)" if len(changes) > _SHOWN else ""
        print(f"\n{gained} gained, {len(changes) - gained} lost{more}")
    else:
        print("no flow is gained or lost")
    if changes:
        raise typer.Exit(FOUND)


def _change(change: Change) -> dict[str, Any]:
    return {
        "change": "gained" if change.gained else "lost",
        "from": change.source,
        "to": change.destination,
        "protocol": change.protocol,
        "first": change.first,
        "last": change.last,
        "ports": change.ports,
        "addresses": [f"{own} -> {other}" for own, other in change.addresses],
    }


def prove(
    directory: DirectoryArgument = EXAMPLE_POLICIES,
    without_peerings: Annotated[  # noqa: FBT002 - typer makes a flag of it
        bool, typer.Option("--without-peerings", help="What passes through a Peering counts as found, too.")
    ] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show for every pair of tenants that no packet passes between them, or one that does.

    By reasoning about the compiled tables of all devices, not about the files. Exit status 0 when it holds, 4 when a
    packet passes without a Peering, 2 when the files are wrong.
    """
    from ztdpu.policy.prove import prove as prove_apart
    from ztdpu.policy.reach import build_world

    cluster = read_or_exit(directory)
    note("following every way")
    proof = prove_apart(build_world(cluster))
    found = not proof.holds or (without_peerings and bool(proof.witnesses))
    if output in (Format.JSON, Format.YAML):
        print_document(_proof(proof, found=found), output=output)
    else:
        _print_proof(proof)
    if found:
        raise typer.Exit(FOUND)


def _print_proof(proof: Proof) -> None:
    for witness in proof.witnesses:
        how = f"through Peering {witness.peering}" if witness.peering else "PASSES without a Peering"
        print(f"{witness.source_tenant} -> {witness.destination_tenant}  {how}, for one")
        print(f"  {witness}")
    for names in proof.shared_ids:
        print(f"one network id stands for {', '.join(names)}")
    joined = len({frozenset((one.source_tenant, one.destination_tenant)) for one in proof.witnesses})
    apart = f"{proof.pairs - joined} of {proof.pairs} pairs of tenants are apart"
    print(f"{apart}: no packet passes in either direction ({proof.ways} ways followed)")


def _proof(proof: Proof, *, found: bool) -> dict[str, Any]:
    return {
        "ok": not found,
        "tenants": list(proof.tenants),
        "pairs": proof.pairs,
        "ways": proof.ways,
        "witnesses": [_witness(one) for one in proof.witnesses],
        "shared_ids": [list(names) for names in proof.shared_ids],
    }


def _witness(witness: Witness) -> dict[str, Any]:
    return {
        "from": witness.source,
        "to": witness.destination,
        "from_tenant": witness.source_tenant,
        "to_tenant": witness.destination_tenant,
        "addresses": witness.addresses,
        "protocol": witness.protocol,
        "port": witness.port,
        "peering": witness.peering or None,
    }
