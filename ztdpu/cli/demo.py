"""`ztdpu demo`: one minute that shows what this is for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import typer

from ztdpu.cli.output import Format, FormatOption, print_document

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from ztdpu.lab.demo import Step

app = typer.Typer(help="Build a lab, train two tenants, attack it, revoke a device: one minute.")

DEMO_STATE: Final = Path("/run/ztdpu/demo")
DEMO_PREFIX: Final = "ztdpu-demo"


@app.command()
def demo(
    *,
    output: FormatOption = Format.TABLE,
    state: Annotated[Path, typer.Option("--state", help="Directory of the demo's lab.")] = DEMO_STATE,
    prefix: Annotated[str, typer.Option(help="First part of the namespaces' names.")] = DEMO_PREFIX,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the lab up at the end.")] = False,
) -> None:
    """Build a lab, train two tenants, attack it, revoke a device under traffic; everything is counted."""
    from rich.console import Console

    from ztdpu.lab.cluster import require_root
    from ztdpu.lab.demo import Demo

    require_root()
    console = Console(stderr=True)
    board = Board(console)
    run = Demo(state=state.absolute(), prefix=prefix, report=board.show, keep=keep)
    with board:
        result = run.run()
    if output in (Format.JSON, Format.YAML):
        print_document(result, output=output)
    else:
        print_result(result, Console())
    for fault in run.score.faults:
        print(f"error: {fault}", file=sys.stderr)
    if keep:
        print(f"the lab is still up: ztdpu lab status --state {state}", file=sys.stderr)
    if not result["ok"]:
        raise typer.Exit(1)


class Board:
    """The steps as they happen: redrawn in a terminal, one line each elsewhere."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._steps: dict[str, Step] = {}
        self._spinners: dict[str, RenderableType] = {}
        self._live = Live(console=console, refresh_per_second=12, transient=False) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._console.print("\n[bold]ztdpu[/bold]  two tenants, one fabric, nobody trusted\n")
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, step: Step) -> None:
        """Take one report of the demo."""
        self._steps[step.name] = step
        if self._live is not None:
            self._live.update(self._draw())
        elif step.state != "running":
            self._console.print(f"{step.state:7}{step.name}: {step.detail}".rstrip(": "), highlight=False, markup=False)

    def _draw(self) -> RenderableType:
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        marks = {"done": Text("\u2714", "green"), "failed": Text("\u2718", "bold red")}
        for name, step in self._steps.items():
            spinner = self._spinners.setdefault(name, Spinner("dots", style="cyan"))
            table.add_row(marks.get(step.state, spinner), Text(name), Text(step.detail, "dim"))
        return table


def print_result(result: dict[str, Any], console: Console) -> None:
    """Print what was counted, for people."""
    for title, rows in _tables(result):
        if rows:
            console.print()
            console.print(_table(title, rows))
    word = "[bold green]all held[/bold green]" if result["ok"] else "[bold red]something did not hold[/bold red]"
    console.print(f"\n{word}, in {result['seconds']} s ({result['fabric']} fabric, {result['isolation']} isolation)")


def _tables(result: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    training = [{"tenant": name, **values} for name, values in result["tenants"].items()]
    return [
        ("devices", result["devices"]),
        ("training over the sealed fabric", training),
        ("attacks", result["attacks"]),
        ("on the wire", [result["wire"]] if result["wire"] else []),
        ("revocation", [result["revocation"]] if result["revocation"] else []),
    ]


def _table(title: str, rows: list[dict[str, Any]]) -> RenderableType:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for key in rows[0]:
        table.add_column(key.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
    return table
