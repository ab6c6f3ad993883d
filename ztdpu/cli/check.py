"""`ztdpu check`: try on a running lab what policy says."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ztdpu.cli.board import one_reason_a_row
from ztdpu.cli.output import Format, FormatOption, print_document, print_rows
from ztdpu.lab.layout import DEFAULT_STATE

if TYPE_CHECKING:
    from ztdpu.lab.crew import Crew
    from ztdpu.lab.layout import LabPlan
    from ztdpu.rpc.client import ControlClient

app = typer.Typer(no_args_is_help=True, help="Try on a running lab what policy says.")

COLUMNS: Final = ("flow_or_attack", "expected", "seen", "delivered", "verdict")
HELD: Final = "ok"


@app.callback()
def _check() -> None:
    """Try on a running lab what policy says."""


@app.command()
def connectivity(
    *,
    state: Annotated[Path, typer.Option("--state", envvar="ZTDPU_STATE", help="Directory of the lab.")] = DEFAULT_STATE,
    output: FormatOption = Format.TABLE,
) -> None:
    """Try every flow that policy allows and every attack; exit status 1 when one does not end as it must."""
    from ztdpu.lab.crew import Crew
    from ztdpu.lab.record import require_record
    from ztdpu.lab.takedown import require_owner
    from ztdpu.rpc.client import ControlClient

    require_owner(state)
    plan = require_record(state.absolute()).plan
    with Crew(Path(plan.state)) as crew, ControlClient.connect(f"unix:{plan.paths.admin_socket}") as control:
        flows = _try_flows(crew, plan)
        attacks, skipped = _try_attacks(crew, control, plan)
    rows = [*flows, *attacks]
    held = bool(rows) and all(row["verdict"] == HELD for row in rows)
    if output in (Format.JSON, Format.YAML):
        document = {"ok": held, "flows": flows, "attacks": attacks, "skipped": skipped}
        print_document(document, output=output)
    else:
        lines = [line for row in rows for line in one_reason_a_row(_row(row), "expected", COLUMNS)]
        print_rows(lines, columns=COLUMNS, output=output)
    for name, why in skipped.items():
        print(f"skipped: {name}: {why}", file=sys.stderr)
    if not held:
        raise typer.Exit(1)


def _row(row: dict[str, Any]) -> dict[str, Any]:
    delivered = f"{row['delivered']}/{row['attempts']}"
    return {**row, "flow_or_attack": row["name"], "seen": f"{row['seen']}/{row['attempts']}", "delivered": delivered}


def _say(words: str) -> None:
    if sys.stderr.isatty():
        print(f"trying {words} ...", file=sys.stderr, flush=True)


def _try_flows(crew: Crew, plan: LabPlan) -> list[dict[str, Any]]:
    from ztdpu.lab.connectivity import allowed_flows, try_flows
    from ztdpu.policy.load import load_directory

    flows = list(allowed_flows(load_directory(plan.policy), plan))
    _say(f"{len(flows)} allowed flows")
    rows = []
    for count in try_flows(crew, flows):
        missing = count.attempts - count.delivered
        verdict = HELD if not missing and count.seen == count.attempts else f"{missing} of {count.attempts} lost"
        rows.append({**asdict(count), "expected": "delivered", "verdict": verdict})
    return rows


def _try_attacks(crew: Crew, control: ControlClient, plan: LabPlan) -> tuple[list[dict[str, Any]], dict[str, str]]:
    from ztdpu.errors import ZtdpuError
    from ztdpu.lab.campaign import NEED_A_SPARE, Campaign, choose_cast
    from ztdpu.lab.scorecard import Scorecard
    from ztdpu.lab.sidecar_trial import untried

    housed = {endpoint.device for endpoint in plan.endpoints}
    idle = [one.name for one in control.list_devices() if one.name not in housed and not one.connected]
    spare = next((device.name for device in plan.devices if device.name in idle), "")
    [wire] = crew.start_captures([("fabric", "br0", [])])
    campaign = Campaign(crew, control, plan, choose_cast(plan, spare=spare), wire=wire)
    campaign.start()
    score = Scorecard()
    rows: list[dict[str, Any]] = []
    for name, run in campaign.attacks():
        _say(name)
        known = len(score.faults)
        try:
            score.note_attack(**asdict(run()))
            row = score.attacks[-1]
        except ZtdpuError as error:
            score.note_fault(error.message)
            row = dict.fromkeys(("reason", "expected"), "") | dict.fromkeys(("attempts", "seen", "delivered"), 0)
            row["name"] = name
        faults = [fault.removeprefix(f"{name}: ") for fault in score.faults[known:]]
        rows.append({**row, "verdict": "; ".join(faults) or HELD})
    why = "needs a device without endpoints and agent: ztdpu lab up --stranger dpu-x"
    return rows, untried(plan) | ({} if spare else dict.fromkeys(NEED_A_SPARE, why))
