"""How the source of policy stands: what is in force, what was refused and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PolicyStanding(StrEnum):
    """What became of the newest that the source has."""

    ACCEPTED = "accepted"
    """It is in force."""
    REFUSED = "refused"
    """It is not; what was in force before stays."""
    UNREACHABLE = "unreachable"
    """The repository does not answer; what was in force before stays."""
    HELD = "held"
    """An operator keeps an earlier commit in force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySource:
    """Where policy comes from. Of a directory, only `name`, `standing` and `since_unix_ms` say something."""

    name: str
    """Directory, or repository and branch."""
    standing: PolicyStanding
    since_unix_ms: int = 0
    """When it began to stand like this."""
    why: str = ""
    """Of a refusal, of silence, or of a hold: the reason."""
    held_by: str = ""
    looked_unix_ms: int = 0
    """When the repository was looked at last."""
    commit_id: str = ""
    """In force."""
    signer: str = ""
    committed_unix_s: int = 0
    """As the signer says."""
    accepted_unix_ms: int = 0
    tip: str = ""
    """What the branch stands at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTestReport:
    """Policy tests against the cluster as it is now: without the devices that are shut out."""

    tests: int = 0
    failed: tuple[str, ...] = ()
    """Each failure in one line."""
    ran_unix_ms: int = 0
    cause: str = ""
    """Why they ran last: a policy came into force, or which device changed."""
