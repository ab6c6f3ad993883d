"""Networks that are withheld between two devices: what is answered, and what an asker takes."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ztdpu.errors import ExchangeError
from ztdpu.keys.exchange import Allocate, Install
from ztdpu.model.sa import SaUse, SaWant


def both(kit):
    return tuple(
        SaWant(network_id=network, network_generation=1, key_epoch=epoch)
        for network, epoch in ((kit.BLUE, 5), (kit.RED, 7))
    )


def withhold(device, peer, network):
    others = peer.as_peer(networks=peer.as_peer().networks - {network})
    device.exchange.set_peer(dataclasses.replace(others, withheld=frozenset({network})), now_s=1000.0)


def test_a_request_is_answered_for_the_networks_that_are_not_withheld(pair, kit):
    withhold(pair.b, pair.a, kit.RED)
    request = pair.request(both(kit))  # the asker has not heard
    event = pair.at_b(request)
    assert isinstance(event, Allocate)
    assert [want.network_id for want in event.wants] == [kit.BLUE]
    offer = pair.b.exchange.offer(event.request_hash, pair.grants(event.wants), now_s=pair.now_s)
    install = pair.at_a(offer)
    assert isinstance(install, Install)
    assert [grant.network_id for grant in install.grants] == [kit.BLUE]
    assert pair.at_b(pair.a.exchange.installed(install.offer_hash, [1], now_s=pair.now_s)).spis == (1,)


def test_an_asker_whose_key_of_the_withheld_network_is_gone_takes_the_others(pair, kit):
    withhold(pair.b, pair.a, kit.RED)
    request = pair.request(both(kit))
    pair.a.exchange.remove_network(kit.RED)
    assert len(pair.finish(request).spis) == 1


def test_a_request_for_withheld_networks_alone_is_refused(pair, kit):
    withhold(pair.b, pair.a, kit.RED)
    red = both(kit)[1:]
    kit.refused(pair.b, "dpu-0", pair.request(red), pair.now_s, "withheld")
    pair.b.exchange.set_peer(pair.a.as_peer())
    assert len(pair.finish(pair.request(red)).spis) == 1


def test_who_heard_of_it_does_not_ask(pair, kit):
    withhold(pair.a, pair.b, kit.RED)
    with pytest.raises(ExchangeError, match="does not host"):
        pair.request(both(kit))
    assert len(pair.finish(pair.request()).spis) == 1


@pytest.mark.parametrize("side", ["asker", "answerer"])
def test_what_is_under_way_when_a_network_is_lost_is_void(pair, kit, side):
    request = pair.request(both(kit))
    offer = pair.offer(request)
    if side == "asker":
        withhold(pair.a, pair.b, kit.RED)
        kit.refused(pair.a, "dpu-1", offer, pair.now_s, "no such request")
    else:
        install = pair.at_a(offer)
        confirmation = pair.a.exchange.installed(install.offer_hash, [1, 2], now_s=pair.now_s)
        withhold(pair.b, pair.a, kit.RED)
        kit.refused(pair.b, "dpu-0", confirmation, pair.now_s, "no such offer")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)  # `kit` has names alone
@given(st.data())
def test_an_offer_answers_any_part_of_the_wants_in_their_order_and_nothing_else(kit, data):
    pair = kit.Pair()
    wants = tuple(
        SaWant(network_id=network, network_generation=1, key_epoch=epoch, use=use)
        for network, epoch in ((kit.BLUE, 5), (kit.RED, 7))
        for use in SaUse
    )
    answered = data.draw(st.lists(st.sampled_from(wants), min_size=1, max_size=len(wants) + 1))
    keys = [kit.BLUE_KEY if want.network_id == kit.BLUE else kit.RED_KEY for want in answered]
    request = pair.request(wants)
    offer = pair.forge_offer(request, wants=answered, epoch_keys=keys)
    places = [wants.index(want) for want in answered]
    if places == sorted(set(places)):
        assert len(pair.at_a(offer).grants) == len(answered)
    else:
        kit.refused(pair.a, "dpu-1", offer, pair.now_s, "not what was wanted")
