"""`ztdpu policy`: verbs on files alone (`files`, `checks`), and verbs towards control (`source`)."""

from __future__ import annotations

import typer

from ztdpu.cli.policy.checks import diff, prove, run_policy_tests
from ztdpu.cli.policy.corim import import_corim
from ztdpu.cli.policy.files import explain, lint
from ztdpu.cli.policy.roster import sign_roster
from ztdpu.cli.policy.schema import schema
from ztdpu.cli.policy.source import hold, resume, status, sync
from ztdpu.cli.policy.verify import verify

app = typer.Typer(
    no_args_is_help=True, help="Lint, test, compare, prove and explain policy files; sync them into control."
)

for name, verb in (
    ("lint", lint),
    ("test", run_policy_tests),
    ("explain", explain),
    ("diff", diff),
    ("prove", prove),
    ("schema", schema),
    ("verify", verify),
    ("sign-roster", sign_roster),
    ("import-corim", import_corim),
    ("sync", sync),
    ("hold", hold),
    ("resume", resume),
    ("status", status),
):
    app.command(name)(verb)
