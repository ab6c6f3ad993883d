"""Jobs of tenants: what admins see of them. `control.workloads.jobs` makes these, the command line shows them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

WORLD_SIZE_LIMIT: Final = 4096
JOB_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class JobState(StrEnum):
    """How a job stands."""

    OPEN = "open"
    """Ranks may join."""
    COMPLETE = "complete"
    """Every rank joined."""
    CLOSED = "closed"
    """The token is over before every rank joined; those that did stay."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRank:
    """A rank that joined, and from where."""

    rank: int
    endpoint: str
    device: str
    joined_unix_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """One job of one tenant, in its newest epoch."""

    tenant: str
    name: str
    epoch: int
    """Rises with each token of the job."""
    world_size: int
    state: JobState
    created_unix_ms: int
    token_expires_unix_ms: int
    """Until when ranks may join."""
    ended_unix_ms: int = 0
    """0 until it ends."""
    ranks: tuple[JobRank, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobToken:
    """What ranks join with. Told once."""

    tenant: str
    job: str
    token: str
    epoch: int
    world_size: int
    expires_unix_ms: int
