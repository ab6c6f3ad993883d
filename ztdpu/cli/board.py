"""The demo's steps as they happen: on a terminal what runs moves and what is done stays; elsewhere a line per step.

Called by `ztdpu demo`; `ztdpu check` shares the way in which reasons stand in a table. Writes to stderr only;
results go to stdout elsewhere. Outside a terminal nothing is wrapped, cut or coloured.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ztdpu.lab.demo import Progress, Step

_LOSS_CELLS: Final = 24


class Board:
    """Takes reports from any thread."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True, highlight=False)
        self._lock = threading.Lock()
        self._running: dict[str, RenderableType] = {}
        self._training: dict[str, Progress] = {}
        live = self._console.is_terminal
        self._live = Live(console=self._console, refresh_per_second=12, transient=True) if live else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._console.print("\n[bold]ztdpu[/bold]  two tenants, one fabric, nobody trusted\n")
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def note(self, words: str) -> None:
        """Say something that is no step."""
        if self._live is None:
            print(words, file=sys.stderr, flush=True)
        else:
            self._console.print(f"{words}\n", style="dim", markup=False)

    def show(self, step: Step) -> None:
        """Take a step's beginning or end."""
        from rich.spinner import Spinner
        from rich.text import Text

        if self._live is None:
            if step.state != "running":
                print(f"{step.state:7}{step.name}: {step.detail}".rstrip(": "), file=sys.stderr, flush=True)
            return
        with self._lock:
            if step.state == "running":
                self._running[step.name] = Spinner("dots", Text(step.name), style="cyan")
            else:
                self._running.pop(step.name, None)
                self._console.print(_line(step))
            self._live.update(self._draw())

    def progress(self, progress: Progress) -> None:
        """Take how far a training is; shown while it runs."""
        if self._live is None:
            return
        with self._lock:
            if progress.step < progress.steps:
                self._training[progress.tenant] = progress
            else:
                self._training.pop(progress.tenant, None)
            self._live.update(self._draw())

    def _draw(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        for tenant, one in sorted(self._training.items()):
            done = round(_LOSS_CELLS * one.step / one.steps)
            bar = f"[cyan]{'━' * done}[/cyan][dim]{'━' * (_LOSS_CELLS - done)}[/dim]"
            table.add_row(f"    {tenant}", bar, f"step {one.step} of {one.steps}", f"loss {one.loss:.4f}")
        return Group(*self._running.values(), table)


def _line(step: Step) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    mark = Text("\u2714", "green") if step.state == "done" else Text("\u2718", "bold red")
    line = Table.grid(padding=(0, 2))
    line.add_column(no_wrap=True)
    line.add_column(no_wrap=True, min_width=36)
    line.add_column()
    line.add_row(mark, Text(step.name), Text(step.detail, "dim"))
    return line


def one_reason_a_row(row: dict[str, Any], key: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the row, and one more for each further reason in it: so that a table stays narrow and cuts nothing."""
    first, *further = str(row[key]).split(", ")
    return [{**row, key: first}, *(dict.fromkeys(columns, " ") | {key: reason} for reason in further)]
