"""Strict CBOR: what encodes decodes, and nothing else does."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ztdpu.keys import wire
from ztdpu.keys.wire import WireError
from ztdpu.trust.canonical import DEPTH_LIMIT

values = st.recursive(
    st.integers(0, (1 << 64) - 1) | st.binary(max_size=40) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=6),
    max_leaves=20,
)


def depth(value):
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(values)
def test_round_trip(value):
    if depth(value) > DEPTH_LIMIT:
        with pytest.raises(ValueError, match="deeper"):
            wire.encode(value)
        with pytest.raises(WireError):
            wire.decode(cbor2.dumps(value, canonical=True))
    else:
        assert wire.decode(wire.encode(value)) == value


@settings(max_examples=1000)
@given(st.binary(max_size=60))
@example(b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff")
@example(b"\x5b\x7f\xff\xff\xff\xff\xff\xff\xff")
def test_whatever_decodes_is_its_own_encoding(octets):
    try:
        value = wire.decode(octets)
    except WireError:
        return
    assert cbor2.dumps(value, canonical=True) == octets


@given(values, st.data())
def test_no_prefix_and_no_extension_decodes(value, data):
    octets = cbor2.dumps(value, canonical=True)
    cut = data.draw(st.integers(0, len(octets) - 1))
    with pytest.raises(WireError):
        wire.decode(octets[:cut])
    with pytest.raises(WireError):
        wire.decode(octets + b"\0")


@pytest.mark.parametrize(
    "octets",
    [
        "", "1817", "1900ff", "1a0000ffff", "1b00000000ffffffff", "5817" + "00" * 23, "9801" + "00", "a0", "c000",
        "f90000", "fb3ff8000000000000", "9f00ff", "5f4100ff", "1c", "62c328", "41", "0000", "81818181818181" + "00",
        "c249010000000000000000",
    ],
)  # fmt: skip
def test_refused(octets):
    with pytest.raises(WireError):
        wire.decode(bytes.fromhex(octets))


@pytest.mark.parametrize("octets", ["20", "f4", "f6"])
def test_a_negative_number_a_boolean_and_null_have_no_place_in_any_field(octets):
    value = wire.decode(bytes.fromhex(octets))
    for take in (wire.take_blob, wire.take_unsigned, wire.take_text, lambda v: wire.take_array(v, 0)):
        with pytest.raises(WireError):
            take(value)


@pytest.mark.parametrize(
    "octets", ["1818", "190100", "1a00010000", "1b0000000100000000", "818181818181" + "00", "62c3a8", "4100", "80"]
)
def test_accepted_twins(octets):
    assert wire.encode(wire.decode(bytes.fromhex(octets))).hex() == octets


def test_limit():
    fits = wire.encode(bytes(wire.LIMIT_OCTETS - 5))
    assert wire.decode(fits)
    with pytest.raises(WireError, match="at most 65536"):
        wire.decode(cbor2.dumps(bytes(wire.LIMIT_OCTETS)))
    with pytest.raises(WireError, match="at most 3"):
        wire.decode(bytes(4), limit_octets=3)


def test_many_small_items_take_reasonable_time_and_memory():
    octets = wire.encode([0] * 60_000)
    assert len(wire.decode(octets)) == 60_000


@pytest.mark.parametrize(
    ("take", "good", "bad"),
    [
        (lambda v: wire.take_array(v, 2), [1, 2], ([1], [1, 2, 3], b"12", 5)),
        (lambda v: wire.take_rows(v, 1, 2), [1], ([], [1, 2, 3], "a")),
        (lambda v: wire.take_bytes(v, 2), b"ab", (b"a", b"abc", "ab", [1, 2])),
        (wire.take_blob, b"", ("", [], 0)),
        (lambda v: wire.take_unsigned(v, 5), 5, (6, -1, True, b"\x01", 1.0)),
        (lambda v: wire.take_text(v, 3), "abc", ("abcd", "äö", b"abc", 3)),
    ],
)
def test_shapes(take, good, bad):
    assert take(good) == good
    for value in bad:
        with pytest.raises(WireError):
            take(value)
