"""What the agent's life cycle hears and says: one plain value per event and command.

Events happen to the agent, commands are carried out by `agent.daemon`; `agent.lifecycle` turns the ones into the
others. Times are nanoseconds of CLOCK_BOOTTIME.
"""

from __future__ import annotations

from dataclasses import dataclass

# --- events -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RootUp:
    """The root of trust answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootDown:
    """The root of trust ended; its Alias is gone with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerUp:
    """A worker said it is ready: fresh master keys, no lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDown:
    """The worker ended; nothing moves because nobody moves it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """Control appraised and granted a lease."""

    duration_ms: int
    interval_ms: int
    new_svid: bool
    """An SVID came with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Control answered and granted nothing."""

    state: str
    """State word of the device at control."""
    reason: str
    interval_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """No answer: unreachable, broken off, or it did not verify."""

    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkDenied:
    """Control closed the stream because of the device's state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockDoubted:
    """The wall clock stepped against BOOTTIME."""

    step_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    """`next_timer_ns` is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """The daemon was told to end."""


Event = (
    RootUp | RootDown | WorkerUp | WorkerDown | Granted | Refused | Failed | UplinkDenied | ClockDoubted | TimerFired
    | Stopping
)  # fmt: skip


# --- commands ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginAttestation:
    """Start one attempt; answer with Granted, Refused or Failed."""

    asked_ns: int
    afresh: bool
    """No lease runs: delete what SAs are left and ask for a new binding, as an agent that starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonAttestation:
    """Break the running attempt off; its answer is not wanted any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLease:
    """Tell the worker until when packets may move; 0 means stop now."""

    deadline_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenUplink:
    """Connect with the newest SVID; with an older connection open: new one first, then close the old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseUplink:
    """The identity is gone: close the stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewExchange:
    """Moving again after a pause: ask every peer for SAs again and tell them to ask us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebootRoot:
    """Start the root of trust anew (a newer boot) and forget TLS and offer keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A line for the log: the consequence of an event, never a secret."""

    event: str
    detail: str = ""


Command = (
    BeginAttestation | AbandonAttestation | SetLease | OpenUplink | CloseUplink | RenewExchange | RebootRoot | Note
)
