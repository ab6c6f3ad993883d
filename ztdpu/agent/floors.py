"""What must never go back, across restarts of the agent: roster serial, generation of tables, boots of peers.

A small JSON file in `floorsDir`, replaced atomically. It holds no secret; losing it costs the
memory of one run, a malformed one is refused by name. Called by `agent.conversation`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from ztdpu.errors import ConfigurationError, Location, StateError
from ztdpu.trust.peer import PeerFloor

FILE_NAME: Final = "floors.json"
PEERS_MAX: Final = 4096
"""More devices than this were peers once: the one that was raised the longest ago is forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """Lowest values that are still accepted."""

    roster_serial: int = 0
    roster_sha256: str = ""
    """Of the roster with that serial, hexadecimal."""
    generation: int = 0
    peers: Mapping[str, PeerFloor] = field(default_factory=dict)
    """By DeviceID (SHA-256, hexadecimal), in the order in which they were raised."""


def load_floors(state_dir: Path) -> Floors:
    """Read the file; all zero when there is none. Raises ConfigurationError when it is damaged."""
    path = state_dir / FILE_NAME
    try:
        return _decode(json.loads(path.read_text()))
    except FileNotFoundError:
        return Floors()
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise _damaged(path) from error


def raise_floors(
    state_dir: Path,
    floors: Floors,
    *,
    roster_serial: int = 0,
    roster_sha256: str = "",
    generation: int = 0,
    peers: Mapping[str, PeerFloor] | None = None,
) -> Floors:
    """Return higher floors, written first; values below the present ones change nothing.

    Raises StateError when they cannot be written: then nothing that raises them may be believed.
    """
    raised = replace(floors, generation=max(generation, floors.generation))
    if roster_serial >= raised.roster_serial and roster_sha256:
        raised = replace(raised, roster_serial=roster_serial, roster_sha256=roster_sha256)
    if peers:
        raised = replace(raised, peers=_raise_peers(floors.peers, peers))
    if raised != floors:
        try:
            _write(state_dir / FILE_NAME, json.dumps(_encode(raised)) + "\n")
        except OSError as error:
            remedy = "make room on its file system; it is tried again by itself"
            raise StateError(f"floors cannot be written in {state_dir}: {error.strerror}", remedy=remedy) from error
    return raised


def _write(path: Path, text: str) -> None:
    """Replace the file so that it outlives a loss of power: contents first, then its name."""
    fresh = path.with_suffix(".new")
    with fresh.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _raise_peers(before: Mapping[str, PeerFloor], shown: Mapping[str, PeerFloor]) -> dict[str, PeerFloor]:
    peers = dict(before)
    for device, floor in shown.items():
        known = peers.get(device)
        if known is None or _place(floor) > _place(known):
            peers.pop(device, None)
            peers[device] = floor
    while len(peers) > PEERS_MAX:
        del peers[next(iter(peers))]
    return peers


def _place(floor: PeerFloor) -> tuple[int, int]:
    return floor.boot_counter, floor.sequence


def _encode(floors: Floors) -> dict[str, Any]:
    return {
        "roster_serial": floors.roster_serial,
        "roster_sha256": floors.roster_sha256,
        "generation": floors.generation,
        "peers": {
            device: {
                "boot_counter": floor.boot_counter,
                "sequence": floor.sequence,
                "binding_sha256": floor.binding_sha256.hex(),
                "alias_spki_sha256": floor.alias_spki_sha256.hex(),
                "first_seen": floor.first_seen.isoformat(),
            }
            for device, floor in floors.peers.items()
        },
    }


def _decode(fields: dict[str, Any]) -> Floors:
    """Raises ValueError, TypeError or AttributeError for anything that `_encode` does not make."""
    peers = {device: _decode_peer(**floor) for device, floor in fields.pop("peers", {}).items()}
    floors = Floors(**fields, peers=peers)
    _require_unsigned(floors.roster_serial, floors.generation)
    bytes.fromhex(floors.roster_sha256)
    return floors


def _decode_peer(
    *, boot_counter: int, sequence: int, binding_sha256: str, alias_spki_sha256: str, first_seen: str
) -> PeerFloor:
    _require_unsigned(boot_counter, sequence)
    seen = datetime.fromisoformat(first_seen)
    if seen.tzinfo is None:
        raise ValueError("time without a zone")
    return PeerFloor(
        boot_counter=boot_counter,
        sequence=sequence,
        binding_sha256=bytes.fromhex(binding_sha256),
        alias_spki_sha256=bytes.fromhex(alias_spki_sha256),
        first_seen=seen,
    )


def _require_unsigned(*values: object) -> None:
    if not all(type(value) is int and value >= 0 for value in values):
        raise ValueError("not a number that can be a floor")


def _damaged(path: Path) -> ConfigurationError:
    return ConfigurationError(
        "is damaged",
        remedy="remove it once you are sure that nobody turned back the device's memory",
        where=Location(file=str(path), line=0),
    )
