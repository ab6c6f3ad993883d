"""Two devices with one Exchange each, and the means to forge what a hostile but keyed peer could send."""

from __future__ import annotations

import dataclasses
import hashlib
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from ztdpu.errors import ExchangeError
from ztdpu.keys import messages
from ztdpu.keys.envelope import sign_envelope
from ztdpu.keys.exchange import Allocate, Exchange, Install, Party, Peer
from ztdpu.keys.kem import kem_key_from_parts
from ztdpu.keys.messages import Head
from ztdpu.keys.wrapping import seal_grants
from ztdpu.model.sa import PspVersion, SaGrant, SaUse, SaWant

BLUE, RED = b"blue" * 4, b"red!" * 4
BLUE_KEY, RED_KEY = b"\x0b" * 32, b"\x0e" * 32
DOMAIN = "ztdpu.lab"


def make_kem_key():
    return kem_key_from_parts(MLKEM768PrivateKey.generate(), X25519PrivateKey.generate())


def make_party(name, *, binding=0, instance=0):
    ueid = b"\x01" + hashlib.sha256(name.encode()).digest()
    return Party(ueid, hashlib.sha256(f"{name} {binding}".encode()).digest(), bytes([instance]) * 16)


OFFER_KEYS = {name: generate_private_key(SECP256R1()) for name in ("dpu-0", "dpu-1", "dpu-2")}


class Device:
    """One end: its Exchange, its party, its key."""

    def __init__(self, name, domain=DOMAIN):
        self.name, self.party, self.key = name, make_party(name), OFFER_KEYS[name]
        self.exchange = Exchange(trust_domain=domain, me=self.party, offer_key=self.key)
        self.exchange.set_generation(100)
        self.exchange.set_epoch_key(BLUE, 1, 5, BLUE_KEY)
        self.exchange.set_epoch_key(RED, 1, 7, RED_KEY)

    def as_peer(self, *, networks=(BLUE, RED), party=None, key=None):
        return Peer(self.name, party or self.party, (key or self.key).public_key(), frozenset(networks))


class Pair:
    """`a` wants to send packets to `b`; a third device looks on."""

    def __init__(self):
        self.a, self.b, self.c = Device("dpu-0"), Device("dpu-1"), Device("dpu-2")
        for one in (self.a, self.b, self.c):
            for other in (self.a, self.b, self.c):
                if one is not other:
                    one.exchange.set_peer(other.as_peer())
        self.wants = (SaWant(network_id=BLUE, network_generation=1, key_epoch=5),)
        self.kem_key = make_kem_key()
        self.now_s = 1000.0
        self.next_spi = 1
        self.requests = 0

    # --- honest steps ---

    def request(self, wants=None):
        self.requests += 1
        return self.a.exchange.request(
            "dpu-1", wants or self.wants, now_s=self.now_s, request_id=self.requests.to_bytes(16, "big"),
            kem_private_key=self.kem_key,
        )  # fmt: skip

    def grants(self, wants=None):
        made = []
        for want in wants or self.wants:
            made.append(
                SaGrant(
                    network_id=want.network_id, use=want.use, lane=want.lane, psp_version=PspVersion.AES_GCM_256,
                    spi=self.next_spi, key=self.next_spi.to_bytes(32, "big"), ttl_s=3600, soft_limit_octets=1 << 38,
                )
            )  # fmt: skip
            self.next_spi += 1
        return made

    def at_b(self, envelope):
        return self.b.exchange.receive("dpu-0", envelope, now_s=self.now_s)

    def at_a(self, envelope):
        return self.a.exchange.receive("dpu-1", envelope, now_s=self.now_s)

    def offer(self, request):
        event = self.at_b(request)
        assert isinstance(event, Allocate)
        return self.b.exchange.offer(event.request_hash, self.grants(event.wants), now_s=self.now_s)

    def finish(self, request):
        """Everything behind a request; returns the Activate event."""
        return self.confirm(self.offer(request))

    def confirm(self, offer):
        event = self.at_a(offer)
        assert isinstance(event, Install)
        spis = [grant.spi for grant in event.grants]
        return self.at_b(self.a.exchange.installed(event.offer_hash, spis, now_s=self.now_s))

    # --- what a peer that holds its own key could send ---

    def head(self, sender=None, receiver=None, **changes):
        sender, receiver = sender or self.a, receiver or self.b
        fields = {
            "trust_domain": DOMAIN, "sender": sender.party, "receiver": receiver.party, "seq": 1000,
            "fleet_generation": 100,
        }  # fmt: skip
        return Head(**{**fields, **changes})

    def forge_request(self, *, head=None, key=None, **changes):
        fields = {
            "head": head or self.head(), "request_id": b"\xff" * 16, "kem_public": self.kem_key.public_octets,
            "wants": self.wants,
        }  # fmt: skip
        message = messages.Request(**{**fields, **changes})
        return sign_envelope("sa-request", message.encode(), key or self.a.key)

    def forge_offer(self, request, *, head=None, key=None, epoch_keys=(BLUE_KEY,), wants=None, **changes):
        """An offer for `request`, by default exactly what b would answer."""
        request_hash = changes.get("request_hash", hashlib.sha256(request).digest())
        head = head or self.head(self.b, self.a)
        sealed = changes.get("sealed") or seal_grants(
            wants or self.wants, changes.get("grants") or self.grants(wants), epoch_keys,
            head=changes.get("sealed_head", head), request_hash=changes.get("sealed_hash", request_hash),
            kem_public=changes.get("kem_public", self.kem_key.public_octets),
        )  # fmt: skip
        message = messages.Offer(head=head, request_hash=request_hash, sealed=sealed)
        return sign_envelope("sa-offer", message.encode(), key or self.b.key)


def snapshot(exchange):
    """All state that a message could leave behind."""
    asking, answering, directory = exchange._asking, exchange._answering, exchange._station.directory
    return (
        dict(asking._asked), dict(asking._installing), dict(asking._last_s),
        dict(answering._answering), dict(answering._offered), dict(answering._answers), dict(answering._last_s),
        dict(exchange._last_hint_s), dict(directory._newest_seq), dict(directory.peers),
    )  # fmt: skip


def refused(device, sender, envelope, now_s, message):
    device.exchange.expire(now_s)
    before = snapshot(device.exchange)
    with pytest.raises(ExchangeError) as caught:
        device.exchange.receive(sender, envelope, now_s=now_s)
    assert message in str(caught.value)
    assert snapshot(device.exchange) == before


@pytest.fixture
def pair():
    return Pair()


@pytest.fixture
def kit():
    """Names that tests need, since test modules cannot import each other."""
    return SimpleNamespace(
        BLUE=BLUE, RED=RED, BLUE_KEY=BLUE_KEY, RED_KEY=RED_KEY, DOMAIN=DOMAIN, OFFER_KEYS=OFFER_KEYS,
        Device=Device, Pair=Pair, make_kem_key=make_kem_key, make_party=make_party, snapshot=snapshot, refused=refused,
        replace=dataclasses.replace, SaUse=SaUse,
    )  # fmt: skip
