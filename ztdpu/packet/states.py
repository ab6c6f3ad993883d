"""States of a flow, what moves it from one to the next, and how long it may idle in each. Tables only.

Rule 1: everything that decides about a live flow's state stands in `TCP_TRANSITIONS`, `next_tcp_state` and
`next_datagram_state`; `packet.flows` remembers, `packet.firewall` asks.
Rule 2: a pair that is not in the table is a packet that does not fit: dropped as `tcp_state`, flow unchanged.
Rule 3: a flow has an opener (whoever sent the first packet) and a responder; rules judged the opener once.

```
            SYN             SYN+ACK              ACK
  (rule) ---------> OPENING -------> ANSWERED --------> ESTABLISHED
                                                        | opener's FIN          | responder's FIN
                                                        v                       v
                                                  OPENER_CLOSED           RESPONDER_CLOSED
                                                        | responder's FIN       | opener's FIN
   any state -- RST --> CLOSED                          +-------> CLOSING <-----+
   CLOSING, CLOSED -- SYN --> OVER: forget it, judge the SYN as the first packet of a new flow
```

RFC 9293 section 3.3.2 from the view of somebody in the middle. Sequence numbers are not checked against
windows, and a simultaneous open (section 3.5, figure 7) is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, auto
from types import MappingProxyType
from typing import Final

from ztdpu.packet.headers import ACK, FIN, ICMP, ICMPV6, RST, SYN, TCP, UDP

STATE_FLAGS: Final = FIN | SYN | RST | ACK
"""PSH, URG and the ECN bits (RFC 3168) say nothing about the state."""


class FlowState(IntEnum):
    """Where a conversation stands. UDP and ICMP echo use OPENING and ESTABLISHED only."""

    OPENING = auto()
    """Nothing came back yet."""
    ANSWERED = auto()
    ESTABLISHED = auto()
    OPENER_CLOSED = auto()
    RESPONDER_CLOSED = auto()
    CLOSING = auto()
    """Both sent FIN; what is left are acknowledgements and repetitions."""
    CLOSED = auto()
    """Reset."""
    OVER = auto()
    """No flow has it: the packet opens a new conversation under the old key."""


class Segment(IntEnum):
    """What a TCP segment does, by its flags."""

    SYN = auto()
    SYN_ACK = auto()
    ACK = auto()
    FIN = auto()
    RST = auto()


SEGMENTS: Final[Mapping[int, Segment]] = MappingProxyType(
    {
        SYN: Segment.SYN,
        SYN | ACK: Segment.SYN_ACK,
        ACK: Segment.ACK,
        FIN | ACK: Segment.FIN,
        RST: Segment.RST,
        RST | ACK: Segment.RST,
    }
)
"""Every other combination of the four flags (none, FIN alone, SYN with FIN, ...) is no TCP and fits no state."""

_OPENER: Final = True
_RESPONDER: Final = False
_S = FlowState

TCP_TRANSITIONS: Final[Mapping[tuple[FlowState, bool, Segment], FlowState]] = MappingProxyType(
    {
        (_S.OPENING, _OPENER, Segment.SYN): _S.OPENING,
        (_S.OPENING, _OPENER, Segment.RST): _S.CLOSED,
        (_S.OPENING, _RESPONDER, Segment.SYN_ACK): _S.ANSWERED,
        # A host that still knows an older connection answers with ACK (RFC 5961 section 4); the opener resets it.
        (_S.OPENING, _RESPONDER, Segment.ACK): _S.OPENING,
        (_S.OPENING, _RESPONDER, Segment.RST): _S.CLOSED,
        (_S.ANSWERED, _OPENER, Segment.SYN): _S.ANSWERED,
        (_S.ANSWERED, _OPENER, Segment.ACK): _S.ESTABLISHED,
        (_S.ANSWERED, _OPENER, Segment.FIN): _S.OPENER_CLOSED,
        (_S.ANSWERED, _OPENER, Segment.RST): _S.CLOSED,
        (_S.ANSWERED, _RESPONDER, Segment.SYN_ACK): _S.ANSWERED,
        # With TCP Fast Open (RFC 7413) the responder may send before the handshake is complete.
        (_S.ANSWERED, _RESPONDER, Segment.ACK): _S.ANSWERED,
        (_S.ANSWERED, _RESPONDER, Segment.FIN): _S.RESPONDER_CLOSED,
        (_S.ANSWERED, _RESPONDER, Segment.RST): _S.CLOSED,
        # A restarted opener on the same port; the responder challenges it (RFC 5961 section 4).
        (_S.ESTABLISHED, _OPENER, Segment.SYN): _S.ESTABLISHED,
        (_S.ESTABLISHED, _OPENER, Segment.ACK): _S.ESTABLISHED,
        (_S.ESTABLISHED, _OPENER, Segment.FIN): _S.OPENER_CLOSED,
        (_S.ESTABLISHED, _OPENER, Segment.RST): _S.CLOSED,
        (_S.ESTABLISHED, _RESPONDER, Segment.SYN_ACK): _S.ESTABLISHED,
        (_S.ESTABLISHED, _RESPONDER, Segment.ACK): _S.ESTABLISHED,
        (_S.ESTABLISHED, _RESPONDER, Segment.FIN): _S.RESPONDER_CLOSED,
        (_S.ESTABLISHED, _RESPONDER, Segment.RST): _S.CLOSED,
        (_S.OPENER_CLOSED, _OPENER, Segment.ACK): _S.OPENER_CLOSED,
        (_S.OPENER_CLOSED, _OPENER, Segment.FIN): _S.OPENER_CLOSED,
        (_S.OPENER_CLOSED, _OPENER, Segment.RST): _S.CLOSED,
        (_S.OPENER_CLOSED, _RESPONDER, Segment.ACK): _S.OPENER_CLOSED,
        (_S.OPENER_CLOSED, _RESPONDER, Segment.FIN): _S.CLOSING,
        (_S.OPENER_CLOSED, _RESPONDER, Segment.RST): _S.CLOSED,
        (_S.RESPONDER_CLOSED, _OPENER, Segment.ACK): _S.RESPONDER_CLOSED,
        (_S.RESPONDER_CLOSED, _OPENER, Segment.FIN): _S.CLOSING,
        (_S.RESPONDER_CLOSED, _OPENER, Segment.RST): _S.CLOSED,
        (_S.RESPONDER_CLOSED, _RESPONDER, Segment.SYN_ACK): _S.RESPONDER_CLOSED,
        (_S.RESPONDER_CLOSED, _RESPONDER, Segment.ACK): _S.RESPONDER_CLOSED,
        (_S.RESPONDER_CLOSED, _RESPONDER, Segment.FIN): _S.RESPONDER_CLOSED,
        (_S.RESPONDER_CLOSED, _RESPONDER, Segment.RST): _S.CLOSED,
        **{
            (_S.CLOSING, side, segment): state
            for side in (_OPENER, _RESPONDER)
            for segment, state in (
                (Segment.ACK, _S.CLOSING),
                (Segment.FIN, _S.CLOSING),
                (Segment.RST, _S.CLOSED),
                (Segment.SYN, _S.OVER),
            )
        },
        **{
            (_S.CLOSED, side, segment): state
            for side in (_OPENER, _RESPONDER)
            for segment, state in ((Segment.RST, _S.CLOSED), (Segment.SYN, _S.OVER))
        },
    }
)

TCP_TIMEOUTS_S: Final[Mapping[FlowState, float]] = MappingProxyType(
    {
        _S.OPENING: 60.0,
        _S.ANSWERED: 60.0,
        # RFC 5382 REQ-5: at least 2 h 4 min, so that keepalives of RFC 1122 hold a quiet connection; 4 min half open.
        _S.ESTABLISHED: 7440.0,
        _S.OPENER_CLOSED: 240.0,
        _S.RESPONDER_CLOSED: 240.0,
        _S.CLOSING: 30.0,
        _S.CLOSED: 10.0,
    }
)
UDP_TIMEOUTS_S: Final[Mapping[FlowState, float]] = MappingProxyType({_S.OPENING: 30.0, _S.ESTABLISHED: 300.0})
"""RFC 4787 REQ-5 recommends five minutes for a mapping in use; what nobody answered gets less."""
ECHO_TIMEOUTS_S: Final[Mapping[FlowState, float]] = MappingProxyType({_S.OPENING: 30.0, _S.ESTABLISHED: 60.0})
"""RFC 5508 REQ-1: at least a minute for an ICMP query session."""

TIMEOUTS_S: Final[Mapping[int, Mapping[FlowState, float]]] = MappingProxyType(
    {TCP: TCP_TIMEOUTS_S, UDP: UDP_TIMEOUTS_S, ICMP: ECHO_TIMEOUTS_S, ICMPV6: ECHO_TIMEOUTS_S}
)


def next_tcp_state(state: FlowState, flags: int, *, from_opener: bool) -> FlowState | None:
    """Return the state after a segment with these flags; None when it does not fit and must be dropped."""
    segment = SEGMENTS.get(flags & STATE_FLAGS)
    return None if segment is None else TCP_TRANSITIONS.get((state, from_opener, segment))


def next_datagram_state(state: FlowState, *, from_opener: bool) -> FlowState:
    """UDP and ICMP echo: the first answer establishes. The mark in the flow key keeps echo roles apart."""
    return state if from_opener else FlowState.ESTABLISHED


def steady_flags(protocol: int, state: FlowState) -> int:
    """Return the state flags of a packet that leaves `state` as it is, the common case; -1 when there is none."""
    if state is not FlowState.ESTABLISHED:
        return -1
    return ACK if protocol == TCP else 0
