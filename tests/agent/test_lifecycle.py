"""The life cycle as scripts: `>>` an event at a time, `<<` the commands it must cause, all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztdpu.agent import lifecycle_words as life
from ztdpu.agent.lifecycle import Lifecycle, Phase

S = 1_000_000_000
MS = 1_000_000
GRANTED = life.Granted(duration_ms=60_000, interval_ms=10_000, new_svid=False)
FIRST = life.Granted(duration_ms=60_000, interval_ms=10_000, new_svid=True)
DEADLINE = 60 * S * 999 // 1000


class Script:
    """Feeds events and compares every command; notes are left out unless asked for."""

    def __init__(self, *, max_lease_s: int = 3600, jitter: float = 0.0) -> None:
        self.machine = Lifecycle(max_lease_s=max_lease_s)
        self.jitter = jitter

    def at(self, seconds: float, event: life.Event) -> list[life.Command]:
        commands = self.machine.handle(event, now_ns=round(seconds * S), jitter=self.jitter)
        return [command for command in commands if not isinstance(command, life.Note)]

    def leased(self) -> Script:
        assert self.at(0, life.RootUp()) == []
        assert self.at(0, life.WorkerUp()) == [life.BeginAttestation(asked_ns=0, afresh=True)]
        self.at(0.2, FIRST)
        assert self.machine.phase is Phase.LEASED
        return self


def test_first_attestation_waits_for_both_processes():
    script = Script()
    assert script.at(0, life.WorkerUp()) == []
    assert script.machine.phase is Phase.STARTING
    assert script.machine.next_timer_ns() is None
    assert script.at(1, life.RootUp()) == [life.BeginAttestation(asked_ns=S, afresh=True)]
    assert script.machine.phase is Phase.ATTESTING


def test_grant_sets_the_deadline_from_before_asking_and_opens_the_uplink():
    script = Script()
    script.at(0, life.RootUp())
    script.at(5, life.WorkerUp())
    assert script.at(5.4, FIRST) == [
        life.SetLease(deadline_ns=5 * S + DEADLINE),
        life.OpenUplink(),
        life.RenewExchange(),
    ]
    assert script.machine.next_timer_ns() == 5 * S + 9 * S  # 0.9 of the interval with no jitter


def test_renewal_moves_the_deadline_and_nothing_else():
    script = Script().leased()
    assert script.at(9, life.TimerFired()) == [life.BeginAttestation(asked_ns=9 * S, afresh=False)]
    assert script.at(9.1, GRANTED) == [life.SetLease(deadline_ns=9 * S + DEADLINE)]


def test_new_svid_opens_a_new_connection_without_a_pause_in_traffic():
    script = Script().leased()
    script.at(9, life.TimerFired())
    assert script.at(9.1, FIRST) == [life.SetLease(deadline_ns=9 * S + DEADLINE), life.OpenUplink()]


def test_own_maximum_caps_what_control_grants():
    script = Script(max_lease_s=5)
    script.at(0, life.RootUp())
    script.at(0, life.WorkerUp())
    assert life.SetLease(deadline_ns=5 * S) in script.at(0.1, FIRST)


def test_interval_longer_than_the_lease_attests_at_half_of_it():
    script = Script()
    script.at(0, life.RootUp())
    script.at(0, life.WorkerUp())
    script.at(0.1, life.Granted(duration_ms=2000, interval_ms=10_000, new_svid=True))
    assert script.machine.next_timer_ns() == 999 * MS


def test_cut_off_agent_goes_dark_at_its_deadline_and_recovers_by_itself():
    script = Script().leased()
    assert script.at(9, life.TimerFired()) == [life.BeginAttestation(asked_ns=9 * S, afresh=False)]
    assert script.at(9.1, life.Failed(cause="unreachable")) == []
    assert script.machine.phase is Phase.LEASED
    gone_dark = script.at(DEADLINE / S, life.TimerFired())
    assert gone_dark[0] == life.SetLease(deadline_ns=0)
    assert script.machine.phase is Phase.STALE
    assert gone_dark[1] == life.BeginAttestation(asked_ns=DEADLINE, afresh=True)
    assert script.at(60.5, GRANTED) == [
        life.SetLease(deadline_ns=DEADLINE + DEADLINE),
        life.OpenUplink(),
        life.RenewExchange(),
    ]
    assert script.machine.phase is Phase.LEASED


def test_failures_back_off_and_a_grant_forgives_them():
    script = Script(jitter=1.0)
    script.at(0, life.RootUp())
    script.at(0, life.WorkerUp())
    now, pauses = 0.0, []
    for _ in range(8):
        script.at(now, life.Failed(cause="unreachable"))
        due = script.machine.next_timer_ns()
        assert due is not None
        pauses.append(due / S - now)
        now = due / S
        assert script.at(now, life.TimerFired()) == [life.BeginAttestation(asked_ns=due, afresh=True)]
    assert pauses == pytest.approx([0.25, 0.5, 1, 2, 4, 5, 5, 5])
    script.at(now, FIRST)
    script.at(now + 10, life.TimerFired())
    script.at(now + 10, life.Failed(cause="unreachable"))
    assert script.machine.next_timer_ns() == pytest.approx((now + 10.25) * S)


def test_attempt_without_end_is_abandoned():
    script = Script().leased()
    script.at(9, life.TimerFired())
    assert script.at(18, life.TimerFired()) == []
    assert script.at(19, life.TimerFired()) == [life.AbandonAttestation()]
    assert not script.machine.attempt_runs
    assert script.at(19.1, GRANTED) == []  # too late: not wanted any more


def test_answer_that_took_longer_than_its_lease_grants_nothing():
    script = Script()
    script.at(0, life.RootUp())
    script.at(0, life.WorkerUp())
    assert script.at(3, life.Granted(duration_ms=2000, interval_ms=1000, new_svid=True)) == []
    assert script.machine.phase is Phase.ATTESTING


def test_contraindicated_stops_packets_at_once_and_keeps_the_stream():
    script = Script().leased()
    script.at(9, life.TimerFired())
    assert script.at(9.1, life.Refused(state="contraindicated", reason="firmware", interval_ms=10_000)) == [
        life.SetLease(deadline_ns=0)
    ]
    assert script.machine.phase is Phase.REFUSED
    assert script.machine.reason == "contraindicated: firmware"
    assert script.machine.next_timer_ns() == round(18.1 * S)


def test_revoked_closes_the_stream_and_reboots_for_new_keys():
    script = Script().leased()
    script.at(9, life.TimerFired())
    assert script.at(9.1, life.Refused(state="revoked", reason="stolen", interval_ms=10_000)) == [
        life.SetLease(deadline_ns=0),
        life.CloseUplink(),
        life.RebootRoot(),
    ]
    assert script.at(9.2, life.RootDown()) == []
    assert script.at(9.5, life.RootUp()) == []
    assert script.at(18.1, life.TimerFired()) == [life.BeginAttestation(asked_ns=round(18.1 * S), afresh=True)]


def test_pending_at_the_start_needs_no_new_boot():
    script = Script()
    script.at(0, life.RootUp())
    script.at(0, life.WorkerUp())
    refused = life.Refused(state="pending", reason="token", interval_ms=1000)
    assert script.at(0.1, refused) == [life.SetLease(deadline_ns=0), life.CloseUplink()]


def test_pending_after_a_lease_needs_a_new_boot():
    script = Script().leased()
    script.at(9, life.TimerFired())
    assert life.RebootRoot() in script.at(9.1, life.Refused(state="pending", reason="restored", interval_ms=0))


def test_repeated_refusal_is_noted_once():
    script = Script().leased()
    refused = life.Refused(state="quarantined", reason="ticket 7", interval_ms=1000)
    script.at(9, life.TimerFired())
    first = script.machine.handle(refused, now_ns=9 * S, jitter=0.0)
    script.at(10, life.TimerFired())
    second = script.machine.handle(refused, now_ns=10 * S, jitter=0.0)
    assert [type(one) for one in first] == [life.SetLease, life.Note]
    assert [type(one) for one in second] == [life.SetLease]


def test_denied_stream_drops_the_lease_and_asks_why():
    script = Script().leased()
    assert script.at(3, life.UplinkDenied()) == [
        life.SetLease(deadline_ns=0),
        life.BeginAttestation(asked_ns=3 * S, afresh=True),
    ]
    assert script.machine.phase is Phase.STALE


def test_denied_stream_during_an_attempt_waits_for_its_result():
    script = Script().leased()
    script.at(9, life.TimerFired())
    assert script.at(9.05, life.UplinkDenied()) == []
    assert script.at(9.1, FIRST) == [life.SetLease(deadline_ns=9 * S + DEADLINE), life.OpenUplink()]


def test_denied_stream_during_an_attempt_that_fails_drops_the_lease():
    script = Script().leased()
    script.at(9, life.TimerFired())
    script.at(9.05, life.UplinkDenied())
    assert script.at(9.1, life.Failed(cause="broken")) == [life.SetLease(deadline_ns=0)]
    assert script.machine.phase is Phase.STALE


def test_clock_doubt_drops_the_lease_and_attests_at_once():
    script = Script().leased()
    assert script.at(3, life.ClockDoubted(step_ms=5000)) == [
        life.SetLease(deadline_ns=0),
        life.BeginAttestation(asked_ns=3 * S, afresh=True),
    ]


def test_fresh_worker_gets_the_running_lease():
    script = Script().leased()
    assert script.at(1, life.WorkerDown()) == []
    assert script.at(2, life.WorkerUp()) == [life.SetLease(deadline_ns=DEADLINE)]


def test_newer_boot_attests_at_once():
    script = Script().leased()
    script.at(1, life.RootDown())
    assert script.at(2, life.RootUp()) == [life.BeginAttestation(asked_ns=2 * S, afresh=False)]


def test_root_that_ends_during_an_attempt_ends_the_attempt():
    script = Script().leased()
    script.at(9, life.TimerFired())
    assert script.at(9.1, life.RootDown()) == [life.AbandonAttestation()]
    assert script.at(9.3, life.RootUp()) == [life.BeginAttestation(asked_ns=round(9.3 * S), afresh=False)]


def test_stopping_ends_everything_and_nothing_starts_again():
    script = Script().leased()
    assert script.at(1, life.Stopping()) == [life.SetLease(deadline_ns=0), life.CloseUplink()]
    assert script.at(60, life.TimerFired()) == []
    assert script.machine.next_timer_ns() is None


EVENTS = st.sampled_from(
    [
        life.RootUp(),
        life.RootDown(),
        life.WorkerUp(),
        life.WorkerDown(),
        FIRST,
        GRANTED,
        life.Granted(duration_ms=2000, interval_ms=500, new_svid=False),
        life.Refused(state="revoked", reason="", interval_ms=0),
        life.Refused(state="contraindicated", reason="", interval_ms=1000),
        life.Failed(cause="x"),
        life.UplinkDenied(),
        life.ClockDoubted(step_ms=-3000),
        life.TimerFired(),
    ]
)


@given(st.lists(st.tuples(EVENTS, st.integers(0, 20_000)), max_size=60), st.floats(0, 1, exclude_max=True))
def test_no_history_leaves_a_lease_that_control_did_not_grant(history, jitter):
    """The deadline told to the worker is never later than what the last grant allows, and 0 outside `leased`."""
    machine = Lifecycle(max_lease_s=3600)
    now, told, asked = 0, 0, 0
    for event, pause_ms in history:
        now += pause_ms * MS
        for command in machine.handle(event, now_ns=now, jitter=jitter):
            if isinstance(command, life.SetLease):
                told = command.deadline_ns
            if isinstance(command, life.BeginAttestation):
                asked = now
        assert told <= max(asked + DEADLINE, told if machine.phase is Phase.LEASED else 0)
        if machine.phase is not Phase.LEASED:
            assert told == 0
        else:
            assert told == machine.lease_deadline_ns > 0
        due = machine.next_timer_ns()
        assert due is None or machine.phase is not Phase.STOPPED
