"""The `--server` option, and opening the connection that it names. Shared by every noun that talks to control."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ztdpu.rpc.client import ControlClient

ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        envvar="ZTDPU_SERVER",
        help="Control: path of its admin socket, or ADDRESS:PORT. Default: that of the lab in ZTDPU_STATE.",
        show_default=False,
    ),
]


def connect(server: str | None) -> ControlClient:
    """Open a client; gRPC is imported here, so that `--help` does not pay for it.

    Somebody at a terminal who waits for longer than a second is told for whom.
    """
    import os
    import sys

    # gRPC's own log lines are for its developers; what went wrong is said in our words.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from ztdpu.errors import UsageError
    from ztdpu.rpc.client import ControlClient

    if server == "":  # an unset variable of a script must not end at another control
        raise UsageError("--server is empty", remedy="name control, or leave --server out for the lab's")
    client = ControlClient.connect(server)
    if sys.stderr.isatty():
        client.on_slow = lambda: print("waiting for control ...", file=sys.stderr, flush=True)
    return client


def as_time(unix_ms: int) -> str:
    """UTC, to the second; `-` for never."""
    if not unix_ms:
        return "-"
    from datetime import UTC, datetime

    return datetime.fromtimestamp(unix_ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def as_age(unix_ms: int) -> str:
    """Time since then, in its two largest units."""
    if not unix_ms:
        return "-"
    import time

    seconds = max(0, int(time.time() - unix_ms / 1000))
    for size, unit, smaller, name in ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= size:
            return f"{seconds // size}{unit}{seconds % size // smaller}{name}"
    return f"{seconds}s"
