"""Rotation rules: renewal, limits, who lags, when the old key may die."""

from __future__ import annotations

import pytest

from ztdpu.errors import SaExhaustedError, StateError
from ztdpu.keys.rotation import (
    Cause,
    ReceiveSa,
    SoftLimits,
    check_hard_limit,
    check_rotation,
    lagging_senders,
    previous_may_retire,
    renewal_cause,
)

OLD, NEW = 1, 0x80000001
BLUE, RED = b"blue" * 4, b"red!" * 4


def sa(peer, spi, *, network=BLUE, use=0, lane=0, in_use=True):
    return ReceiveSa(peer=peer, spi=spi, network_id=network, use=use, lane=lane, in_use=in_use)


@pytest.mark.parametrize(
    ("packets", "octets", "age_s", "cause"),
    [
        (0, 0, 0, None),
        (2**31 - 1, 2**38 - 1, 3599.9, None),
        (2**31, 0, 0, Cause.PACKETS),
        (0, 2**38, 0, Cause.OCTETS),
        (0, 0, 3600, Cause.AGE),
        (2**31, 2**38, 3600, Cause.AGE),
    ],
)
def test_renewal(packets, octets, age_s, cause):
    assert renewal_cause(packets=packets, octets=octets, age_s=age_s) is cause


def test_renewal_with_limits_of_an_offer():
    limits = SoftLimits(packets=10, octets=100, age_s=1)
    assert renewal_cause(packets=9, octets=99, age_s=0.9, limits=limits) is None
    assert renewal_cause(packets=10, octets=99, age_s=0.9, limits=limits) is Cause.PACKETS


def test_hard_limit():
    check_hard_limit(2**40 - 1)
    with pytest.raises(SaExhaustedError):
        check_hard_limit(2**40)


@pytest.mark.parametrize(
    ("sas", "lagging"),
    [
        ([], ()),
        ([sa("a", OLD)], ("a",)),
        ([sa("a", OLD), sa("a", NEW)], ()),
        ([sa("a", OLD), sa("a", NEW, in_use=False)], ("a",)),
        ([sa("a", OLD, in_use=False)], ()),
        ([sa("a", NEW)], ()),
        ([sa("a", OLD), sa("a", NEW, network=RED)], ("a",)),
        ([sa("a", OLD), sa("a", NEW, use=1)], ("a",)),
        ([sa("a", OLD), sa("a", NEW, lane=1)], ("a",)),
        ([sa("b", OLD), sa("a", OLD), sa("a", NEW)], ("b",)),
        ([sa("b", OLD), sa("a", OLD)], ("a", "b")),
        ([sa("dark", OLD)], ()),
    ],
)
def test_lagging(sas, lagging):
    assert lagging_senders(sas, active_slot=1, leased={"a", "b"}) == lagging


def test_lagging_after_the_next_rotation_counts_the_other_slot():
    assert lagging_senders([sa("a", NEW)], active_slot=0, leased={"a"}) == ("a",)


def test_second_rotation_needs_force_while_somebody_lags():
    check_rotation((), has_previous=True, force=False)
    check_rotation(("a",), has_previous=False, force=False)
    check_rotation(("a",), has_previous=True, force=True)
    with pytest.raises(StateError, match="a, b still sends") as caught:
        check_rotation(("b", "a"), has_previous=True, force=False)
    assert "--force" in caught.value.remedy


@pytest.mark.parametrize(
    ("age_s", "lease_s", "lagging", "may"),
    [
        (4.9, 60, (), False),
        (5, 60, (), True),
        (59, 2, ("a",), False),
        (60, 2, ("a",), True),
        (60, 120, ("a",), False),
        (120, 120, ("a",), True),
    ],
)
def test_previous_key_retires(age_s, lease_s, lagging, may):
    assert previous_may_retire(rotated_s=100, now_s=100 + age_s, lease_s=lease_s, lagging=lagging) is may
