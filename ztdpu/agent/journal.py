"""The agent's log: one JSON object a line on stderr. Never a key, a nonce, a token or a packet.

Used by the daemon and its parts. Lines are few: what changed, what was refused, what ended.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime


def log(event: str, *, level: str = "info", **fields: object) -> None:
    """Write one line. `event` is a stable word, `fields` are printable values."""
    stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = {"component": "agent", "level": level, "timestamp": stamp, "event": event, **fields}
    print(json.dumps(line, default=str), file=sys.stderr, flush=True)


def warn(event: str, **fields: object) -> None:
    """Write one line that somebody should look at."""
    log(event, level="warning", **fields)
