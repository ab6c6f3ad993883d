"""The root command: lists the nouns without importing them, and turns errors into words.

`ztdpu --help` must not pay for grpc, sqlalchemy or pydantic, so nouns are named here with their one-line
help and imported when called.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from ztdpu.errors import PolicyRefusedError, ZtdpuError

NOUNS: Final[dict[str, str]] = {
    "demo": "Build a lab, train two tenants, attack it, revoke a device: one minute.",
    "lab": "An emulated cluster on this machine: up, status, exec, down.",
    "policy": "Lint and explain policy files; sync them into control.",
    "device": "List, show, revoke, quarantine and restore devices.",
    "tenant": "List and show tenants.",
    "endpoint": "List and show endpoints.",
    "key": "List and rotate keys.",
    "attestation": "What control found out about a device.",
    "audit": "Who changed what, and what was refused.",
    "status": "How the whole cluster stands, on one screen.",
    "control": "Run the control service.",
    "agent": "Run the agent of a device.",
    "version": "Print the version.",
}
"""Noun -> help. Module `ztdpu.cli.NOUN` has a Typer called `app`."""


class LazyNouns(TyperGroup):
    """A group whose sub-commands are imported on use."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 (the base class fixes the signature)
        """Nouns in the order of the table above."""
        return list(NOUNS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Import and return one noun; in a help screen a light stand-in does."""
        if cmd_name not in NOUNS:
            return None
        if "--help" in sys.argv[1:2] or "-h" in sys.argv[1:2] or len(sys.argv) == 1:
            return TyperCommand(cmd_name, help=NOUNS[cmd_name])
        module = importlib.import_module(f"ztdpu.cli.{cmd_name}")
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        return command


root = typer.Typer(
    cls=LazyNouns,
    no_args_is_help=True,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Zero-trust isolation of tenants on AI training clusters with DPUs.",
    pretty_exceptions_enable=False,
)


@root.callback()
def _root() -> None:
    """Zero-trust isolation of tenants on AI training clusters with DPUs."""


def report(error: ZtdpuError) -> None:
    """Print an error for a person on stderr: what, where, what to do next."""
    faults = error.faults if isinstance(error, PolicyRefusedError) else (error,)
    for fault in faults:
        print(f"error: {fault}" if not fault.where else f"{fault.where} {fault.message}", file=sys.stderr)
    remedies = dict.fromkeys(fault.remedy for fault in (*faults, error) if fault.remedy)
    for remedy in remedies:
        print(f"  next: {remedy}", file=sys.stderr)


def run() -> None:
    """Run the command; leave with 0, 1 (failed), 2 (usage), 3 (unreachable) or 4 (a test found something)."""
    try:
        status = root(standalone_mode=False)
    except ZtdpuError as error:
        report(error)
        sys.exit(error.exit_status)
    except typer.Exit as leaving:
        sys.exit(leaving.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        # typer's own usage errors know how to print themselves; anything else is a defect of ours.
        if not hasattr(error, "show"):
            raise
        error.show()
        sys.exit(2)
    sys.exit(status if isinstance(status, int) else 0)
