"""The SA exchange as scripts: what must end well, and what must be refused without a trace.

Every attack is followed by the honest exchange it tried to disturb, which must still end well.
"""

from __future__ import annotations

import hashlib

import cbor2
import pytest

from ztdpu.errors import ExchangeError
from ztdpu.keys import kem, messages, wire
from ztdpu.keys.envelope import sign_envelope
from ztdpu.keys.exchange import Activate, Allocate, Exchange, Hint, Install, Resend
from ztdpu.model.sa import PspVersion, SaUse, SaWant


def refused(kit, device, sender, envelope, now_s, message):
    device.exchange.expire(now_s)
    before = kit.snapshot(device.exchange)
    with pytest.raises(ExchangeError) as caught:
        device.exchange.receive(sender, envelope, now_s=now_s)
    assert message in str(caught.value)
    assert kit.snapshot(device.exchange) == before


# --- what must end well --------------------------------------------------------------------------


def test_whole_exchange(pair, kit):
    request = pair.request()
    assert pair.a.exchange.pending_requests("dpu-1") == 1
    allocate = pair.at_b(request)
    assert allocate == Allocate(device="dpu-0", request_hash=hashlib.sha256(request).digest(), wants=pair.wants)
    grants = pair.grants()
    offer = pair.b.exchange.offer(allocate.request_hash, grants, now_s=pair.now_s)
    install = pair.at_a(offer)
    assert install == Install(
        device="dpu-1", offer_hash=hashlib.sha256(offer).digest(), grants=tuple(grants), wants=pair.wants
    )
    assert pair.a.exchange.pending_requests("dpu-1") == 0
    confirmation = pair.a.exchange.installed(install.offer_hash, [1], now_s=pair.now_s)
    assert pair.at_b(confirmation) == Activate(device="dpu-0", spis=(grants[0].spi,))


def test_one_exchange_carries_all_networks_uses_and_lanes(pair, kit):
    wants = tuple(
        SaWant(network_id=network, network_generation=1, key_epoch=epoch, use=use, lane=lane)
        for network, epoch in ((kit.BLUE, 5), (kit.RED, 7))
        for use in SaUse
        for lane in range(16)
    )
    assert len(wants) == 64
    request = pair.request(wants)
    assert len(pair.finish(request).spis) == 64


def test_sizes_are_those_that_were_published(pair):
    request = pair.request()
    assert len(request) < 1600
    assert len(pair.offer(request)) < 1600


@pytest.mark.parametrize("version", PspVersion)
def test_grant_arrives_as_it_was_made(pair, kit, version):
    octets = 16 if version == PspVersion.AES_GCM_128 else 32
    allocate = pair.at_b(pair.request())
    grant = kit.replace(pair.grants()[0], psp_version=version, key=b"\x99" * octets, spi=0x80000007, ttl_s=60)
    offer = pair.b.exchange.offer(allocate.request_hash, [grant], now_s=pair.now_s)
    assert pair.at_a(offer).grants == (grant,)
    assert b"\x99" * octets not in offer


def test_partly_installed(pair, kit):
    wants = (*pair.wants, SaWant(network_id=kit.RED, network_generation=1, key_epoch=7))
    offer = pair.offer(pair.request(wants))
    install = pair.at_a(offer)
    spis = [grant.spi for grant in install.grants]
    confirmation = pair.a.exchange.installed(install.offer_hash, [0, spis[1]], now_s=pair.now_s)
    assert pair.at_b(confirmation).spis == (spis[1],)


def test_both_directions_at_once(pair, kit):
    forth = pair.request()
    back = pair.b.exchange.request(
        "dpu-0", pair.wants, now_s=pair.now_s, request_id=bytes(16), kem_private_key=kit.make_kem_key()
    )
    assert isinstance(pair.at_a(back), Allocate)
    assert pair.finish(forth).spis


def test_exchanges_follow_each_other(pair):
    for _ in range(5):
        assert pair.finish(pair.request()).spis
        pair.now_s += 1.0


def test_next_request_is_spaced(pair):
    assert pair.a.exchange.next_request_s("dpu-1") < pair.now_s
    pair.request()
    assert pair.now_s < pair.a.exchange.next_request_s("dpu-1") <= pair.now_s + 2


def test_identical_request_gets_the_stored_answer(pair, kit):
    request = pair.request()
    offer = pair.offer(request)
    spi = pair.next_spi
    assert pair.at_b(request) == Resend(device="dpu-0", envelope=offer)
    pair.now_s += 9
    assert pair.at_b(request) == Resend(device="dpu-0", envelope=offer)
    assert pair.confirm(offer).spis == (spi - 1,)


def test_stored_answer_lives_30_s(pair, kit):
    request = pair.request()
    offer = pair.offer(request)
    pair.now_s += 29.9
    assert pair.at_b(request) == Resend(device="dpu-0", envelope=offer)
    pair.now_s += 0.2
    refused(kit, pair.b, "dpu-0", request, pair.now_s, "sequence number")


def test_stored_answers_are_bounded(pair, kit):
    first = pair.request()
    pair.finish(first)
    for _ in range(256):
        pair.now_s += 0.0001
        pair.b.exchange._answering._last_s.clear()
        pair.finish(pair.request())
    assert len(pair.b.exchange._answering._answers) == 256
    refused(kit, pair.b, "dpu-0", first, pair.now_s, "sequence number")


def test_identical_request_while_it_is_being_answered_allocates_nothing(pair, kit):
    request = pair.request()
    allocate = pair.at_b(request)
    refused(kit, pair.b, "dpu-0", request, pair.now_s, "sequence number")
    assert pair.confirm(pair.b.exchange.offer(allocate.request_hash, pair.grants(), now_s=pair.now_s)).spis


def test_declined_request_can_be_asked_again(pair):
    allocate = pair.at_b(pair.request())
    pair.b.exchange.decline(allocate.request_hash)
    with pytest.raises(ExchangeError, match="being answered"):
        pair.b.exchange.offer(allocate.request_hash, pair.grants(), now_s=pair.now_s)
    pair.now_s += 1
    assert pair.finish(pair.request()).spis


def test_hint(pair):
    hint = pair.b.exchange.hint("dpu-0", "rotate", now_s=pair.now_s)
    assert pair.at_a(hint) == Hint(device="dpu-1", instance=pair.b.party.instance, cause="rotate")


def test_hint_after_a_restart_that_control_has_not_told_yet(pair, kit):
    party = kit.make_party("dpu-1", binding=1, instance=9)
    restarted = Exchange(trust_domain=kit.DOMAIN, me=party, offer_key=pair.b.key)
    restarted.set_peer(pair.a.as_peer())
    hint = restarted.hint("dpu-0", "restart", now_s=pair.now_s)
    assert pair.at_a(hint) == Hint(device="dpu-1", instance=party.instance, cause="restart")


# --- requests that must be refused ---------------------------------------------------------------


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
    "seq beyond 64 bits": (lambda p, k: p.forge_request(head=p.head(seq=1 << 64)), "malformed"),
    "seq 0": (lambda p, k: p.forge_request(head=p.head(seq=0)), "sequence number"),
}


@pytest.mark.parametrize("attack", REQUEST_ATTACKS)
def test_request_refused(pair, kit, attack):
    forge, message = REQUEST_ATTACKS[attack]
    honest = pair.request()
    refused(kit, pair.b, "dpu-0", forge(pair, kit), pair.now_s, message)
    assert pair.finish(honest).spis


def test_forged_request_without_a_fault_is_accepted(pair):
    # The twin of all of the above: the forge itself is sound.
    assert isinstance(pair.at_b(pair.forge_request()), Allocate)


def test_control_names_another_sender(pair, kit):
    honest = pair.request()
    refused(kit, pair.b, "dpu-2", honest, pair.now_s, "not the peer's")
    refused(kit, pair.b, "dpu-9", honest, pair.now_s, "not a live peer")
    assert pair.finish(honest).spis


def test_request_to_another_device_is_refused_there(pair, kit):
    honest = pair.request()
    refused(kit, pair.c, "dpu-0", honest, pair.now_s, "not for this device")
    assert pair.finish(honest).spis


def test_own_request_reflected(pair, kit):
    honest = pair.request()
    refused(kit, pair.a, "dpu-1", honest, pair.now_s, "not the peer's")
    assert pair.finish(honest).spis


def test_replayed_sequence_number(pair, kit):
    first = pair.forge_request(head=pair.head(seq=10))
    assert pair.at_b(first)
    pair.now_s += 5
    for seq in (10, 9, 1):
        again = pair.forge_request(head=pair.head(seq=seq), request_id=b"\x11" * 16)
        refused(kit, pair.b, "dpu-0", again, pair.now_s, "sequence number")
    assert pair.at_b(pair.forge_request(head=pair.head(seq=11)))


def test_old_request_after_the_peer_left_and_came_back(pair, kit):
    old = pair.request()
    pair.finish(old)
    pair.b.exchange.remove_peer("dpu-0")
    refused(kit, pair.b, "dpu-0", old, pair.now_s, "not a live peer")
    pair.b.exchange.set_peer(pair.a.as_peer())
    pair.now_s += 2
    refused(kit, pair.b, "dpu-0", old, pair.now_s, "sequence number")
    assert pair.finish(pair.request()).spis


def test_sender_that_has_not_applied_the_last_revocation(pair, kit):
    pair.b.exchange.set_revocation_generation(150)
    refused(kit, pair.b, "dpu-0", pair.request(), pair.now_s, "last revocation")
    pair.a.exchange.set_revocation_generation(150)
    assert pair.finish(pair.request()).spis


def test_stored_answer_is_not_given_to_who_missed_a_revocation(pair, kit):
    request = pair.request()
    pair.offer(request)
    pair.b.exchange.set_revocation_generation(150)
    refused(kit, pair.b, "dpu-0", request, pair.now_s, "last revocation")


def test_generations_never_go_back(pair):
    pair.a.exchange.set_generation(50)
    pair.b.exchange.set_revocation_generation(100)
    pair.b.exchange.set_revocation_generation(10)
    assert pair.finish(pair.request()).spis


def test_peer_that_does_not_host_the_network(pair, kit):
    pair.b.exchange.set_peer(pair.a.as_peer(networks=[kit.RED]))
    refused(kit, pair.b, "dpu-0", pair.request(), pair.now_s, "does not host")
    red = (SaWant(network_id=kit.RED, network_generation=1, key_epoch=7),)
    assert pair.finish(pair.request(red)).spis


def test_peer_without_any_network_is_refused(pair, kit):
    pair.b.exchange.set_peer(pair.a.as_peer(networks=()))
    refused(kit, pair.b, "dpu-0", pair.request(), pair.now_s, "does not host")


def test_two_outstanding_at_most(pair, kit):
    pair.offer(pair.request())
    pair.now_s += 1
    pair.offer(pair.request())
    pair.now_s += 1
    third = pair.forge_request()
    refused(kit, pair.b, "dpu-0", third, pair.now_s, "outstanding")
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
    refused(kit, pair.b, "dpu-0", early, pair.now_s, "one request a second")
    pair.now_s += 0.1
    assert pair.finish(early).spis


def test_refused_requests_use_up_nothing(pair, kit):
    honest = pair.request()
    for seq in range(2000, 2020):
        refused(kit, pair.b, "dpu-0", pair.forge_request(head=pair.head(seq=seq), key=pair.c.key), pair.now_s, "peer's")
    assert pair.finish(honest).spis


# --- epochs --------------------------------------------------------------------------------------


def test_previous_epoch_within_ten_seconds(pair, kit):
    request = pair.request()
    pair.b.exchange.set_epoch_key(kit.BLUE, 1, 6, b"\x0c" * 32, now_s=pair.now_s)
    pair.now_s += 9.9
    assert pair.finish(request).spis


def test_previous_epoch_after_ten_seconds(pair, kit):
    pair.b.exchange.set_epoch_key(kit.BLUE, 1, 6, b"\x0c" * 32, now_s=pair.now_s)
    pair.now_s += 10
    refused(kit, pair.b, "dpu-0", pair.request(), pair.now_s, "not in force")
    pair.a.exchange.set_epoch_key(kit.BLUE, 1, 6, b"\x0c" * 32, now_s=pair.now_s)
    assert pair.finish(pair.request([kit.replace(pair.wants[0], key_epoch=6)])).spis


def test_previous_epoch_after_a_revocation(pair, kit):
    pair.b.exchange.set_epoch_key(kit.BLUE, 1, 6, b"\x0c" * 32, now_s=pair.now_s)
    pair.b.exchange.set_revocation_generation(100)
    refused(kit, pair.b, "dpu-0", pair.request(), pair.now_s, "not in force")


def test_previous_epoch_is_dropped_at_once_without_a_time(pair, kit):
    pair.b.exchange.set_epoch_key(kit.BLUE, 1, 6, b"\x0c" * 32)
    refused(kit, pair.b, "dpu-0", pair.request(), pair.now_s, "not in force")


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
    refused(kit, pair.a, "dpu-1", offer, pair.now_s, "not in force")


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
        with pytest.raises(ExchangeError, match="not hosted here"):
            pair.b.exchange.offer(allocate.request_hash, pair.grants(), now_s=pair.now_s)
        return
    offer = pair.b.exchange.offer(allocate.request_hash, pair.grants(), now_s=pair.now_s)
    pair.a.exchange.clear_epoch_keys()
    refused(kit, pair.a, "dpu-1", offer, pair.now_s, "not hosted here")
    with pytest.raises(ExchangeError, match="not hosted here"):
        pair.request()


def test_removed_network(pair, kit):
    request = pair.request()
    pair.b.exchange.remove_network(kit.BLUE)
    refused(kit, pair.b, "dpu-0", request, pair.now_s, "not hosted here")
    assert pair.b.exchange.current_epoch(kit.BLUE) is None
    assert pair.b.exchange.current_epoch(kit.RED) == (1, 7)


# --- offers that must be refused -----------------------------------------------------------------


OFFER_ATTACKS = {
    "wrong epoch key": (lambda p, k, r: p.forge_offer(r, epoch_keys=(k.RED_KEY,)), "not wrapped under"),
    "signed by a third device": (lambda p, k, r: p.forge_offer(r, key=p.c.key), "not the peer's"),
    "from a third device, signed by the peer": (
        lambda p, k, r: p.forge_offer(r, head=p.head(p.c, p.a)),
        "not the peer",
    ),
    "from an older instance": (
        lambda p, k, r: p.forge_offer(r, head=k.replace(p.head(p.b, p.a), sender=k.make_party("dpu-1", instance=3))),
        "not the peer",
    ),
    "to a third device": (lambda p, k, r: p.forge_offer(r, head=p.head(p.b, p.c)), "not for this device"),
    "to an older instance of mine": (
        lambda p, k, r: p.forge_offer(r, head=k.replace(p.head(p.b, p.a), receiver=k.make_party("dpu-0", instance=3))),
        "not for this device",
    ),
    "other domain": (
        lambda p, k, r: p.forge_offer(r, head=p.head(p.b, p.a, trust_domain="other.lab")),
        "another trust domain",
    ),
    "unknown request": (lambda p, k, r: p.forge_offer(r, request_hash=b"\x55" * 32), "no such request"),
    "sealed for another request": (lambda p, k, r: p.forge_offer(r, sealed_hash=b"\x55" * 32), "does not open"),
    "sealed under another head": (
        lambda p, k, r: p.forge_offer(r, sealed_head=p.head(p.b, p.a, seq=999)),
        "does not open",
    ),
    "sealed to another KEM key": (
        lambda p, k, r: p.forge_offer(r, kem_public=k.make_kem_key().public_octets),
        "does not open",
    ),
    "nothing sealed": (lambda p, k, r: p.forge_offer(r, sealed=b"\x00"), "does not open"),
    "another network": (
        lambda p, k, r: p.forge_offer(
            r, wants=(SaWant(network_id=k.RED, network_generation=1, key_epoch=7),), epoch_keys=(k.RED_KEY,)
        ),
        "not what was wanted",
    ),
    "another epoch": (
        lambda p, k, r: p.forge_offer(r, wants=(k.replace(p.wants[0], key_epoch=6),)),
        "not what was wanted",
    ),
    "another use": (
        lambda p, k, r: p.forge_offer(r, wants=(k.replace(p.wants[0], use=SaUse.STREAM),)),
        "not what was wanted",
    ),
    "another lane": (lambda p, k, r: p.forge_offer(r, wants=(k.replace(p.wants[0], lane=1),)), "not what was wanted"),
    "one entry too many": (
        lambda p, k, r: p.forge_offer(
            r, wants=(*p.wants, k.replace(p.wants[0], lane=1)), epoch_keys=(k.BLUE_KEY, k.BLUE_KEY)
        ),
        "not what was wanted",
    ),
    "no entry": (lambda p, k, r: forge_with_no_entry(p, r), "not what was wanted"),
    "SPI zero": (lambda p, k, r: p.forge_offer(r, grants=[k.replace(p.grants()[0], spi=0)]), "not what was wanted"),
    "SPI with low bits zero": (
        lambda p, k, r: p.forge_offer(r, grants=[k.replace(p.grants()[0], spi=1 << 31)]),
        "not what was wanted",
    ),
    "SPI beyond 32 bits": (
        lambda p, k, r: p.forge_offer(r, grants=[k.replace(p.grants()[0], spi=1 << 32)]),
        "not what was wanted",
    ),
    "key of another length": (
        lambda p, k, r: p.forge_offer(r, grants=[k.replace(p.grants()[0], key=bytes(16))]),
        "not what was wanted",
    ),
    "PSP version without confidentiality": (
        lambda p, k, r: p.forge_offer(r, grants=[k.replace(p.grants()[0], psp_version=3)]),
        "not what was wanted",
    ),
    "no time to live": (
        lambda p, k, r: p.forge_offer(r, grants=[k.replace(p.grants()[0], ttl_s=0)]),
        "not what was wanted",
    ),
    "a week to live": (
        lambda p, k, r: p.forge_offer(r, grants=[k.replace(p.grants()[0], ttl_s=7 * 86400)]),
        "not what was wanted",
    ),
}


@pytest.mark.parametrize("attack", OFFER_ATTACKS)
def test_offer_refused(pair, kit, attack):
    forge, message = OFFER_ATTACKS[attack]
    request = pair.request()
    offer = pair.offer(request)
    refused(kit, pair.a, "dpu-1", forge(pair, kit, request), pair.now_s, message)
    assert pair.confirm(offer).spis


def forge_with_no_entry(pair, request):
    head, request_hash = pair.head(pair.b, pair.a), hashlib.sha256(request).digest()
    info = b"ztdpu/v1/sa-offer/hpke\0" + hashlib.sha256(head.encode()).digest() + request_hash
    return pair.forge_offer(request, head=head, sealed=kem.seal_to(pair.kem_key.public_octets, b"\x80", info=info))


def test_forged_offer_without_a_fault_is_installed(pair):
    # The twin of all of the above: the forge itself is sound.
    request = pair.request()
    assert isinstance(pair.at_a(pair.forge_offer(request)), Install)


def test_modified_order_of_entries(pair, kit):
    wants = (*pair.wants, SaWant(network_id=kit.RED, network_generation=1, key_epoch=7))
    request = pair.request(wants)
    keys = (kit.BLUE_KEY, kit.RED_KEY)
    swapped = pair.forge_offer(request, wants=wants[::-1], epoch_keys=keys[::-1])
    refused(kit, pair.a, "dpu-1", swapped, pair.now_s, "not what was wanted")
    assert isinstance(pair.at_a(pair.forge_offer(request, wants=wants, epoch_keys=keys)), Install)


def test_one_spi_for_two_entries(pair, kit):
    wants = (*pair.wants, kit.replace(pair.wants[0], lane=1))
    request = pair.request(wants)
    grants = [kit.replace(grant, spi=9) for grant in pair.grants(wants)]
    forged = pair.forge_offer(request, wants=wants, epoch_keys=(kit.BLUE_KEY,) * 2, grants=grants)
    refused(kit, pair.a, "dpu-1", forged, pair.now_s, "an SPI twice")


def test_double_offer(pair, kit):
    request = pair.request()
    offer = pair.offer(request)
    install = pair.at_a(offer)
    refused(kit, pair.a, "dpu-1", offer, pair.now_s, "no such request")
    refused(kit, pair.a, "dpu-1", pair.forge_offer(request), pair.now_s, "no such request")
    assert pair.at_b(pair.a.exchange.installed(install.offer_hash, [1], now_s=pair.now_s)).spis


def test_offer_of_a_third_device_for_our_request(pair, kit):
    request = pair.request()
    offer = pair.offer(request)
    forged = pair.forge_offer(request, head=pair.head(pair.c, pair.a), key=pair.c.key)
    refused(kit, pair.a, "dpu-2", forged, pair.now_s, "no such request")
    assert pair.confirm(offer).spis


def test_offer_after_ten_seconds(pair, kit):
    offer = pair.offer(pair.request())
    pair.now_s += 10
    refused(kit, pair.a, "dpu-1", offer, pair.now_s, "no such request")
    assert pair.a.exchange.pending_requests("dpu-1") == 0


def test_offer_just_before_ten_seconds(pair):
    offer = pair.offer(pair.request())
    pair.now_s += 9.99
    assert pair.confirm(offer).spis


def test_own_offer_reflected(pair, kit):
    offer = pair.offer(pair.request())
    refused(kit, pair.b, "dpu-0", offer, pair.now_s, "not the peer's")
    assert pair.confirm(offer).spis


def test_kem_key_of_low_order(pair, kit):
    # The ML-KEM half is fine, the X25519 half is the point at zero.
    forged = pair.forge_request(kem_public=pair.kem_key.public_octets[:1184] + bytes(32))
    allocate = pair.at_b(forged)
    with pytest.raises(ExchangeError, match="KEM key is not usable"):
        pair.b.exchange.offer(allocate.request_hash, pair.grants(), now_s=pair.now_s)
    pair.now_s += 1
    assert isinstance(pair.at_b(pair.forge_request(head=pair.head(seq=2000))), Allocate)


@pytest.mark.parametrize("fault", ["none", "swapped", "other network"])
def test_grants_that_do_not_answer_the_wants_are_a_defect(pair, kit, fault):
    wants = (*pair.wants, kit.replace(pair.wants[0], lane=1))
    allocate = pair.at_b(pair.request(wants))
    good = pair.grants(wants)
    bad = {"none": [], "swapped": good[::-1], "other network": [good[0], kit.replace(good[1], network_id=kit.RED)]}
    with pytest.raises(ValueError, match="one to one"):
        pair.b.exchange.offer(allocate.request_hash, bad[fault], now_s=pair.now_s)
    assert pair.b.exchange.offer(allocate.request_hash, good, now_s=pair.now_s)


# --- confirmations that must be refused ----------------------------------------------------------


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
    refused(kit, pair.b, "dpu-0", forge(pair, kit, offer), pair.now_s, message)
    assert pair.confirm(offer).spis


def test_forged_confirmation_without_a_fault_activates(pair):
    offer = pair.offer(pair.request())
    assert isinstance(pair.at_b(forge_installed(pair, offer)), Activate)


def test_confirmation_by_a_third_device(pair, kit):
    offer = pair.offer(pair.request())
    forged = forge_installed(pair, offer, head=pair.head(pair.c, pair.b), key=pair.c.key)
    refused(kit, pair.b, "dpu-2", forged, pair.now_s, "no such offer")
    assert pair.confirm(offer).spis


def test_second_confirmation(pair, kit):
    install = pair.at_a(pair.offer(pair.request()))
    confirmation = pair.a.exchange.installed(install.offer_hash, [1], now_s=pair.now_s)
    assert pair.at_b(confirmation).spis
    refused(kit, pair.b, "dpu-0", confirmation, pair.now_s, "no such offer")
    with pytest.raises(ExchangeError, match="being installed"):
        pair.a.exchange.installed(install.offer_hash, [1], now_s=pair.now_s)


def test_confirmation_after_30_s(pair, kit):
    install = pair.at_a(pair.offer(pair.request()))
    confirmation = pair.a.exchange.installed(install.offer_hash, [1], now_s=pair.now_s)
    pair.now_s += 30
    refused(kit, pair.b, "dpu-0", confirmation, pair.now_s, "no such offer")


def test_number_of_results_is_a_defect(pair):
    install = pair.at_a(pair.offer(pair.request()))
    with pytest.raises(ValueError, match="2 results for 1"):
        pair.a.exchange.installed(install.offer_hash, [1, 1], now_s=pair.now_s)
    assert pair.a.exchange.installed(install.offer_hash, [1], now_s=pair.now_s)


# --- hints that must be refused ------------------------------------------------------------------


def forge_hint(pair, *, head=None, key=None, instance=None, cause="rotate"):
    head = head or pair.head(pair.b, pair.a)
    message = messages.HintMessage(head=head, instance=instance or head.sender.instance, cause=cause)
    return sign_envelope("sa-hint", message.encode(), key or pair.b.key)


HINT_ATTACKS = {
    "signed by a third device": (lambda p, k: forge_hint(p, key=p.c.key), "not the peer's"),
    "from a third device": (lambda p, k: forge_hint(p, head=p.head(p.c, p.a)), "not the peer"),
    "to a third device": (lambda p, k: forge_hint(p, head=p.head(p.b, p.c)), "not for this device"),
    "other domain": (lambda p, k: forge_hint(p, head=p.head(p.b, p.a, trust_domain="x")), "another trust domain"),
    "another instance": (lambda p, k: forge_hint(p, instance=b"\x44" * 16), "not the peer"),
    "unknown cause": (lambda p, k: forge_hint(p, cause="now"), "malformed"),
    "seq 0": (lambda p, k: forge_hint(p, head=p.head(p.b, p.a, seq=0)), "sequence number"),
}


@pytest.mark.parametrize("attack", HINT_ATTACKS)
def test_hint_refused(pair, kit, attack):
    forge, message = HINT_ATTACKS[attack]
    refused(kit, pair.a, "dpu-1", forge(pair, kit), pair.now_s, message)
    assert isinstance(pair.at_a(forge_hint(pair)), Hint)


def test_repeated_hint(pair, kit):
    hint = pair.b.exchange.hint("dpu-0", "rotate", now_s=pair.now_s)
    assert pair.at_a(hint)
    pair.now_s += 5
    refused(kit, pair.a, "dpu-1", hint, pair.now_s, "sequence number")


def test_one_hint_a_second(pair, kit):
    assert pair.at_a(pair.b.exchange.hint("dpu-0", "rotate", now_s=pair.now_s))
    second = pair.b.exchange.hint("dpu-0", "rotate", now_s=pair.now_s)
    pair.now_s += 0.9
    refused(kit, pair.a, "dpu-1", second, pair.now_s, "one hint a second")
    pair.now_s += 0.2
    assert isinstance(pair.at_a(second), Hint)


def test_unknown_cause_is_a_defect(pair):
    with pytest.raises(ValueError, match="no such cause"):
        pair.b.exchange.hint("dpu-0", "now", now_s=pair.now_s)


# --- form ----------------------------------------------------------------------------------------


def all_four(pair):
    """One good message of each kind, with who takes it and from whom."""
    request = pair.request()
    yield request, pair.b, "dpu-0"
    offer = pair.offer(request)
    yield offer, pair.a, "dpu-1"
    install = pair.at_a(offer)
    yield pair.a.exchange.installed(install.offer_hash, [1], now_s=pair.now_s), pair.b, "dpu-0"
    yield pair.b.exchange.hint("dpu-0", "restart", now_s=pair.now_s), pair.a, "dpu-1"


def test_every_bit_flip_is_refused(pair, kit):
    count = 0
    for envelope, taker, sender in all_four(pair):
        before = kit.snapshot(taker.exchange)
        for at in range(len(envelope)):
            for bit in range(8):
                flipped = bytearray(envelope)
                flipped[at] ^= 1 << bit
                with pytest.raises(ExchangeError):
                    taker.exchange.receive(sender, bytes(flipped), now_s=pair.now_s)
                count += 1
        assert kit.snapshot(taker.exchange) == before
    assert count > 25_000
    pair.now_s += 1
    assert pair.finish(pair.request()).spis


def test_every_truncation_and_extra_octets_are_refused(pair, kit):
    for envelope, taker, sender in all_four(pair):
        before = kit.snapshot(taker.exchange)
        for octets in range(len(envelope)):
            with pytest.raises(ExchangeError, match="malformed"):
                taker.exchange.receive(sender, envelope[:octets], now_s=pair.now_s)
        for extra in (b"\0", b"\xf6", envelope):
            with pytest.raises(ExchangeError, match="malformed"):
                taker.exchange.receive(sender, envelope + extra, now_s=pair.now_s)
        assert kit.snapshot(taker.exchange) == before


def test_too_large(pair, kit):
    refused(kit, pair.b, "dpu-0", bytes(64 * 1024 + 1), pair.now_s, "too large")
    refused(kit, pair.b, "dpu-0", bytes(64 * 1024), pair.now_s, "malformed")
    assert pair.finish(pair.request()).spis


def rewrite_body(pair, change):
    """A request whose body is `change` of the honest one, signed by the peer."""
    body = wire.decode(pair.forge_request())[1]
    return sign_envelope("sa-request", change(body), pair.a.key)


BODY_ATTACKS = {
    "octets behind": lambda body: body + b"\0",
    "cut": lambda body: body[:-1],
    "longer head than needed": lambda body: b"\x98\x06" + body[1:],
    "indefinite array": lambda body: b"\x9f" + body[1:] + b"\xff",
    "a map": lambda body: b"\xa1\x00" + body,
    "a tag": lambda body: b"\xd9\xd9\xf7" + body,
    "one field more": lambda body: cbor2.dumps([*cbor2.loads(body), 0]),
    "one field less": lambda body: cbor2.dumps(cbor2.loads(body)[:-1]),
    "another label inside": lambda body: cbor2.dumps(["sa-offer", *cbor2.loads(body)[1:]]),
    "another suite": lambda body: cbor2.dumps([*cbor2.loads(body)[:3], [0x20, 1, 2], *cbor2.loads(body)[4:]]),
    "another protocol": lambda body: cbor2.dumps(
        [cbor2.loads(body)[0], [2, *cbor2.loads(body)[1][1:]], *cbor2.loads(body)[2:]]
    ),
    "a float": lambda body: cbor2.dumps([*cbor2.loads(body)[:5], 1.5]),
    "a boolean": lambda body: cbor2.dumps([*cbor2.loads(body)[:5], True]),
    "null": lambda body: cbor2.dumps(None),
    "not an array": lambda body: cbor2.dumps("sa-request"),
    "empty": lambda body: b"",
    "negative": lambda body: cbor2.dumps([*cbor2.loads(body)[:5], [[-1]]]),
    "deep": lambda body: b"\x81" * 8 + b"\x00",
    "wants as text": lambda body: cbor2.dumps([*cbor2.loads(body)[:5], "wants"]),
}


@pytest.mark.parametrize("attack", BODY_ATTACKS)
def test_signed_body_that_is_not_canonical(pair, kit, attack):
    honest = pair.request()
    refused(kit, pair.b, "dpu-0", rewrite_body(pair, BODY_ATTACKS[attack]), pair.now_s, "malformed")
    assert pair.finish(honest).spis


def test_signed_body_unchanged_is_accepted(pair):
    assert isinstance(pair.at_b(rewrite_body(pair, lambda body: body)), Allocate)


@pytest.mark.parametrize("label", ["sa-offer", "sa-installed", "sa-hint", "key-binding", "", "x" * 40])
def test_signature_under_one_label_is_nothing_under_another(pair, kit, label):
    _, body, signature = wire.decode(pair.forge_request())
    relabelled = wire.encode([label, body, signature])
    refused(kit, pair.b, "dpu-0", relabelled, pair.now_s, "malformed" if len(label) > 32 else "not the peer's")
    resigned = sign_envelope(label, body, pair.a.key)
    refused(kit, pair.b, "dpu-0", resigned, pair.now_s, "malformed")


def test_the_other_signature_of_the_same_body(pair, kit):
    # ECDSA has two valid signatures for one content; a second envelope would have another hash.
    label, body, signature = wire.decode(pair.request())
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    other = signature[:32] + (order - int.from_bytes(signature[32:], "big")).to_bytes(32, "big")
    refused(kit, pair.b, "dpu-0", wire.encode([label, body, other]), pair.now_s, "not the peer's")
    assert pair.finish(wire.encode([label, body, signature])).spis


@pytest.mark.parametrize("signature", [bytes(64), b"\xff" * 64, b"\x00" * 63 + b"\x01", b"\x01" * 64])
def test_worthless_signatures(pair, kit, signature):
    label, body, _ = wire.decode(pair.request())
    refused(kit, pair.b, "dpu-0", wire.encode([label, body, signature]), pair.now_s, "not the peer's")


def test_nothing_received_shows_in_an_error(pair, kit):
    forged = pair.forge_request(head=pair.head(trust_domain="secret-canary"))
    with pytest.raises(ExchangeError) as caught:
        pair.at_b(forged)
    assert "canary" not in str(caught.value)


# --- incarnations --------------------------------------------------------------------------------


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
    refused(kit, pair.b, "dpu-0", request, pair.now_s + 10, "not the peer")


def test_renewed_binding_without_a_time_has_no_grace(pair, kit):
    request = pair.request()
    pair.b.exchange.set_peer(pair.a.as_peer(party=kit.make_party("dpu-0", binding=1)))
    refused(kit, pair.b, "dpu-0", request, pair.now_s, "not the peer")


def test_own_renewed_binding_has_a_grace(pair, kit):
    request = pair.request()
    pair.b.exchange.set_me(kit.make_party("dpu-1", binding=1), pair.b.key, now_s=pair.now_s)
    refused(kit, pair.b, "dpu-0", request, pair.now_s + 10, "not for this device")
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
    refused(kit, pair.b, "dpu-0", replayed, pair.now_s, "sequence number")


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
    assert pair.a.exchange.pending_requests("dpu-1") == 0
    refused(kit, pair.a, "dpu-1", offer, pair.now_s, "")


def test_another_incarnation_of_this_device_voids_all_exchanges(pair, kit):
    offer = pair.offer(pair.request())
    pair.a.exchange.set_me(kit.make_party("dpu-0", instance=7), pair.a.key, now_s=pair.now_s)
    assert pair.a.exchange.pending_requests("dpu-1") == 0
    refused(kit, pair.a, "dpu-1", offer, pair.now_s, "no such request")
    hint = pair.b.exchange.hint("dpu-0", "rotate", now_s=pair.now_s)
    assert isinstance(pair.at_a(hint), Hint)


def test_old_binding_is_not_let_in_when_the_peer_was_removed_meanwhile(pair, kit):
    request = pair.request()
    pair.b.exchange.remove_peer("dpu-0")
    pair.b.exchange.set_peer(pair.a.as_peer(party=kit.make_party("dpu-0", binding=1)), now_s=pair.now_s)
    refused(kit, pair.b, "dpu-0", request, pair.now_s, "not the peer")


@pytest.mark.parametrize("step", ["request", "allocate", "offer", "install"])
def test_removing_a_peer_ends_its_exchange_at_every_step(pair, kit, step):
    request = pair.request()
    if step == "request":
        pair.b.exchange.remove_peer("dpu-0")
        refused(kit, pair.b, "dpu-0", request, pair.now_s, "not a live peer")
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
        refused(kit, pair.a, "dpu-1", offer, pair.now_s, "not a live peer")
        assert pair.a.exchange.pending_requests("dpu-1") == 0
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


# --- what our own side may not ask ---------------------------------------------------------------


def test_request_to_nobody(pair):
    with pytest.raises(ExchangeError, match="not a live peer"):
        pair.a.exchange.request(
            "dpu-9", pair.wants, now_s=pair.now_s, request_id=bytes(16), kem_private_key=pair.kem_key
        )
    assert pair.request()


def test_request_for_what_is_not_hosted(pair, kit):
    with pytest.raises(ExchangeError, match="not hosted here"):
        pair.request([kit.replace(pair.wants[0], network_id=bytes(16))])
    pair.a.exchange.set_peer(pair.b.as_peer(networks=[kit.RED]))
    with pytest.raises(ExchangeError, match="does not host"):
        pair.request()
    assert pair.a.exchange.pending_requests("dpu-1") == 0


def test_third_request_at_once(pair):
    pair.request()
    pair.request()
    with pytest.raises(ExchangeError, match="two requests"):
        pair.request()
    pair.now_s += 10
    assert pair.request()


@pytest.mark.parametrize("count", [0, 65])
def test_requests_of_no_size(pair, kit, count):
    wants = [kit.replace(pair.wants[0], lane=lane) for lane in range(count)]
    with pytest.raises(ValueError, match="1 to 64"):
        pair.request(wants) if wants else pair.a.exchange.request(
            "dpu-1", [], now_s=pair.now_s, request_id=bytes(16), kem_private_key=pair.kem_key
        )
    assert pair.request()


def test_expire_empties_everything(pair, kit):
    pair.confirm(pair.offer(pair.request()))
    pair.now_s += 2
    pair.at_a(pair.offer(pair.request()))
    for device in (pair.a, pair.b):
        device.exchange.expire(pair.now_s + 31)
        asked, installing, _, answering, offered, answers, *_ = kit.snapshot(device.exchange)
        assert not any((asked, installing, answering, offered, answers))
