"""Makes a device of a running lab misbehave, and heals it: `ztdpu lab fault DEVICE PRESET`.

Speaks to the fault door of the device's root of trust, a socket of mode 0600 in the device's own directory that is
there in labs alone. What each preset does: `trust.faults`. Changes nothing else: what follows is control's to decide.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

from ztdpu.agent.root_of_trust import FAULT_SET
from ztdpu.errors import StateError, UsageError
from ztdpu.lab.layout import lab_command, real_path
from ztdpu.lab.manufacture import FAULT_SOCKET
from ztdpu.lab.record import require_record
from ztdpu.trust.faults import Preset

PRESETS: Final = tuple(str(preset) for preset in Preset)
TIMEOUT_S: Final = 10.0
_ANSWER_LIMIT_OCTETS: Final = 1024


def read_preset(word: str) -> Preset:
    """Read the word of a preset; UsageError names all of them."""
    try:
        return Preset(word)
    except ValueError:
        raise UsageError(f"no preset {word!r}", remedy=f"presets: {', '.join(PRESETS)}") from None


def set_fault(state: Path, device: str, preset: Preset) -> None:
    """Put a preset into force at a device of the lab in `state`.

    Raises UsageError when there is no such device, StateError when there is no lab, the device's root of trust does
    not run, or it refuses.
    """
    record = require_record(real_path(state))
    plan = record.plan.device(device)
    set_at_door(
        record.plan.paths.device(plan.name) / FAULT_SOCKET,
        preset,
        remedy=lab_command("restart", record.plan.state, device),
    )


def set_at_door(path: Path, preset: Preset, *, remedy: str) -> None:
    """Say the word at a fault door; StateError when nobody answers or the answer is not `ok`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as door:
        door.settimeout(TIMEOUT_S)
        try:
            door.connect(str(path))
            door.send(preset.encode())
            answer = door.recv(_ANSWER_LIMIT_OCTETS)
        except OSError as error:
            cause = "no answer in time" if isinstance(error, TimeoutError) else error.strerror
            raise StateError(f"the root of trust behind {path} does not take faults: {cause}", remedy=remedy) from error
    if answer != FAULT_SET:
        raise StateError(f"the root of trust refuses: {answer.decode(errors='replace') or 'it hung up'}", remedy=remedy)
