"""The root command: lists the nouns without importing them, and turns errors into words and exit statuses.

`ztdpu --help` must not pay for grpc, sqlalchemy or pydantic, so nouns are named here with their one-line
help and imported when called.
"""

# ruff: noqa: FBT002 - typer makes flags of them
from __future__ import annotations

import difflib
import importlib
import os
import sys
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from ztdpu.cli.report import is_of_the_machine, report, report_os_error, report_usage
from ztdpu.errors import UsageError, ZtdpuError

NOUNS: Final[dict[str, str]] = {
    "demo": "Build a lab, train two tenants, attack it, revoke a device: one minute.",
    "lab": "An emulated cluster on this machine: up, status, exec, restart, down.",
    "check": "Try on a running lab what policy allows and what it must not.",
    "policy": "Lint, test, compare, prove and explain policy files; sync them into control.",
    "device": "List, show, revoke, quarantine and restore devices.",
    "tenant": "List and show tenants.",
    "endpoint": "List and show endpoints.",
    "key": "List and rotate keys.",
    "job": "Open jobs, see who joined them, end them.",
    "identity": "Identities and their ends; replace the authority without an outage.",
    "attestation": "What control found out about a device.",
    "audit": "Who changed what, and what was refused.",
    "status": "How the whole cluster stands, on one screen.",
    "control": "Run the control service.",
    "agent": "Run the agent of a device.",
    "version": "Print the version.",
}
"""Noun -> help. Module `ztdpu.cli.NOUN` has a Typer called `app`."""

EXIT_STATUSES: Final = (
    "Exit status: 0 done; 1 failed, refused, or (policy explain) would be dropped;"
    " 2 the question is wrong: usage, an unknown name, a missing or faulty file;"
    " 3 control does not answer; 4 a policy test, diff or proof found something; 130 interrupted."
)
_COMPLETION: Final = frozenset({"install_completion", "show_completion"})


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
        # Completion is installed for the whole command; at a noun its options would only stand in the way.
        command.params = [one for one in command.params if one.name not in _COMPLETION]
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the noun, or say which one is nearest."""
        word = args[0] if args else ""
        if word and not word.startswith("-") and word not in NOUNS:
            near = difflib.get_close_matches(word, NOUNS, n=1)
            rest = " ".join(args[1:])
            remedy = f"did you mean `ztdpu {near[0]} {rest}`?".replace(" `?", "`?") if near else "`ztdpu --help`"
            raise UsageError(f"no command {word!r}", remedy=remedy)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run it. The parser's own way with a closed pipe (exit status 1) is not ours: a reader may stop reading."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _mute_stdout()
            raise typer.Exit(0) from None


root = typer.Typer(
    cls=LazyNouns,
    no_args_is_help=True,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Zero-trust isolation of tenants on AI training clusters with DPUs.",
    epilog=EXIT_STATUSES,
    pretty_exceptions_enable=False,
)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        from ztdpu import __version__

        print(f"ztdpu {__version__}")
        raise typer.Exit


@root.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=lambda v: _print_version(wanted=v)
        ),
    ] = False,
) -> None:
    """Zero-trust isolation of tenants on AI training clusters with DPUs."""


def run() -> None:
    """Run the command; leave with a status of EXIT_STATUSES."""
    status = _call()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _mute_stdout()
    except OSError as error:
        report_os_error(error)
        _mute_stdout()
        status = status or 1
    sys.exit(status)


def _call() -> int:
    try:
        status = root(prog_name="ztdpu", standalone_mode=False)
    except ZtdpuError as error:
        report(error)
        return error.exit_status
    except typer.Exit as leaving:
        return leaving.exit_code
    except (typer.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        if not is_of_the_machine(error):
            raise
        report_os_error(error)
        return 1
    except Exception as error:
        # The parser's own errors know how to print themselves; anything else is a defect of ours.
        if not hasattr(error, "format_message"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]
        else:
            report_usage(error)
        return 2
    return status if isinstance(status, int) else 0


def _mute_stdout() -> None:
    """Whoever read has gone, or the disk is full: what is still buffered goes nowhere, without a word at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
