"""How the agent stands: the status message to control, what is still missing, and the file for the health check.

Called by `agent.daemon` (all) and the command line (`read_health`). The health file holds no secret.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ztdpu.agent.journal import warn
from ztdpu.agent.lifecycle import Lifecycle, Phase
from ztdpu.errors import UnreachableError

if TYPE_CHECKING:
    from ztdpu.agent import mailbox
    from ztdpu.agent.conversation import Conversation
    from ztdpu.agent.exchange_shell import ExchangeShell
    from ztdpu.agent.virtual_functions import VirtualFunctions
    from ztdpu.v1 import agent_pb2

FILE_NAME: Final = "health.json"
FRESH_NS: Final = 5_000_000_000
"""A health file is written every second; an older one means that the daemon hangs or is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What the health check reads."""

    phase: str
    ready: bool
    waiting_for: str = ""
    lease_deadline_ns: int = 0
    """CLOCK_BOOTTIME."""
    boottime_ns: int = 0
    """When this was written."""
    pid: int = 0


def waiting_for(
    life: Lifecycle,
    conversation: Conversation,
    exchange: ExchangeShell,
    functions: VirtualFunctions,
    *,
    worker_up: bool,
) -> str:
    """Name the first thing that is missing, in the order in which things come; empty when ready."""
    if not worker_up:
        return "worker"
    if life.phase is not Phase.LEASED:
        return f"lease ({life.phase}: {life.reason})"
    missing = conversation.missing()
    if missing:
        return missing
    unmade = functions.missing()
    if unmade:
        return f"virtual function of {', '.join(unmade[:8])}"
    lacking = exchange.missing()
    if lacking:
        return f"keys to send to {', '.join(dict.fromkeys(device for device, _ in lacking[:8]))}"
    return ""


def status(
    conversation: Conversation,
    exchange: ExchangeShell,
    *,
    instance: bytes,
    waiting_for: str,
    counters: mailbox.Statistics | None,
    bundle_sequence: int,
) -> agent_pb2.AgentMessage:
    """Build the status message."""
    from ztdpu.v1 import agent_pb2

    return agent_pb2.AgentMessage(
        status=agent_pb2.AgentStatus(
            applied_generation=conversation.applied_generation,
            applied_revision=conversation.applied_revision,
            worker_instance=instance,
            ready=not waiting_for,
            waiting_for=waiting_for,
            key_epochs=exchange.epochs,
            packets_by_reason=counters.packets_by_reason if counters else {},
            sealed_packets=counters.sealed_packets if counters else 0,
            opened_packets=counters.opened_packets if counters else 0,
            bundle_sequence=bundle_sequence,
        )
    )


def bundle_status(sequence: int, worker_instance: bytes) -> agent_pb2.AgentMessage:
    """Build a status that tells of the bundle alone: what a simulated agent has to say."""
    from ztdpu.v1 import agent_pb2

    status = agent_pb2.AgentStatus(bundle_sequence=sequence, worker_instance=worker_instance, waiting_for="a worker")
    return agent_pb2.AgentMessage(status=status)


def write_health(state_dir: Path, health: Health) -> None:
    """Replace the health file, if that can be done: an old one says by its age that it is old."""
    fresh = state_dir / f"{FILE_NAME}.new"
    try:
        fresh.write_text(json.dumps(asdict(health)) + "\n")
        fresh.replace(state_dir / FILE_NAME)
    except OSError as error:
        warn("health-not-written", cause=str(error))


def read_health(state_dir: Path) -> Health:
    """Read the health file. Raises UnreachableError when no agent keeps it fresh."""
    path = state_dir / FILE_NAME
    try:
        health = Health(**json.loads(path.read_text()))
        age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - int(health.boottime_ns)
    except (OSError, ValueError, TypeError) as error:
        raise UnreachableError(f"{path}: no agent runs here", remedy="start it with `ztdpu agent run`") from error
    if not 0 <= age_ns < FRESH_NS:
        raise UnreachableError(f"{path}: the agent does not run, or hangs", remedy="look at its log; restart it")
    return health
