"""The dialect of signed messages."""

import time
from pathlib import Path

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztdpu.errors import BindingError
from ztdpu.trust import canonical

VALUES = st.recursive(
    st.integers(-(1 << 64), (1 << 64) - 1) | st.binary(max_size=40) | st.text(max_size=20) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=20,
)


def depth(value) -> int:
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(VALUES.filter(lambda value: depth(value) <= canonical.DEPTH_LIMIT))
def test_round_trip(value):
    assert canonical.decode(canonical.encode(value), refusal=BindingError) == value


@pytest.mark.parametrize(
    "blob",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x82\x01", id="cut short"),
        pytest.param(b"\x01\x01", id="trailing octets"),
        pytest.param(b"\x18\x01", id="number not shortest"),
        pytest.param(b"\x9f\x01\xff", id="indefinite array"),
        pytest.param(b"\x5f\x41a\xff", id="indefinite octets"),
        pytest.param(cbor2.dumps({1: 2}), id="map"),
        pytest.param(cbor2.dumps(1.5), id="float"),
        pytest.param(b"\xc1\x01", id="tag"),
        pytest.param(b"\xc2\x49\x01" + bytes(8), id="big number"),
        pytest.param(b"\xf7", id="undefined"),
        pytest.param(b"\x81" * 7 + b"\x01", id="too deep"),
        pytest.param(b"\x81" * 60000, id="bomb"),
        pytest.param(b"\x9b" + b"\xff" * 8, id="huge array"),
        pytest.param(b"\x5b" + b"\xff" * 8, id="huge octets"),
        pytest.param(b"\x61\xff", id="not UTF-8"),
        pytest.param(cbor2.dumps(bytes(canonical.LIMIT_OCTETS)), id="too long"),
    ],
)
def test_other_dialects_are_refused(blob):
    with pytest.raises(BindingError):
        canonical.decode(blob, refusal=BindingError)


def test_an_array_that_refers_to_itself_costs_no_more_than_its_length():
    """200 references to 200 references to 200 numbers: 1,413 octets that would become eight million values."""
    count = 200
    shared = [b"\xd8\x1c\x98" + bytes([count]) + bytes(count)]  # tag 28: may be referred to
    shared += [
        b"\xd8\x1c\x98" + bytes([count]) + (b"\xd8\x1d" + bytes([level])) * count  # tag 29: refers to it
        for level in range(2)
    ]
    blob = b"\x83" + b"".join(shared)
    started = time.perf_counter()
    with pytest.raises(BindingError):
        canonical.decode(blob, refusal=BindingError)
    assert time.perf_counter() - started < 0.1
    honest = canonical.encode([[0] * count, [[0] * count] * 2])
    assert canonical.decode(honest, refusal=BindingError)


@given(st.binary(max_size=64))
def test_noise_is_refused_or_spelt_the_only_way(blob):
    try:
        value = canonical.decode(blob, refusal=BindingError)
    except BindingError:
        return
    assert canonical.encode(value) == blob


@pytest.mark.parametrize("value", [1.5, {1: 2}, 1 << 64, {1}, [[[[[[[1]]]]]]], bytes(canonical.LIMIT_OCTETS)])
def test_values_outside_the_dialect_are_not_encoded(value):
    with pytest.raises(ValueError):
        canonical.encode(value)


@pytest.mark.parametrize(
    "name", ["veraison_corim-1.cbor", "veraison_signed-example-corim.cbor", "veraison_unsigned-example-corim.cbor"]
)
def test_manifests_of_another_project_are_refused(shared_vectors, name):
    """CoRIM is well-formed CBOR with tags and maps, which the signed dialect has not; `corim` reads it."""
    path = shared_vectors / "rats" / name
    if not path.exists():
        pytest.skip(f"{name} is not here")
    assert isinstance(cbor2.loads(path.read_bytes()), cbor2.CBORTag)
    with pytest.raises(BindingError, match="dialect"):
        canonical.decode(path.read_bytes(), refusal=BindingError)


def test_every_recorded_vector_of_trust_has_a_test(shared_vectors):
    """Files that nobody opens say nothing."""
    folders = [shared_vectors / name for name in ("dice", "rats", "spdm", "spiffe")]
    if not all(folder.is_dir() for folder in folders):
        pytest.skip("shared vectors are absent")
    tests = "".join(path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    assert [one.name for folder in folders for one in sorted(folder.iterdir()) if one.name not in tests] == []
