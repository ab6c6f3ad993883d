"""Offers that the sender of packets must refuse, without a trace, and what it may not ask itself.

Every attack is followed by the honest exchange it tried to disturb, which must still end well.
"""

from __future__ import annotations

import hashlib

import pytest

from ztdpu.errors import ExchangeError, WireError
from ztdpu.keys import kem
from ztdpu.keys.exchange import Allocate, Install
from ztdpu.model.sa import SaUse, SaWant

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
    kit.refused(pair.a, "dpu-1", forge(pair, kit, request), pair.now_s, message)
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
    kit.refused(pair.a, "dpu-1", swapped, pair.now_s, "not what was wanted")
    assert isinstance(pair.at_a(pair.forge_offer(request, wants=wants, epoch_keys=keys)), Install)


def test_one_spi_for_two_entries(pair, kit):
    wants = (*pair.wants, kit.replace(pair.wants[0], lane=1))
    request = pair.request(wants)
    grants = [kit.replace(grant, spi=9) for grant in pair.grants(wants)]
    forged = pair.forge_offer(request, wants=wants, epoch_keys=(kit.BLUE_KEY,) * 2, grants=grants)
    kit.refused(pair.a, "dpu-1", forged, pair.now_s, "an SPI twice")


def test_double_offer(pair, kit):
    request = pair.request()
    offer = pair.offer(request)
    install = pair.at_a(offer)
    kit.refused(pair.a, "dpu-1", offer, pair.now_s, "no such request")
    kit.refused(pair.a, "dpu-1", pair.forge_offer(request), pair.now_s, "no such request")
    assert pair.at_b(pair.a.exchange.installed(install.offer_hash, [1], now_s=pair.now_s)).spis


def test_offer_of_a_third_device_for_our_request(pair, kit):
    request = pair.request()
    offer = pair.offer(request)
    forged = pair.forge_offer(request, head=pair.head(pair.c, pair.a), key=pair.c.key)
    kit.refused(pair.a, "dpu-2", forged, pair.now_s, "no such request")
    assert pair.confirm(offer).spis


def test_offer_after_ten_seconds(pair, kit):
    offer = pair.offer(pair.request())
    pair.now_s += 10
    kit.refused(pair.a, "dpu-1", offer, pair.now_s, "no such request")
    assert pair.a.exchange._asking.pending("dpu-1") == 0


def test_offer_just_before_ten_seconds(pair):
    offer = pair.offer(pair.request())
    pair.now_s += 9.99
    assert pair.confirm(offer).spis


def test_own_offer_reflected(pair, kit):
    offer = pair.offer(pair.request())
    kit.refused(pair.b, "dpu-0", offer, pair.now_s, "not the peer's")
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
    assert pair.a.exchange._asking.pending("dpu-1") == 0


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
    with pytest.raises(WireError, match="1 to 64"):
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
