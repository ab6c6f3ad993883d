"""Versions and reference values as plain values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztdpu.model.attestation import Tier
from ztdpu.trust.reference import AppraisalPolicy, format_version, parse_version


@pytest.mark.parametrize(
    ("text", "version"), [("0", (0,)), ("7", (7,)), ("24.41.1000", (24, 41, 1000)), ("1.0.0.18446744073709551615",) * 2]
)
def test_versions(text, version):
    if isinstance(version, str):
        version = (1, 0, 0, 2**64 - 1)
    assert parse_version(text) == version
    assert format_version(version) == text


@pytest.mark.parametrize(
    "text", ["", ".", "1.", "v1", "1.2.3.4.5", "-1", "01", "1.0x", " 1", "1\n", "18446744073709551616", "9" * 40, "²"]
)
def test_what_is_no_version(text):
    with pytest.raises(ValueError, match=r"version|fit"):
        parse_version(text)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4))
def test_versions_round_trip(numbers):
    assert parse_version(format_version(tuple(numbers))) == tuple(numbers)


def test_default_policy_is_the_strict_one(world):
    policy = AppraisalPolicy(name="default", source=world.source)
    assert policy.lease_tiers == {Tier.AFFIRMING}
    assert policy.unrecognized_executables == 96
    assert [str(state) for state in policy.allowed_debug_states] == ["disabled-since-boot"]
    assert [str(mode) for mode in policy.allowed_modes] == ["normal"]
