from __future__ import annotations

import itertools

import pytest

from ztdpu.packet.headers import ACK, FIN, ICMP, ICMPV6, RST, SYN, TCP, UDP
from ztdpu.packet.states import (
    SEGMENTS,
    TCP_TRANSITIONS,
    TIMEOUTS_S,
    FlowState,
    next_datagram_state,
    next_tcp_state,
    steady_flags,
)

S = FlowState
FLAGS = {"S": SYN, "SA": SYN | ACK, "A": ACK, "F": FIN | ACK, "R": RST, "RA": RST | ACK}


def play(script):
    """Run `> S`, `< SA`, ... from OPENING (the opener's SYN was judged by rules); return the state or None."""
    state = S.OPENING
    for step in script.split(","):
        side, flags = step.split()
        state = next_tcp_state(state, FLAGS[flags], from_opener=side == ">")
        if state is None:
            return None
    return state


HANDSHAKE = "< SA, > A"


@pytest.mark.parametrize(
    ("script", "state"),
    [
        ("> S", S.OPENING),
        ("< SA", S.ANSWERED),
        ("< SA, > S, < SA", S.ANSWERED),
        (HANDSHAKE, S.ESTABLISHED),
        (f"{HANDSHAKE}, < A, > A", S.ESTABLISHED),
        (f"{HANDSHAKE}, > F", S.OPENER_CLOSED),
        (f"{HANDSHAKE}, > F, < A, > A", S.OPENER_CLOSED),
        (f"{HANDSHAKE}, < F", S.RESPONDER_CLOSED),
        (f"{HANDSHAKE}, > F, < F", S.CLOSING),
        (f"{HANDSHAKE}, < F, > F, < A", S.CLOSING),
        (f"{HANDSHAKE}, > F, < F, > F, < F, > A", S.CLOSING),
        (f"{HANDSHAKE}, > R", S.CLOSED),
        (f"{HANDSHAKE}, < RA", S.CLOSED),
        ("< RA", S.CLOSED),
        ("< A, > R", S.CLOSED),
        ("< SA, > F", S.OPENER_CLOSED),
        ("< SA, < A, > A", S.ESTABLISHED),
        (f"{HANDSHAKE}, > S, < A, > R", S.CLOSED),
        (f"{HANDSHAKE}, > F, < F, > S", S.OVER),
        (f"{HANDSHAKE}, > F, < F, < S", S.OVER),
        (f"{HANDSHAKE}, > R, > S", S.OVER),
        (f"{HANDSHAKE}, > R, < R", S.CLOSED),
    ],
)
def test_conversations(script, state):
    assert play(script) is state


@pytest.mark.parametrize(
    "script",
    [
        "> A",
        "> F",
        "> SA",
        "< S",
        "< F",
        "< SA, < S",
        f"{HANDSHAKE}, < S",
        f"{HANDSHAKE}, > SA",
        f"{HANDSHAKE}, > F, > S",
        f"{HANDSHAKE}, > R, > A",
        f"{HANDSHAKE}, > R, < F",
    ],
)
def test_what_does_not_fit(script):
    assert play(script) is None


def test_flags_that_are_no_tcp_fit_no_state():
    odd = [flags for flags in range(64) if flags & 0x17 not in SEGMENTS]
    for state, flags, side in itertools.product(S, odd, (True, False)):
        assert next_tcp_state(state, flags, from_opener=side) is None


def test_push_urgent_and_ecn_say_nothing():
    for state, flags, side in itertools.product(S, SEGMENTS, (True, False)):
        expected = next_tcp_state(state, flags, from_opener=side)
        for others in (0x08, 0x20, 0x40, 0x80, 0xE8):
            assert next_tcp_state(state, flags | others, from_opener=side) is expected


def test_every_state_but_over_can_be_reset_and_none_leaves_over():
    for state, side in itertools.product(set(S) - {S.OVER}, (True, False)):
        assert next_tcp_state(state, RST, from_opener=side) is S.CLOSED
    assert not [key for key in TCP_TRANSITIONS if key[0] is S.OVER]


def test_only_the_first_answer_establishes_a_datagram_flow():
    assert next_datagram_state(S.OPENING, from_opener=True) is S.OPENING
    assert next_datagram_state(S.OPENING, from_opener=False) is S.ESTABLISHED
    assert next_datagram_state(S.ESTABLISHED, from_opener=True) is S.ESTABLISHED


def test_every_reachable_state_has_a_timeout():
    reachable = {S.OPENING, *TCP_TRANSITIONS.values()} - {S.OVER}
    assert set(TIMEOUTS_S[TCP]) == reachable
    for protocol in (UDP, ICMP, ICMPV6):
        assert set(TIMEOUTS_S[protocol]) == {S.OPENING, S.ESTABLISHED}


def test_steady_packets_change_nothing():
    for state, side in itertools.product(set(S) - {S.OVER}, (True, False)):
        flags = steady_flags(TCP, state)
        if flags != -1:
            assert next_tcp_state(state, flags, from_opener=side) is state
    assert steady_flags(TCP, S.ESTABLISHED) == ACK
    assert steady_flags(UDP, S.ESTABLISHED) == 0
