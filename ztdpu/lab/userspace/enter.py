"""Run a program in a place of a lab without privilege: a plain child that finds its place in its environment.

The lab's own programs (captures, senders, attacks) reach their endpoint or the wire through taps. Anything else would
see this machine's network and not the lab's: at an endpoint it is refused, apart from `ping`, which we make ourselves;
elsewhere it runs, and is told. Called by `lab.enter`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

from ztdpu.errors import UsageError
from ztdpu.lab.layout import PLACES, lab_command
from ztdpu.lab.record import LabRecord
from ztdpu.lab.userspace.places import own_environment

_PING: Final = "ztdpu.lab.userspace.ping"


def run_plainly(record: LabRecord, target: str, argv: Sequence[str]) -> int:
    """Become `argv` in the place `target`; returns an exit status only when it cannot be started.

    UsageError when there is no such place, or no network there for the program.
    """
    plan = record.plan
    if target not in {*PLACES, *plan.inhabitants}:
        raise UsageError(f"no {target!r} in this lab", remedy=f"targets: {', '.join([*PLACES, *plan.inhabitants])}")
    if argv[0] == "ping":
        argv = [sys.executable, "-m", _PING, *argv[1:]]
    is_ours = list(argv[:2]) == [sys.executable, "-m"] and len(argv) > 2 and argv[2].startswith("ztdpu.")
    is_endpoint = target in {one.name for one in plan.endpoints}
    if is_endpoint and not is_ours:
        raise UsageError(
            f"{target} lives in memory, without a network stack: {argv[0]} would see this machine's network",
            remedy=f"{lab_command('exec', plan.state, f'{target} -- ping -c3 ENDPOINT')} works; for programs, a lab "
            f"with namespaces: sudo {lab_command('up', '/run/ztdpu/lab')}",
        )
    if not is_ours:
        print(f"note: no namespaces on the userspace fabric: {argv[0]} runs on this machine itself", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(argv[0], list(argv), own_environment(plan, target))  # noqa: S606 - the program asked for
    except FileNotFoundError:
        print(f"error: {argv[0]}: no such program", file=sys.stderr)
        return 127
    except OSError as error:
        print(f"error: {argv[0]}: {error.strerror}", file=sys.stderr)
        return 126
