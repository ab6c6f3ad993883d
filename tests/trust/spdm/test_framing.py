"""Frames of spdm-emu: whole ones out of any pieces, bounds before anything is kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztdpu.errors import SpdmError
from ztdpu.trust.spdm.framing import CLIENT_HELLO, PAYLOAD_LIMIT_OCTETS, Command, Frame, FrameReader, wrap

FRAMES = [Frame(Command.HELLO, CLIENT_HELLO), wrap(b"\x10\x84\0\0"), Frame(Command.CONTINUE), Frame(Command.STOP)]


def test_known_octets():
    assert wrap(b"\x10\x84\0\0").encode().hex() == "000000010000000100000005" + "0510840000"
    hello = "0000dead" + "00000001" + "0000000e" + b"Client Hello!\0".hex()
    assert Frame(Command.HELLO, CLIENT_HELLO).encode().hex() == hello
    assert Frame(Command.STOP).encode().hex() == "0000fffe0000000100000000"


@given(st.lists(st.integers(1, 20), min_size=1))
def test_any_pieces_give_the_same_frames(sizes):
    octets, reader, found = b"".join(frame.encode() for frame in FRAMES), FrameReader(), []
    while octets:
        for size in sizes:
            found += reader.feed(octets[:size])
            octets = octets[size:]
    assert found == FRAMES
    assert reader.is_empty


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ((2, 1, 0), "unknown command"),
        ((1, 0, 0), "transport"),
        ((1, 2, 0), "transport"),
        ((1, 1, PAYLOAD_LIMIT_OCTETS + 1), "at most"),
        ((1, 1, 0xFFFFFFFF), "at most"),
    ],
)
def test_other_headers_are_refused_before_their_payload(header, words):
    reader = FrameReader()
    assert reader.feed(b"".join(number.to_bytes(4, "big") for number in (1, 1, PAYLOAD_LIMIT_OCTETS))) == []
    with pytest.raises(SpdmError, match=words):
        FrameReader().feed(b"".join(number.to_bytes(4, "big") for number in header))


@pytest.mark.parametrize(
    "frame", [Frame(Command.NORMAL), Frame(Command.NORMAL, b"\x06a"), Frame(Command.STOP, b"\x05")]
)
def test_what_is_no_spdm_message(frame):
    assert wrap(b"x").message == b"x"
    with pytest.raises(SpdmError):
        _ = frame.message


@given(st.binary(max_size=64))
def test_noise_never_crashes(noise):
    try:
        FrameReader().feed(noise)
    except SpdmError:
        return
