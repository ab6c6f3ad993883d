"""What must never go back, across restarts of the agent: roster serial and generation of tables.

A small JSON file in the agent's run-time directory, replaced atomically. It holds no secret; losing it costs the
memory of one run, a malformed one is refused by name. Called by `agent.daemon`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from ztdpu.errors import ConfigurationError, Location

FILE_NAME: Final = "floors.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """Lowest values that are still accepted."""

    roster_serial: int = 0
    roster_sha256: str = ""
    """Of the roster with that serial, hexadecimal."""
    generation: int = 0


def load_floors(state_dir: Path) -> Floors:
    """Read the file; all zero when there is none. Raises ConfigurationError when it is damaged."""
    path = state_dir / FILE_NAME
    try:
        fields = json.loads(path.read_text())
        floors = Floors(**fields)
        if all(isinstance(value, int) and value >= 0 for value in (floors.roster_serial, floors.generation)):
            return floors
    except FileNotFoundError:
        return Floors()
    except (OSError, ValueError, TypeError) as error:
        raise _damaged(path) from error
    raise _damaged(path)


def raise_floors(
    state_dir: Path, floors: Floors, *, roster_serial: int = 0, roster_sha256: str = "", generation: int = 0
) -> Floors:
    """Return higher floors, written first; values below the present ones change nothing."""
    raised = replace(floors, generation=max(generation, floors.generation))
    if roster_serial >= raised.roster_serial and roster_sha256:
        raised = replace(raised, roster_serial=roster_serial, roster_sha256=roster_sha256)
    if raised != floors:
        path = state_dir / FILE_NAME
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(raised)) + "\n")
        fresh.replace(path)
    return raised


def _damaged(path: Path) -> ConfigurationError:
    return ConfigurationError(
        "is damaged",
        remedy="remove it once you are sure that nobody turned back the device's memory",
        where=Location(file=str(path), line=0),
    )
