"""Which epoch is in force."""

from __future__ import annotations

import pytest

from ztdpu.errors import ExchangeError
from ztdpu.keys.ring import EpochKeyRing
from ztdpu.model.sa import SaWant

NETWORK = b"n" * 16
FIRST, SECOND, THIRD = b"1" * 32, b"2" * 32, b"3" * 32


def want(epoch, generation=1):
    return SaWant(network_id=NETWORK, network_generation=generation, key_epoch=epoch)


@pytest.fixture
def ring():
    ring = EpochKeyRing()
    ring.set_key(NETWORK, 1, 1, FIRST, 0.0)
    return ring


def test_current_and_previous(ring):
    assert ring.key_for(want(1), 0.0) == FIRST
    ring.set_key(NETWORK, 1, 2, SECOND, 100.0)
    assert ring.key_for(want(2), 100.0) == SECOND
    assert ring.key_for(want(1), 109.9) == FIRST
    with pytest.raises(ExchangeError, match="not in force"):
        ring.key_for(want(1), 110.0)


def test_only_one_epoch_back(ring):
    ring.set_key(NETWORK, 1, 2, SECOND, 100.0)
    ring.set_key(NETWORK, 1, 3, THIRD, 101.0)
    assert ring.key_for(want(2), 102.0) == SECOND
    with pytest.raises(ExchangeError, match="not in force"):
        ring.key_for(want(1), 102.0)


def test_the_same_key_again_does_not_prolong_the_previous(ring):
    ring.set_key(NETWORK, 1, 2, SECOND, 100.0)
    ring.set_key(NETWORK, 1, 2, SECOND, 108.0)
    assert ring.key_for(want(1), 109.0) == FIRST
    with pytest.raises(ExchangeError):
        ring.key_for(want(1), 111.0)


def test_revocation_ends_the_previous(ring):
    ring.set_key(NETWORK, 1, 2, SECOND, 100.0)
    ring.forget_previous()
    with pytest.raises(ExchangeError, match="not in force"):
        ring.key_for(want(1), 100.0)
    assert ring.key_for(want(2), 100.0) == SECOND


def test_new_generation_ends_the_old_one(ring):
    ring.set_key(NETWORK, 2, 2, SECOND, 100.0)
    with pytest.raises(ExchangeError, match="another generation"):
        ring.key_for(want(1), 100.0)
    with pytest.raises(ExchangeError, match="not in force"):
        ring.key_for(want(1, generation=2), 100.0)
    assert ring.key_for(want(2, generation=2), 100.0) == SECOND


@pytest.mark.parametrize(("generation", "epoch"), [(1, 1), (1, 0), (0, 9)])
def test_nothing_goes_back(ring, generation, epoch):
    ring.set_key(NETWORK, 1, 2, SECOND, 100.0)
    with pytest.raises(ExchangeError, match="goes back"):
        ring.set_key(NETWORK, generation, epoch, FIRST, 101.0)
    assert ring.current(NETWORK) == (1, 2)


def test_another_key_for_the_epoch_in_force(ring):
    with pytest.raises(ExchangeError, match="another key"):
        ring.set_key(NETWORK, 1, 1, SECOND, 1.0)
    assert ring.key_for(want(1), 1.0) == FIRST


def test_short_key_is_a_defect(ring):
    with pytest.raises(ValueError, match="32 octets"):
        ring.set_key(NETWORK, 1, 2, b"short", 1.0)


def test_remove_and_clear(ring):
    other = b"o" * 16
    ring.set_key(other, 1, 1, SECOND, 0.0)
    ring.remove(NETWORK)
    with pytest.raises(ExchangeError, match="not hosted"):
        ring.key_for(want(1), 0.0)
    assert ring.current(other) == (1, 1)
    ring.clear()
    assert ring.current(other) is None
