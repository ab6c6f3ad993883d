"""CBOR with maps and tags: one spelling, bounded, and agreeing with another implementation."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ztdpu.errors import RefusedError
from ztdpu.trust import strict_cbor
from ztdpu.trust.strict_cbor import Tag

LEAVES = (
    st.none() | st.booleans() | st.integers(-(1 << 64), (1 << 64) - 1) | st.binary(max_size=40) | st.text(max_size=40)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.integers(-(1 << 63), 1 << 63) | st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=12,
)


def decode(blob, **changes):
    return strict_cbor.decode(blob, refusal=RefusedError, **{"limit_octets": 4096} | changes)


@given(VALUES)
def test_another_implementation_spells_it_the_same(value):
    blob = strict_cbor.encode(value)
    if "{" not in repr(value):  # cbor2 sorts keys as RFC 7049 did
        assert blob == cbor2.dumps(value, canonical=True)
    assert cbor2.loads(blob) == value
    assert decode(blob, depth_limit=24) == value


@settings(max_examples=400)
@given(st.binary(max_size=60))
def test_anything_is_read_one_way_or_refused(blob):
    try:
        value = decode(blob)
    except RefusedError:
        return
    assert strict_cbor.encode(value) == blob


@pytest.mark.parametrize(
    ("blob", "said"),
    [
        ("", "end before"),
        ("1817", "shortest"),
        ("1900ff", "shortest"),
        ("1a0000ffff", "shortest"),
        ("1b00000000ffffffff", "shortest"),
        ("5801aa", "shortest"),
        ("9f01ff", "indefinite"),
        ("bf0102ff", "indefinite"),
        ("5f41aaff", "indefinite"),
        ("1c", "indefinite"),
        ("f97e00", "float"),
        ("fb3ff0000000000000", "float"),
        ("f7", "float"),
        ("f820", "float"),
        ("61ff", "UTF-8"),
        ("a20102", "end before"),
        ("a201020103", "twice"),
        ("a202010102", "order"),
        ("a1f400", "neither"),
        ("a1410000", "neither"),
        ("a18000", "deep"),
        ("0000", "after the end"),
        ("9a7fffffff", "announced"),
        ("bb7fffffffffffffff", "announced"),
        ("5b7fffffffffffffff00", "end before"),
        ("81" * 30 + "00", "deep"),
        ("c1" * 30 + "00", "deep"),
    ],
)
def test_what_is_refused(blob, said):
    with pytest.raises(RefusedError, match=said):
        decode(bytes.fromhex(blob))


def test_order_of_keys_is_asked_for_where_it_matters():
    blob = bytes.fromhex("a202010102")
    assert decode(blob, is_deterministic=False) == {2: 1, 1: 2}
    with pytest.raises(RefusedError, match="twice"):
        decode(bytes.fromhex("a302010102020a"), is_deterministic=False)


def test_tags_are_kept_and_build_nothing():
    blob = cbor2.dumps(cbor2.CBORTag(28, [cbor2.CBORTag(2, b"\x01" * 9)]))
    assert decode(blob) == Tag(28, [Tag(2, b"\x01" * 9)])
    assert strict_cbor.encode(decode(blob)) == blob
    assert decode(bytes.fromhex("c11a60000000")) == Tag(1, 0x60000000)


def test_limits():
    assert decode(b"\x81" * 12 + b"\x00")
    with pytest.raises(RefusedError, match="at most"):
        decode(bytes(4097))
    for value in (1.5, 1 << 64, {1}):
        with pytest.raises(ValueError, match=r"CBOR|64 bits"):
            strict_cbor.encode(value)
