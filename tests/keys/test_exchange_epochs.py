"""Epochs, revocations and leases in the middle of an exchange."""

from __future__ import annotations

import pytest

from ztdpu.errors import ExchangeError


def test_previous_epoch_within_ten_seconds(pair, kit):
    request = pair.request()
    pair.b.exchange.set_epoch_key(kit.BLUE, 1, 6, b"\x0c" * 32, now_s=pair.now_s)
    pair.now_s += 9.9
    assert pair.finish(request).spis


def test_previous_epoch_after_ten_seconds(pair, kit):
    pair.b.exchange.set_epoch_key(kit.BLUE, 1, 6, b"\x0c" * 32, now_s=pair.now_s)
    pair.now_s += 10
    kit.refused(pair.b, "dpu-0", pair.request(), pair.now_s, "not in force")
    pair.a.exchange.set_epoch_key(kit.BLUE, 1, 6, b"\x0c" * 32, now_s=pair.now_s)
    assert pair.finish(pair.request([kit.replace(pair.wants[0], key_epoch=6)])).spis


@pytest.mark.parametrize("generation", [0, 100])
def test_previous_epoch_after_a_revocation(pair, kit, generation):
    pair.b.exchange.set_epoch_key(kit.BLUE, 1, 6, b"\x0c" * 32, now_s=pair.now_s)
    pair.b.exchange.set_revocation_generation(generation)
    kit.refused(pair.b, "dpu-0", pair.request(), pair.now_s, "not in force")


def test_previous_epoch_is_dropped_at_once_without_a_time(pair, kit):
    pair.b.exchange.set_epoch_key(kit.BLUE, 1, 6, b"\x0c" * 32)
    kit.refused(pair.b, "dpu-0", pair.request(), pair.now_s, "not in force")


def test_revocation_between_request_and_offer(pair, kit):
    request = pair.request()
    allocate = pair.at_b(request)
    pair.b.exchange.set_epoch_key(kit.BLUE, 1, 6, b"\x0c" * 32, now_s=pair.now_s)
    pair.b.exchange.set_revocation_generation(101)
    with pytest.raises(ExchangeError, match="not in force"):
        pair.b.exchange.offer(allocate.request_hash, pair.grants(), now_s=pair.now_s)


def test_revocation_between_offer_and_install(pair, kit):
    offer = pair.offer(pair.request())
    pair.a.exchange.set_epoch_key(kit.BLUE, 1, 6, b"\x0c" * 32, now_s=pair.now_s)
    pair.a.exchange.set_revocation_generation(101)
    kit.refused(pair.a, "dpu-1", offer, pair.now_s, "not in force")


def test_offer_under_the_epoch_before_is_installed(pair, kit):
    offer = pair.offer(pair.request())
    pair.a.exchange.set_epoch_key(kit.BLUE, 1, 6, b"\x0c" * 32, now_s=pair.now_s)
    pair.now_s += 5
    assert pair.confirm(offer).spis


@pytest.mark.parametrize("side", ["a", "b"])
def test_without_a_lease_an_offer_is_neither_made_nor_used(pair, kit, side):
    request = pair.request()
    allocate = pair.at_b(request)
    if side == "b":
        pair.b.exchange.clear_epoch_keys()
        with pytest.raises(ExchangeError, match="no such request"):
            pair.b.exchange.offer(allocate.request_hash, pair.grants(), now_s=pair.now_s)
        return
    offer = pair.b.exchange.offer(allocate.request_hash, pair.grants(), now_s=pair.now_s)
    pair.a.exchange.clear_epoch_keys()
    kit.refused(pair.a, "dpu-1", offer, pair.now_s, "not hosted here")
    with pytest.raises(ExchangeError, match="not hosted here"):
        pair.request()


def test_removed_network(pair, kit):
    request = pair.request()
    pair.b.exchange.remove_network(kit.BLUE)
    kit.refused(pair.b, "dpu-0", request, pair.now_s, "not hosted here")
    assert pair.b.exchange._station.ring.current(kit.BLUE) is None
    assert pair.b.exchange._station.ring.current(kit.RED) == (1, 7)
