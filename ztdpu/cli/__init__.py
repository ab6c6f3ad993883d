"""The command line: a file per noun, loaded only when that noun is called."""

from __future__ import annotations


def main() -> None:
    """Entry point of the `ztdpu` command."""
    from ztdpu.cli.app import run

    run()
