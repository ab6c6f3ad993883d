"""Incarnations: renewed bindings, restarts, removed peers."""

from __future__ import annotations

import pytest

from ztdpu.errors import ExchangeError
from ztdpu.keys.exchange import Allocate, Hint


def test_renewed_binding_of_the_peer_has_a_grace(pair, kit):
    request = pair.request()
    renewed = pair.a.as_peer(party=kit.make_party("dpu-0", binding=1))
    pair.b.exchange.set_peer(renewed, now_s=pair.now_s)
    pair.now_s += 9.9
    assert isinstance(pair.at_b(request), Allocate)


def test_renewed_binding_of_the_peer_after_the_grace(pair, kit):
    request = pair.request()
    renewed = pair.a.as_peer(party=kit.make_party("dpu-0", binding=1))
    pair.b.exchange.set_peer(renewed, now_s=pair.now_s)
    kit.refused(pair.b, "dpu-0", request, pair.now_s + 10, "not the peer")


def test_renewed_binding_without_a_time_has_no_grace(pair, kit):
    request = pair.request()
    pair.b.exchange.set_peer(pair.a.as_peer(party=kit.make_party("dpu-0", binding=1)))
    kit.refused(pair.b, "dpu-0", request, pair.now_s, "not the peer")


def test_own_renewed_binding_has_a_grace(pair, kit):
    request = pair.request()
    pair.b.exchange.set_me(kit.make_party("dpu-1", binding=1), pair.b.key, now_s=pair.now_s)
    kit.refused(pair.b, "dpu-0", request, pair.now_s + 10, "not for this device")
    assert isinstance(pair.at_b(request), Allocate)


def test_exchange_goes_on_over_a_renewal_on_both_sides(pair, kit):
    offer = pair.offer(pair.request())
    new_a, new_b = kit.make_party("dpu-0", binding=1), kit.make_party("dpu-1", binding=1)
    pair.a.exchange.set_me(new_a, pair.a.key, now_s=pair.now_s)
    pair.b.exchange.set_me(new_b, pair.b.key, now_s=pair.now_s)
    pair.a.exchange.set_peer(pair.b.as_peer(party=new_b), now_s=pair.now_s)
    pair.b.exchange.set_peer(pair.a.as_peer(party=new_a), now_s=pair.now_s)
    assert pair.confirm(offer).spis
    pair.now_s += 11
    assert pair.finish(pair.request()).spis


def test_renewal_does_not_restart_the_sequence(pair, kit):
    pair.at_b(pair.forge_request(head=pair.head(seq=10)))
    new_a = kit.make_party("dpu-0", binding=1)
    pair.b.exchange.set_peer(pair.a.as_peer(party=new_a), now_s=pair.now_s)
    pair.now_s += 2
    replayed = pair.forge_request(head=kit.replace(pair.head(seq=10), sender=new_a), request_id=bytes(16))
    kit.refused(pair.b, "dpu-0", replayed, pair.now_s, "sequence number")


@pytest.mark.parametrize("change", ["instance", "offer key", "ueid"])
def test_another_incarnation_of_the_peer_voids_the_exchange(pair, kit, change):
    offer = pair.offer(pair.request())
    party, key = pair.b.party, pair.b.key
    if change == "instance":
        party = kit.make_party("dpu-1", instance=7)
    elif change == "ueid":
        party = kit.replace(party, ueid=b"\x01" * 33)
    else:
        key = kit.OFFER_KEYS["dpu-2"]
    pair.a.exchange.set_peer(pair.b.as_peer(party=party, key=key), now_s=pair.now_s)
    assert pair.a.exchange._asking.pending("dpu-1") == 0
    kit.refused(pair.a, "dpu-1", offer, pair.now_s, "")


def test_another_incarnation_of_this_device_voids_all_exchanges(pair, kit):
    offer = pair.offer(pair.request())
    pair.a.exchange.set_me(kit.make_party("dpu-0", instance=7), pair.a.key, now_s=pair.now_s)
    assert pair.a.exchange._asking.pending("dpu-1") == 0
    kit.refused(pair.a, "dpu-1", offer, pair.now_s, "no such request")
    hint = pair.b.exchange.hint("dpu-0", "rotate", now_s=pair.now_s)
    assert isinstance(pair.at_a(hint), Hint)


def test_old_binding_is_not_let_in_when_the_peer_was_removed_meanwhile(pair, kit):
    request = pair.request()
    pair.b.exchange.remove_peer("dpu-0")
    pair.b.exchange.set_peer(pair.a.as_peer(party=kit.make_party("dpu-0", binding=1)), now_s=pair.now_s)
    kit.refused(pair.b, "dpu-0", request, pair.now_s, "not the peer")


@pytest.mark.parametrize("step", ["request", "allocate", "offer", "install"])
def test_removing_a_peer_ends_its_exchange_at_every_step(pair, kit, step):
    request = pair.request()
    if step == "request":
        pair.b.exchange.remove_peer("dpu-0")
        kit.refused(pair.b, "dpu-0", request, pair.now_s, "not a live peer")
        return
    allocate = pair.at_b(request)
    if step == "allocate":
        pair.b.exchange.remove_peer("dpu-0")
        with pytest.raises(ExchangeError, match="being answered"):
            pair.b.exchange.offer(allocate.request_hash, pair.grants(), now_s=pair.now_s)
        return
    offer = pair.b.exchange.offer(allocate.request_hash, pair.grants(), now_s=pair.now_s)
    if step == "offer":
        pair.a.exchange.remove_peer("dpu-1")
        kit.refused(pair.a, "dpu-1", offer, pair.now_s, "not a live peer")
        assert pair.a.exchange._asking.pending("dpu-1") == 0
        return
    install = pair.at_a(offer)
    pair.a.exchange.remove_peer("dpu-1")
    with pytest.raises(ExchangeError, match="being installed"):
        pair.a.exchange.installed(install.offer_hash, [1], now_s=pair.now_s)


def test_removing_one_peer_leaves_the_others(pair, kit):
    offer = pair.offer(pair.request())
    pair.a.exchange.remove_peer("dpu-2")
    pair.b.exchange.remove_peer("dpu-2")
    assert pair.confirm(offer).spis
