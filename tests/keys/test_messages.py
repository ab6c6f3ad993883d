"""Encoding of the four messages: round trips and the published layout."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztdpu.keys import wire
from ztdpu.keys.messages import Head, HintMessage, Installed, Offer, Party, Request, decode_message
from ztdpu.keys.wire import WireError
from ztdpu.model.sa import SaUse, SaWant

u64 = st.integers(0, (1 << 64) - 1)


def octets(count):
    return st.binary(min_size=count, max_size=count)


parties = st.builds(Party, octets(33), octets(32), octets(16))
heads = st.builds(
    Head, trust_domain=st.text(max_size=40), sender=parties, receiver=parties, seq=u64, fleet_generation=u64
)
wants = st.lists(
    st.builds(
        SaWant, network_id=octets(16), network_generation=u64, key_epoch=u64, use=st.sampled_from(SaUse),
        lane=st.integers(0, 15),
    ),
    min_size=1, max_size=5, unique_by=lambda want: (want.network_id, want.use, want.lane),
).map(tuple)  # fmt: skip
cases = st.one_of(
    st.tuples(
        st.just("sa-request"),
        st.builds(Request, head=heads, request_id=octets(16), kem_public=octets(1216), wants=wants),
    ),
    st.tuples(st.just("sa-offer"), st.builds(Offer, head=heads, request_hash=octets(32), sealed=st.binary())),
    st.tuples(
        st.just("sa-installed"),
        st.builds(
            Installed, head=heads, offer_hash=octets(32),
            results=st.lists(st.integers(0, 1), min_size=1, max_size=64).map(tuple),
        ),
    ),
    st.tuples(
        st.just("sa-hint"),
        st.builds(HintMessage, head=heads, instance=octets(16), cause=st.sampled_from(["rotate", "restart"])),
    ),
)  # fmt: skip


@given(cases)
def test_round_trip(case):
    label, message = case
    assert decode_message(label, message.encode()) == message
    for other in {"sa-request", "sa-offer", "sa-installed", "sa-hint"} - {label}:
        with pytest.raises(WireError):
            decode_message(other, message.encode())


def test_layout_of_a_request():
    a, b = Party(b"A" * 33, b"a" * 32, b"1" * 16), Party(b"B" * 33, b"b" * 32, b"2" * 16)
    head = Head(trust_domain="ztdpu.lab", sender=a, receiver=b, seq=3, fleet_generation=4)
    want = SaWant(network_id=b"n" * 16, network_generation=1, key_epoch=2, use=SaUse.STREAM, lane=5)
    message = Request(head=head, request_id=b"r" * 16, kem_public=b"k" * 1216, wants=(want,))
    assert wire.decode(message.encode()) == [
        "sa-request",
        [1, "ztdpu.lab", b"A" * 33, b"a" * 32, b"1" * 16, b"B" * 33, b"b" * 32, b"2" * 16, 3, 4],
        b"r" * 16,
        [0x647A, 1, 2],
        b"k" * 1216,
        [[b"n" * 16, 1, 2, 1, 5]],
    ]
    assert wire.decode(head.encode()) == wire.decode(message.encode())[1]
