"""What control remembers about policy from git: accepted commits, and whether one is held. Values, no I/O."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

HOLD_TEXT: Final = "policy-hold"
"""Name of the store's text that holds a `PolicyHold`; empty: none."""
ANCHOR_TEXT: Final = "policy-anchor"
"""Name of the store's text with the anchor that the accepted commits began with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedCommit:
    """A commit whose policy was in force once."""

    commit_id: str
    committer_unix_s: int
    signer: str
    """Principals, for people; of the anchor: that it is one."""
    accepted_unix_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyHold:
    """An operator's order to stay with an accepted commit."""

    commit_id: str
    reason: str
    actor: str
    since_unix_ms: int


def encode_hold(hold: PolicyHold | None) -> str:
    """For the store."""
    return json.dumps(asdict(hold)) if hold else ""


def decode_hold(text: str) -> PolicyHold | None:
    """From the store."""
    return PolicyHold(**json.loads(text)) if text else None
