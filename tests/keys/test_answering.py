"""Requests and confirmations that the receiver of packets must refuse, without a trace.

Every attack is followed by the honest exchange it tried to disturb, which must still end well.
"""

from __future__ import annotations

import hashlib

import pytest

from ztdpu.errors import ExchangeError
from ztdpu.keys import messages
from ztdpu.keys.envelope import sign_envelope
from ztdpu.keys.exchange import Activate, Allocate
from ztdpu.model.sa import SaWant

REQUEST_ATTACKS = {
    "other domain": (lambda p, k: p.forge_request(head=p.head(trust_domain="other.lab")), "another trust domain"),
    "to another device": (lambda p, k: p.forge_request(head=p.head(p.a, p.c)), "not for this device"),
    "to an older instance of mine": (
        lambda p, k: p.forge_request(head=k.replace(p.head(), receiver=k.make_party("dpu-1", instance=3))),
        "not for this device",
    ),
    "to another binding of mine": (
        lambda p, k: p.forge_request(head=k.replace(p.head(), receiver=k.make_party("dpu-1", binding=3))),
        "not for this device",
    ),
    "from a third device, signed by the peer": (lambda p, k: p.forge_request(head=p.head(p.c, p.b)), "not the peer"),
    "from an older instance": (
        lambda p, k: p.forge_request(head=k.replace(p.head(), sender=k.make_party("dpu-0", instance=3))),
        "not the peer",
    ),
    "from another binding": (
        lambda p, k: p.forge_request(head=k.replace(p.head(), sender=k.make_party("dpu-0", binding=3))),
        "not the peer",
    ),
    "from a forged ueid": (
        lambda p, k: p.forge_request(head=k.replace(p.head(), sender=k.replace(p.a.party, ueid=b"\x01" + bytes(32)))),
        "not the peer",
    ),
    "reflected": (lambda p, k: p.forge_request(head=p.head(p.b, p.a), key=p.b.key), "not the peer's"),
    "signed by a third device": (lambda p, k: p.forge_request(key=p.c.key), "not the peer's"),
    "network not hosted here": (
        lambda p, k: p.forge_request(wants=(k.replace(p.wants[0], network_id=b"none" * 4),)),
        "not hosted here",
    ),
    "another network generation": (
        lambda p, k: p.forge_request(wants=(k.replace(p.wants[0], network_generation=2),)),
        "another generation",
    ),
    "epoch to come": (lambda p, k: p.forge_request(wants=(k.replace(p.wants[0], key_epoch=6),)), "not in force"),
    "epoch long gone": (lambda p, k: p.forge_request(wants=(k.replace(p.wants[0], key_epoch=1),)), "not in force"),
    "one bad want among good ones": (
        lambda p, k: p.forge_request(wants=(*p.wants, k.replace(p.wants[0], lane=1, key_epoch=6))),
        "not in force",
    ),
    "the same want twice": (lambda p, k: p.forge_request(wants=p.wants * 2), "malformed"),
    "no wants": (lambda p, k: p.forge_request(wants=()), "malformed"),
    "65 wants": (
        lambda p, k: p.forge_request(wants=tuple(k.replace(p.wants[0], network_id=bytes([n]) * 16) for n in range(65))),
        "malformed",
    ),
    "lane 16": (lambda p, k: p.forge_request(wants=(k.replace(p.wants[0], lane=16),)), "malformed"),
    "use 2": (lambda p, k: p.forge_request(wants=(k.replace(p.wants[0], use=2),)), "malformed"),
    "short network id": (
        lambda p, k: p.forge_request(wants=(k.replace(p.wants[0], network_id=b"x" * 15),)),
        "malformed",
    ),
    "short KEM key": (lambda p, k: p.forge_request(kem_public=bytes(1215)), "malformed"),
    "long KEM key": (lambda p, k: p.forge_request(kem_public=bytes(1217)), "malformed"),
    "short request id": (lambda p, k: p.forge_request(request_id=bytes(15)), "malformed"),
    "short ueid": (
        lambda p, k: p.forge_request(head=k.replace(p.head(), sender=k.replace(p.a.party, ueid=bytes(32)))),
        "malformed",
    ),
    "seq 0": (lambda p, k: p.forge_request(head=p.head(seq=0)), "sequence number"),
}


@pytest.mark.parametrize("attack", REQUEST_ATTACKS)
def test_request_refused(pair, kit, attack):
    forge, message = REQUEST_ATTACKS[attack]
    honest = pair.request()
    kit.refused(pair.b, "dpu-0", forge(pair, kit), pair.now_s, message)
    assert pair.finish(honest).spis


def test_forged_request_without_a_fault_is_accepted(pair):
    # The twin of all of the above: the forge itself is sound.
    assert isinstance(pair.at_b(pair.forge_request()), Allocate)


def test_control_names_another_sender(pair, kit):
    honest = pair.request()
    kit.refused(pair.b, "dpu-2", honest, pair.now_s, "not the peer's")
    kit.refused(pair.b, "dpu-9", honest, pair.now_s, "not a live peer")
    assert pair.finish(honest).spis


def test_request_to_another_device_is_refused_there(pair, kit):
    honest = pair.request()
    kit.refused(pair.c, "dpu-0", honest, pair.now_s, "not for this device")
    assert pair.finish(honest).spis


def test_own_request_reflected(pair, kit):
    honest = pair.request()
    kit.refused(pair.a, "dpu-1", honest, pair.now_s, "not the peer's")
    assert pair.finish(honest).spis


def test_replayed_sequence_number(pair, kit):
    first = pair.forge_request(head=pair.head(seq=10))
    assert pair.at_b(first)
    pair.now_s += 5
    for seq in (10, 9, 1):
        again = pair.forge_request(head=pair.head(seq=seq), request_id=b"\x11" * 16)
        kit.refused(pair.b, "dpu-0", again, pair.now_s, "sequence number")
    assert pair.at_b(pair.forge_request(head=pair.head(seq=11)))


def test_old_request_after_the_peer_left_and_came_back(pair, kit):
    old = pair.request()
    pair.finish(old)
    pair.b.exchange.remove_peer("dpu-0")
    kit.refused(pair.b, "dpu-0", old, pair.now_s, "not a live peer")
    pair.b.exchange.set_peer(pair.a.as_peer())
    pair.now_s += 2
    kit.refused(pair.b, "dpu-0", old, pair.now_s, "sequence number")
    assert pair.finish(pair.request()).spis


def test_sender_that_has_not_applied_the_last_revocation(pair, kit):
    pair.b.exchange.set_revocation_generation(150)
    kit.refused(pair.b, "dpu-0", pair.request(), pair.now_s, "last revocation")
    pair.a.exchange.set_revocation_generation(150)
    assert pair.finish(pair.request()).spis


def test_stored_answer_is_not_given_to_who_missed_a_revocation(pair, kit):
    request = pair.request()
    pair.offer(request)
    pair.b.exchange.set_revocation_generation(150)
    kit.refused(pair.b, "dpu-0", request, pair.now_s, "last revocation")


def test_generations_never_go_back(pair):
    pair.a.exchange.set_generation(50)
    pair.b.exchange.set_revocation_generation(100)
    pair.b.exchange.set_revocation_generation(10)
    assert pair.finish(pair.request()).spis


def test_peer_that_does_not_host_the_network(pair, kit):
    pair.b.exchange.set_peer(pair.a.as_peer(networks=[kit.RED]))
    kit.refused(pair.b, "dpu-0", pair.request(), pair.now_s, "does not host")
    red = (SaWant(network_id=kit.RED, network_generation=1, key_epoch=7),)
    assert pair.finish(pair.request(red)).spis


def test_peer_without_any_network_is_refused(pair, kit):
    pair.b.exchange.set_peer(pair.a.as_peer(networks=()))
    kit.refused(pair.b, "dpu-0", pair.request(), pair.now_s, "does not host")


def test_two_outstanding_at_most(pair, kit):
    pair.offer(pair.request())
    pair.now_s += 1
    pair.offer(pair.request())
    pair.now_s += 1
    third = pair.forge_request()
    kit.refused(pair.b, "dpu-0", third, pair.now_s, "outstanding")
    # The first two count for ten seconds.
    pair.now_s += 8
    assert isinstance(pair.at_b(third), Allocate)


def test_confirmed_requests_are_not_outstanding(pair):
    for _ in range(4):
        pair.finish(pair.request())
        pair.now_s += 1


def test_one_request_a_second(pair, kit):
    pair.finish(pair.request())
    pair.now_s += 0.9
    early = pair.request()
    kit.refused(pair.b, "dpu-0", early, pair.now_s, "one request a second")
    pair.now_s += 0.1
    assert pair.finish(early).spis


def test_refused_requests_use_up_nothing(pair, kit):
    honest = pair.request()
    for seq in range(2000, 2020):
        kit.refused(pair.b, "dpu-0", pair.forge_request(head=pair.head(seq=seq), key=pair.c.key), pair.now_s, "peer's")
    assert pair.finish(honest).spis


def forge_installed(pair, offer, *, head=None, key=None, results=(1,), offer_hash=None):
    message = messages.Installed(
        head=head or pair.head(), offer_hash=offer_hash or hashlib.sha256(offer).digest(), results=results
    )
    return sign_envelope("sa-installed", message.encode(), key or pair.a.key)


INSTALLED_ATTACKS = {
    "unknown offer": (lambda p, k, o: forge_installed(p, o, offer_hash=b"\x55" * 32), "no such offer"),
    "signed by a third device": (lambda p, k, o: forge_installed(p, o, key=p.c.key), "not the peer's"),
    "from a third device, signed by the peer": (
        lambda p, k, o: forge_installed(p, o, head=p.head(p.c, p.b)),
        "not the peer",
    ),
    "to a third device": (lambda p, k, o: forge_installed(p, o, head=p.head(p.a, p.c)), "not for this device"),
    "other domain": (lambda p, k, o: forge_installed(p, o, head=p.head(trust_domain="x")), "another trust domain"),
    "one result too many": (lambda p, k, o: forge_installed(p, o, results=(1, 1)), "one to one"),
    "no result": (lambda p, k, o: forge_installed(p, o, results=()), "malformed"),
    "result 2": (lambda p, k, o: forge_installed(p, o, results=(2,)), "malformed"),
}


@pytest.mark.parametrize("attack", INSTALLED_ATTACKS)
def test_confirmation_refused(pair, kit, attack):
    forge, message = INSTALLED_ATTACKS[attack]
    offer = pair.offer(pair.request())
    kit.refused(pair.b, "dpu-0", forge(pair, kit, offer), pair.now_s, message)
    assert pair.confirm(offer).spis


def test_forged_confirmation_without_a_fault_activates(pair):
    offer = pair.offer(pair.request())
    assert isinstance(pair.at_b(forge_installed(pair, offer)), Activate)


def test_confirmation_by_a_third_device(pair, kit):
    offer = pair.offer(pair.request())
    forged = forge_installed(pair, offer, head=pair.head(pair.c, pair.b), key=pair.c.key)
    kit.refused(pair.b, "dpu-2", forged, pair.now_s, "no such offer")
    assert pair.confirm(offer).spis


def test_second_confirmation(pair, kit):
    install = pair.at_a(pair.offer(pair.request()))
    confirmation = pair.a.exchange.installed(install.offer_hash, [1], now_s=pair.now_s)
    assert pair.at_b(confirmation).spis
    kit.refused(pair.b, "dpu-0", confirmation, pair.now_s, "no such offer")
    with pytest.raises(ExchangeError, match="being installed"):
        pair.a.exchange.installed(install.offer_hash, [1], now_s=pair.now_s)


def test_confirmation_after_30_s(pair, kit):
    install = pair.at_a(pair.offer(pair.request()))
    confirmation = pair.a.exchange.installed(install.offer_hash, [1], now_s=pair.now_s)
    pair.now_s += 30
    kit.refused(pair.b, "dpu-0", confirmation, pair.now_s, "no such offer")


def test_number_of_results_is_a_defect(pair):
    install = pair.at_a(pair.offer(pair.request()))
    with pytest.raises(ValueError, match="2 results for 1"):
        pair.a.exchange.installed(install.offer_hash, [1, 1], now_s=pair.now_s)
    assert pair.a.exchange.installed(install.offer_hash, [1], now_s=pair.now_s)
