"""The SA exchange as a script: what must end well, and hints."""

from __future__ import annotations

import hashlib

import pytest

from ztdpu.errors import ExchangeBusyError, ExchangeError
from ztdpu.keys import messages
from ztdpu.keys.envelope import sign_envelope
from ztdpu.keys.exchange import Activate, Allocate, Exchange, Hint, Install, Resend
from ztdpu.model.sa import PspVersion, SaUse, SaWant


def test_whole_exchange(pair, kit):
    request = pair.request()
    assert pair.a.exchange._asking.pending("dpu-1") == 1
    allocate = pair.at_b(request)
    assert allocate == Allocate(device="dpu-0", request_hash=hashlib.sha256(request).digest(), wants=pair.wants)
    grants = pair.grants()
    offer = pair.b.exchange.offer(allocate.request_hash, grants, now_s=pair.now_s)
    install = pair.at_a(offer)
    assert install == Install(
        device="dpu-1", offer_hash=hashlib.sha256(offer).digest(), grants=tuple(grants), wants=pair.wants
    )
    assert pair.a.exchange._asking.pending("dpu-1") == 0
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
    kit.refused(pair.b, "dpu-0", request, pair.now_s, "sequence number")


def test_stored_answers_are_bounded(pair, kit):
    first = pair.request()
    pair.finish(first)
    for _ in range(256):
        pair.now_s += 0.0001
        pair.b.exchange._answering._last_s.clear()
        pair.finish(pair.request())
    assert len(pair.b.exchange._answering._answers) == 256
    kit.refused(pair.b, "dpu-0", first, pair.now_s, "sequence number")


def test_identical_request_while_it_is_being_answered_allocates_nothing(pair, kit):
    request = pair.request()
    allocate = pair.at_b(request)
    kit.refused(pair.b, "dpu-0", request, pair.now_s, "the same request is being answered")
    with pytest.raises(ExchangeBusyError):  # told apart, since nothing is wrong
        pair.b.exchange.receive("dpu-0", request, now_s=pair.now_s)
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
    kit.refused(pair.a, "dpu-1", forge(pair, kit), pair.now_s, message)
    assert isinstance(pair.at_a(forge_hint(pair)), Hint)


def test_repeated_hint(pair, kit):
    hint = pair.b.exchange.hint("dpu-0", "rotate", now_s=pair.now_s)
    assert pair.at_a(hint)
    pair.now_s += 5
    kit.refused(pair.a, "dpu-1", hint, pair.now_s, "sequence number")


def test_one_hint_a_second(pair, kit):
    assert pair.at_a(pair.b.exchange.hint("dpu-0", "rotate", now_s=pair.now_s))
    second = pair.b.exchange.hint("dpu-0", "rotate", now_s=pair.now_s)
    pair.now_s += 0.9
    kit.refused(pair.a, "dpu-1", second, pair.now_s, "one hint a second")
    pair.now_s += 0.2
    assert isinstance(pair.at_a(second), Hint)


def test_unknown_cause_is_a_defect(pair):
    with pytest.raises(ValueError, match="no such cause"):
        pair.b.exchange.hint("dpu-0", "now", now_s=pair.now_s)
