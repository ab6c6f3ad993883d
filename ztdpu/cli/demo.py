"""`ztdpu demo`: one minute that shows what this is for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ztdpu.cli.board import Board, one_reason_a_row
from ztdpu.cli.output import Format, FormatOption, print_document, print_rows
from ztdpu.lab.scorecard import LONGEST_REVOCATION_MS

app = typer.Typer(help="Build a lab, train two tenants, attack it, revoke a device: one minute.")

DEMO_STATE: Final = Path("/run/ztdpu/demo")
DEMO_PREFIX: Final = "ztdpu-demo"
BOUND_S: Final = LONGEST_REVOCATION_MS / 1000
_TRAINING_COLUMNS: Final = ("tenant", "ranks", "steps", "loss", "accuracy", "off_one_process")
_ATTACK_COLUMNS: Final = ("attack", "tried", "seen", "through", "twin", "reason")
"""Twin: the same program with an allowed target."""


@app.command()
def demo(
    *,
    output: FormatOption = Format.TABLE,
    state: Annotated[Path, typer.Option("--state", help="Directory of the demo's lab.")] = DEMO_STATE,
    prefix: Annotated[str, typer.Option(help="First part of the namespaces' names.")] = DEMO_PREFIX,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the lab up at the end.")] = False,
) -> None:
    """Build a lab, train two tenants, attack it, revoke a device under traffic; everything is counted."""
    from ztdpu.lab.interruption import Interruption

    with Interruption() as interruption:
        try:
            held = _run(interruption, output=output, state=state.absolute(), prefix=prefix, keep=keep)
        except KeyboardInterrupt:
            held = False
        if interruption.number:
            print("interrupted: the lab is taken down", file=sys.stderr)
            raise typer.Exit(interruption.exit_status)
    if not held:
        raise typer.Exit(1)


def _run(interruption: Any, *, output: Format, state: Path, prefix: str, keep: bool) -> bool:
    from ztdpu.lab.cluster import require_root
    from ztdpu.lab.demo import Demo

    require_root()
    with Board() as board:
        run = Demo(state=state, prefix=prefix, report=board.show, interruption=interruption, keep=keep)
        result = run.run()
    if interruption.number:
        return False
    if output in (Format.JSON, Format.YAML):
        print_document(result, output=output)
    else:
        print_result(result, run.score.faults)
    for fault in run.score.faults:
        print(f"error: {fault}", file=sys.stderr)
    return bool(result["ok"])


def print_result(result: dict[str, Any], faults: list[str]) -> None:
    """Print what was counted, for people: nothing is cut, whatever the width."""
    training = [{"tenant": name, **_short(values)} for name, values in result["tenants"].items()]
    for title, rows, columns in (
        ("Devices", result["devices"], ("name", "tier", "lease_s")),
        ("Training over the sealed fabric", training, _TRAINING_COLUMNS),
        ("Attacks", _attack_rows(result["attacks"]), _ATTACK_COLUMNS),
    ):
        if rows:
            print(f"\n{title}")
            print_rows(rows, columns=columns)
    for line in _sentences(result):
        print(line)
    word = "all held" if not faults else "something did not hold"
    print(f"\n{word}, in {result['seconds']} s ({result['fabric']} fabric, {result['isolation']} isolation)")


def _short(values: dict[str, Any]) -> dict[str, Any]:
    return {
        "ranks": values["ranks"],
        "steps": values["steps"],
        "loss": f"{values['loss_first']:.3g} -> {values['loss_last']:.3g}",
        "accuracy": f"{values['accuracy']:.1%}",
        "off_one_process": f"{values['max_abs_diff_to_single_process']:.1g}",
    }


def _attack_rows(attacks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for attack in attacks:
        counts = {"tried": attack["attempts"], "seen": attack["seen"], "through": attack["delivered"]}
        row = {"attack": attack["name"], **counts, "twin": attack["twin_delivered"], "reason": attack["reason"]}
        rows += one_reason_a_row(row, "reason", _ATTACK_COLUMNS)
    return rows


def _sentences(result: dict[str, Any]) -> list[str]:
    lines = []
    if wire := result["wire"]:
        lines += [
            f"\nOn the wire: {wire['psp_packets']} PSP packets, {wire['clear_packets']} in clear.",
            f"  32 octets that blue sent over and over could be read {wire['canary_hits']} times there,",
            f"  and {wire['canary_hits_without_encryption']} times on the clear link behind the fence.",
        ]
    if revocation := result["revocation"]:
        late, last_ms = revocation["packets_after_ack"], revocation["ack_to_last_packet_ms"]
        lines += [
            f"\n{revocation['device']} revoked: last packet {last_ms:.0f} ms later.",
            f"  {revocation['pps_before']} packets a second flowed each way before. Late packets, accepted after",
            f"  control's acknowledgement: {late}, up to {last_ms:.0f} ms after it. The bound is {BOUND_S:.0f} s.",
        ]
    return lines
