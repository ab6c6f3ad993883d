"""The life of an agent: when it attests, when packets may move, when it gives up a lease. Pure.

`agent.daemon` feeds events with the time they happened and a jitter in [0, 1), carries out the commands
that come back, and calls again at `next_timer_ns`. No clock, randomness or I/O here. All times are
nanoseconds of CLOCK_BOOTTIME, which counts suspend.

| phase     | packets may move   | entered when                              | left by                                 |
|-----------|--------------------|-------------------------------------------|-----------------------------------------|
| starting  | no                 | the daemon starts                         | root of trust and worker are both up    |
| attesting | no                 | both are up, nothing was granted yet      | granted, refused                        |
| leased    | until the deadline | control granted a lease                   | deadline, refused, clock doubt, revoked |
| stale     | no                 | the lease ended without a word of control | granted, refused                        |
| refused   | no                 | control appraised and said no             | granted                                 |
| stopped   | no                 | the daemon ends                           | -                                       |

Rules beside the table:
1. The deadline counts from before the request left (`asked_ns`), so an agent always ends before control does.
2. A grant whose deadline is already over grants nothing.
3. At most one attempt runs; one that takes longer than ATTEMPT_LIMIT_NS is abandoned and counts as failed.
4. Failures back off from 0.25 s, doubling, never beyond the interval or 5 s; refusals come back at the interval.
5. Nothing but a failed or late attempt ends a lease early, except a refusal, clock doubt, or control closing
   the stream with "denied" while no attempt runs. With one running its result decides: control closes the old
   stream itself when it accepts a new binding.
6. After `revoked` the old boot never comes back (protocols.md 3), so the next attempt starts from a new boot and
   new keys; the same when a device that had a lease finds itself `pending`.
7. A grant after failures or a pause opens the uplink anew: a stream that hangs on a path that was cut says nothing.
8. A root of trust that comes back has a newer boot: the binding of the older one is dead, so attest at once.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from ztdpu.agent.lifecycle_words import (
    AbandonAttestation,
    BeginAttestation,
    ClockDoubted,
    CloseUplink,
    Command,
    Event,
    Failed,
    Granted,
    Note,
    OpenUplink,
    RebootRoot,
    Refused,
    RenewExchange,
    RootDown,
    RootUp,
    SetLease,
    Stopping,
    TimerFired,
    UplinkDenied,
    WorkerDown,
    WorkerUp,
)
from ztdpu.keys.lease import grant_deadline_ns

SECOND_NS: Final = 1_000_000_000
ATTEMPT_LIMIT_NS: Final = 10 * SECOND_NS
FIRST_BACKOFF_NS: Final = SECOND_NS // 4
LAST_BACKOFF_NS: Final = 5 * SECOND_NS
DEFAULT_INTERVAL_NS: Final = 10 * SECOND_NS


class Phase(StrEnum):
    """Where the agent stands; the table above says what each allows."""

    STARTING = "starting"
    ATTESTING = "attesting"
    LEASED = "leased"
    STALE = "stale"
    REFUSED = "refused"
    STOPPED = "stopped"


class Lifecycle:
    """The machine. One per daemon."""

    def __init__(self, *, max_lease_s: int) -> None:
        self.phase = Phase.STARTING
        self.reason = "root of trust and worker are starting"
        self.lease_deadline_ns = 0
        self._max_lease_s = max_lease_s
        self._root_up = False
        self._worker_up = False
        self._asked_ns: int | None = None
        """When the running attempt began; None when none runs."""
        self._next_attempt_ns = 0
        self._failures = 0
        self._interval_ns = DEFAULT_INTERVAL_NS
        self._denied_during_attempt = False
        self._had_lease = False

    @property
    def attempt_runs(self) -> bool:
        """Whether an attestation is under way."""
        return self._asked_ns is not None

    def next_timer_ns(self) -> int | None:
        """When TimerFired is due; None when only an event can change anything."""
        if self.phase is Phase.STOPPED:
            return None
        due = [self.lease_deadline_ns] if self.phase is Phase.LEASED else []
        if self._asked_ns is not None:
            due.append(self._asked_ns + ATTEMPT_LIMIT_NS)
        elif self._root_up and self._worker_up:
            due.append(self._next_attempt_ns)
        return min(due, default=None)

    def handle(self, event: Event, *, now_ns: int, jitter: float) -> list[Command]:
        """Return what to do about `event`. `jitter` in [0, 1) spreads attempts of many devices."""
        if self.phase is Phase.STOPPED:
            return []
        match event:
            case RootUp() | RootDown() | WorkerUp() | WorkerDown():
                commands = self._process_changed(event, now_ns)
            case Granted():
                commands = self._granted(event, now_ns, jitter)
            case Refused():
                commands = self._refused(event, now_ns, jitter)
            case Failed():
                commands = self._failed(event.cause, now_ns, jitter)
            case UplinkDenied():
                commands = self._uplink_denied(now_ns)
            case ClockDoubted():
                commands = self._drop_lease(f"clock stepped by {event.step_ms} ms", Phase.STALE)
                self._next_attempt_ns = now_ns
            case TimerFired():
                commands = self._timer_fired(now_ns, jitter)
            case Stopping():
                return self._stop()
        return [*commands, *self._begin_if_due(now_ns)]

    # --- one method per event, in the order of the list above ---

    def _process_changed(self, event: RootUp | RootDown | WorkerUp | WorkerDown, now_ns: int) -> list[Command]:
        commands: list[Command] = []
        match event:
            case RootUp():
                self._root_up = True
                if self.phase is Phase.LEASED:
                    self._next_attempt_ns = now_ns
            case RootDown():
                self._root_up = False
                if self.attempt_runs:
                    self._asked_ns = None
                    commands.append(AbandonAttestation())
            case WorkerUp():
                self._worker_up = True
                if self.phase is Phase.LEASED:
                    commands.append(SetLease(deadline_ns=self.lease_deadline_ns))
            case WorkerDown():
                self._worker_up = False
        if self.phase is Phase.STARTING and self._root_up and self._worker_up:
            self.phase, self.reason = Phase.ATTESTING, "first attestation"
            self._next_attempt_ns = now_ns
        return commands

    def _granted(self, event: Granted, now_ns: int, jitter: float) -> list[Command]:
        asked_ns = self._take_attempt()
        if asked_ns is None:
            return []
        was_cut_off, self._failures = self._failures > 0 or self.phase is not Phase.LEASED, 0
        self._interval_ns = _interval_ns(event.interval_ms)
        deadline_ns = grant_deadline_ns(asked_ns, event.duration_ms, self._max_lease_s)
        spread_ns = int(self._interval_ns * (0.9 + 0.1 * jitter))
        self._next_attempt_ns = asked_ns + min(spread_ns, max(deadline_ns - asked_ns, 0) // 2)
        if deadline_ns <= now_ns:
            return self._failed_attempt("the lease was over before it arrived", now_ns, jitter)
        commands: list[Command] = [SetLease(deadline_ns=deadline_ns)]
        if event.new_svid or was_cut_off:
            commands.append(OpenUplink())
        if self.phase is not Phase.LEASED:
            commands += [RenewExchange(), Note(event="leased", detail=f"for {event.duration_ms} ms")]
        self.phase, self.reason, self.lease_deadline_ns = Phase.LEASED, "", deadline_ns
        self._had_lease = True
        return commands

    def _refused(self, event: Refused, now_ns: int, jitter: float) -> list[Command]:
        asked_ns = self._take_attempt()
        if asked_ns is None:
            return []
        self._failures = 0
        self._interval_ns = _interval_ns(event.interval_ms)
        self._next_attempt_ns = now_ns + int(self._interval_ns * (0.9 + 0.1 * jitter))
        known = self.phase is Phase.REFUSED and self.reason == f"{event.state}: {event.reason}"
        commands = self._drop_lease(f"{event.state}: {event.reason}", Phase.REFUSED, quiet=known)
        if event.state in ("revoked", "pending"):
            commands.append(CloseUplink())
        if event.state == "revoked" or (event.state == "pending" and self._had_lease):
            self._had_lease = False
            commands.append(RebootRoot())
        return commands

    def _failed(self, cause: str, now_ns: int, jitter: float) -> list[Command]:
        denied = self._denied_during_attempt
        if self._take_attempt() is None:
            return []
        commands = self._failed_attempt(cause, now_ns, jitter)
        if denied:
            commands += self._drop_lease("control closed the stream: denied", Phase.STALE)
        return commands

    def _uplink_denied(self, now_ns: int) -> list[Command]:
        if self.attempt_runs:
            self._denied_during_attempt = True
            return []
        commands = self._drop_lease("control closed the stream: denied", Phase.STALE)
        if commands:
            self._next_attempt_ns = now_ns
        return commands

    def _timer_fired(self, now_ns: int, jitter: float) -> list[Command]:
        commands: list[Command] = []
        if self.phase is Phase.LEASED and now_ns >= self.lease_deadline_ns:
            commands += self._drop_lease("the lease ended", Phase.STALE)
        if self._asked_ns is not None and now_ns >= self._asked_ns + ATTEMPT_LIMIT_NS:
            commands.append(AbandonAttestation())
            commands += self._failed("control did not finish in time", now_ns, jitter)
        return commands

    def _stop(self) -> list[Command]:
        commands: list[Command] = [SetLease(deadline_ns=0)]
        if self._take_attempt() is not None:
            commands.append(AbandonAttestation())
        self.phase, self.reason, self.lease_deadline_ns = Phase.STOPPED, "stopping", 0
        return [*commands, CloseUplink()]

    # --- shared steps ---

    def _take_attempt(self) -> int | None:
        asked_ns, self._asked_ns = self._asked_ns, None
        self._denied_during_attempt = False
        return asked_ns

    def _failed_attempt(self, cause: str, now_ns: int, jitter: float) -> list[Command]:
        ceiling_ns = min(LAST_BACKOFF_NS, self._interval_ns)
        backoff_ns = min(FIRST_BACKOFF_NS << min(self._failures, 10), ceiling_ns)
        self._failures += 1
        self._next_attempt_ns = now_ns + int(backoff_ns * (0.5 + 0.5 * jitter))
        if self.phase in (Phase.ATTESTING, Phase.STALE):
            self.reason = cause
        return [Note(event="attestation-failed", detail=cause)]

    def _drop_lease(self, reason: str, phase: Phase, *, quiet: bool = False) -> list[Command]:
        """Stop packets and enter `phase`; an agent that never had a lease stays where it is unless refused."""
        if phase is Phase.STALE and self.phase is not Phase.LEASED:
            return []
        self.phase, self.reason, self.lease_deadline_ns = phase, reason, 0
        return [SetLease(deadline_ns=0)] if quiet else [SetLease(deadline_ns=0), Note(event=str(phase), detail=reason)]

    def _begin_if_due(self, now_ns: int) -> list[Command]:
        ready = self._root_up and self._worker_up and not self.attempt_runs and self.phase is not Phase.STARTING
        if not ready or now_ns < self._next_attempt_ns:
            return []
        self._asked_ns = now_ns
        return [BeginAttestation(asked_ns=now_ns, afresh=self.phase is not Phase.LEASED)]


def _interval_ns(interval_ms: int) -> int:
    """Control's wish, kept between 0.1 s and 1 h whatever it says."""
    return min(max(interval_ms, 100), 3_600_000) * 1_000_000 if interval_ms else DEFAULT_INTERVAL_NS
