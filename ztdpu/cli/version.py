"""`ztdpu version`."""

from __future__ import annotations

import typer

from ztdpu import __version__

app = typer.Typer()


@app.command()
def version() -> None:
    """Print the version."""
    print(f"ztdpu {__version__}")
