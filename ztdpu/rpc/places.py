"""Where a lab lies when nobody says where: read by the lab, which builds there, and by the client."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_OF_ROOT: Final = Path("/run/ztdpu")


def runtime_directory(uid: int, environment: Mapping[str, str]) -> Path:
    """Directory of a user's labs: /run/ztdpu for root, else below XDG_RUNTIME_DIR, else /tmp/ztdpu-UID.

    Root of a container's or somebody's user namespace may not write /run, and is like anybody else then.
    """
    if uid == 0 and os.access(_OF_ROOT.parent, os.W_OK):
        return _OF_ROOT
    session = environment.get("XDG_RUNTIME_DIR", "")
    if session.startswith("/") and os.access(session, os.W_OK | os.X_OK):
        return Path(session) / "ztdpu"
    return Path(f"/tmp/ztdpu-{uid}")  # noqa: S108 - see `make_runtime_directory`


def make_runtime_directory(path: Path) -> None:
    """Make it, or see that it is ours alone: in /tmp anybody could have made it before us. Raises OSError."""
    if path == _OF_ROOT:
        path.mkdir(parents=True, exist_ok=True)
        return
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(errno.EPERM, f"{path} is not yours alone", str(path))


RUNTIME_DIRECTORY: Final = runtime_directory(os.geteuid(), os.environ)
LAB_STATE: Final = RUNTIME_DIRECTORY / "lab"
ADMIN_SOCKET_OF_LAB: Final = "control/admin.sock"
"""Below the lab's directory."""
