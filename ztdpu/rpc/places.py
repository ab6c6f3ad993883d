"""Where a lab lies when nobody says where: read by the lab, which builds there, and by the client."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_OF_ROOT: Final = Path("/run/ztdpu")


def runtime_directory(uid: int, environment: Mapping[str, str]) -> Path:
    """Directory of a user's labs: /run/ztdpu for root, else below XDG_RUNTIME_DIR, else /tmp/ztdpu-UID."""
    if uid == 0:
        return _OF_ROOT
    session = environment.get("XDG_RUNTIME_DIR", "")
    if session.startswith("/") and os.access(session, os.W_OK | os.X_OK):
        return Path(session) / "ztdpu"
    return Path(f"/tmp/ztdpu-{uid}")  # noqa: S108 - made 0700, and refused when it is not ours


RUNTIME_DIRECTORY: Final = runtime_directory(os.geteuid(), os.environ)
LAB_STATE: Final = RUNTIME_DIRECTORY / "lab"
