"""`ztdpu demo`: one minute that shows what this is for."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ztdpu.cli.board import Board, one_reason_a_row
from ztdpu.cli.dump import print_side_by_side
from ztdpu.cli.lab import FabricOption
from ztdpu.cli.output import Format, FormatOption, print_document, print_rows
from ztdpu.lab.fabric.choice import FabricChoice
from ztdpu.lab.layout import DEFAULT_STATE, lab_command
from ztdpu.lab.scorecard import LONGEST_REVOCATION_MS

app = typer.Typer(help="Build a lab, train two tenants, attack it, revoke a device: one minute.")

DEMO_STATE: Final = DEFAULT_STATE.with_name("demo")
DEMO_PREFIX: Final = "ztdpu-demo"
BOUND_S: Final = LONGEST_REVOCATION_MS / 1000
_TRAINING_COLUMNS: Final = ("tenant", "ranks", "steps", "loss", "accuracy", "off_one_process")
_ATTACK_COLUMNS: Final = ("attack", "tried", "seen", "through", "twin", "reason")
_LEGENDS: Final[dict[tuple[str, ...], tuple[str, ...]]] = {
    _TRAINING_COLUMNS: (
        "OFF ONE PROCESS: largest difference of a weight to the same training",
        "in one process, without a network.",
    ),
    _ATTACK_COLUMNS: (
        "SEEN: attempts that were counted where they enter. THROUGH: that arrived.",
        "TWIN: what arrived when the same program did the same where it may.",
    ),
}
"""What the words above a table mean, below it."""
_UNTRIED: Final = [
    "sidecar-of-another-endpoint: tokens and claims alone. Here all run as one user, who",
    "can open every endpoint's socket: ways to another's are not tried on this fabric.",
]


@app.command()
def demo(
    *,
    output: FormatOption = Format.TABLE,
    state: Annotated[Path, typer.Option("--state", help="Directory of the demo's lab.")] = DEMO_STATE,
    prefix: Annotated[str, typer.Option(help="First part of the namespaces' names.")] = DEMO_PREFIX,
    fabric: FabricOption = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the lab up at the end.")] = False,
) -> None:
    """Build a lab, train two tenants, attack it, revoke a device under traffic; everything is counted."""
    from ztdpu.lab.fabric.choice import choose_fabric
    from ztdpu.lab.interruption import Interruption

    choice = choose_fabric(fabric)
    with Interruption() as interruption:
        try:
            held = _run(interruption, choice, output=output, state=state.absolute(), prefix=prefix, keep=keep)
        except KeyboardInterrupt:
            held = False
        if interruption.number:
            print("interrupted: the lab is taken down", file=sys.stderr)
            raise typer.Exit(interruption.exit_status)
    if not held:
        raise typer.Exit(1)


def _run(interruption: Any, choice: FabricChoice, *, output: Format, state: Path, prefix: str, keep: bool) -> bool:
    from ztdpu.lab.demo import Demo

    with Board() as board:
        run = Demo(
            choice=choice,
            state=state,
            prefix=prefix,
            report=board.show,
            progress=board.progress,
            interruption=interruption,
            keep=keep,
        )
        run.refuse_running_lab()
        board.note(choice.sentence)
        result = run.run()
    if interruption.number:
        return False
    if output in (Format.JSON, Format.YAML):
        print_document(result, output=output)
    else:
        if run.postcard is not None:
            print()
            print_side_by_side(run.postcard.clear, run.postcard.sealed)
        print_result(result)
        print_next_steps(state, keep=keep)
    for fault in run.score.faults:
        print(f"error: {fault}", file=sys.stderr)
    if keep and output is not Format.TABLE:
        print(f"the lab stays up: {lab_command('status', state)}", file=sys.stderr)
    return bool(result["ok"])


def print_result(result: dict[str, Any]) -> None:
    """Print what was counted, for people: nothing is cut, whatever the width."""
    training = [{"tenant": name, **_short(values)} for name, values in result["tenants"].items()]
    for title, rows, columns in (
        ("Devices, before the revocation", _device_rows(result["devices"]), ("name", "tier", "lease")),
        ("Training over the sealed fabric", training, _TRAINING_COLUMNS),
        ("Attacks", _attack_rows(result["attacks"]), _ATTACK_COLUMNS),
    ):
        if rows:
            print(f"\n{title}")
            print_rows(rows, columns=columns)
            print("".join(f"{words}\n" for words in _LEGENDS.get(columns, ())), end="")
    for line in _sentences(result):
        print(line)
    word = "all held" if result["ok"] else "something did not hold"
    print(f"\n{word}, in {result['seconds']} s ({result['fabric']} fabric, {result['isolation']} isolation)")


def print_next_steps(state: Path, *, keep: bool) -> None:
    """Print three commands that work as they stand."""
    ztdpu = _own_name()
    if keep:
        print("\nThe lab stays up, with dpu-1 revoked. Three things to try in it:")
        steps = [
            f"ZTDPU_STATE={state} {ztdpu} device list",
            f"ZTDPU_STATE={state} {ztdpu} audit list",
            f"{ztdpu} lab exec --state {state} blue-0 -- ping -c1 -W1 10.1.0.11",
        ]
        last = f"And to take it down: {ztdpu} lab down --state {state}"
    else:
        print("\nThree things to try next:")
        steps = [
            f"{ztdpu} lab up",
            f"{ztdpu} check connectivity",
            f"{ztdpu} policy explain --from blue-0 --to red-0 --port 22/tcp",
        ]
        last = f"And to take the lab down: {ztdpu} lab down"
    print("".join(f"  {step}\n" for step in steps) + last)


def _own_name() -> str:
    """How this program can be called from here."""
    called = Path(sys.argv[0])
    if shutil.which("ztdpu") == str(called.absolute()):
        return "ztdpu"
    if called.name != "ztdpu":
        return f"{sys.executable} -m ztdpu"
    here = Path.cwd()
    return str(called.absolute().relative_to(here)) if called.absolute().is_relative_to(here) else str(called)


def _device_rows(devices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**one, "lease": f"{one['lease_s']:.0f}s"} for one in devices]


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
    lines = list(_UNTRIED) if result["fabric"] == "userspace" else []
    if result.get("no_training"):
        lines.append(f"\nTraining: {result['no_training']}.")
    if wire := result["wire"]:
        lines += [
            f"\nOn the wire: {wire['psp_packets']} PSP packets, {wire['clear_packets']} in clear.",
            f"  32 octets that blue sent over and over could be read {wire['canary_hits']} times there,",
            f"  and {wire['canary_hits_without_encryption']} times on the clear link behind the fence.",
        ]
    if revocation := result["revocation"]:
        late, last_ms = revocation["packets_after_ack"], revocation["ack_to_last_packet_ms"]
        last = f"last packet {last_ms:.1f} ms later" if late else "not one packet later"
        steps = revocation.get("red_steps_during_revocation", 0)
        packets = revocation.get("red_packets_during_revocation", 0)
        meanwhile = ", while red trains on" if steps else ", while red's packets go on" if packets else ""
        until = f", up to {last_ms:.1f} ms after it" if late else ""
        lines += [
            f"\n{revocation['device']} revoked: {last}{meanwhile}.",
            f"  {revocation['pps_before']} packets a second flowed each way before. Late packets, accepted after",
            f"  control's acknowledgement: {late}{until}. The bound is {BOUND_S:.0f} s.",
        ]
        if steps:
            lines += [
                f"  On two devices that stay, red did {steps} training steps in the two seconds after it,",
                f"  and went on to the end: {revocation['red_accuracy']:.1%} right.",
            ]
    return lines
