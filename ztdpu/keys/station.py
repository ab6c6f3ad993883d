"""What both halves of an exchange stand on: who we are, which keys are in force, signing and opening.

Owns this device's sequence number and generations. Used by `asking`, `answering` and `exchange`; decides
nothing about any one exchange.
"""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from ztdpu.errors import ExchangeError
from ztdpu.keys.envelope import SignatureError, read_envelope, sign_envelope, verify_envelope
from ztdpu.keys.messages import Head, Message, Party, decode_message
from ztdpu.keys.parties import Directory, Peer
from ztdpu.keys.ring import EpochKeyRing
from ztdpu.keys.wire import LIMIT_OCTETS, WireError
from ztdpu.model.sa import SaWant


class Station:
    """Our standing among the peers."""

    def __init__(self, *, trust_domain: str, me: Party, offer_key: EllipticCurvePrivateKey) -> None:
        self.directory = Directory.of(trust_domain, me)
        self.ring = EpochKeyRing()
        self.offer_key = offer_key
        self.fleet_generation = 0
        self.revocation_generation = 0
        self._seq = 0

    @property
    def me(self) -> Party:
        """Our party as it is now."""
        return self.directory.me.party

    def head(self, receiver: Party) -> Head:
        """Return H for the next message to `receiver`."""
        self._seq += 1
        return Head(
            trust_domain=self.directory.trust_domain,
            sender=self.me,
            receiver=receiver,
            seq=self._seq,
            fleet_generation=self.fleet_generation,
        )

    def sign(self, label: str, message: Message) -> bytes:
        """Return the envelope of a message of ours."""
        return sign_envelope(label, message.encode(), self.offer_key)

    def open(self, device_from: str, octets: bytes) -> Message:
        """Return the message in an envelope that the peer signed. Raises ExchangeError."""
        if len(octets) > LIMIT_OCTETS:
            raise ExchangeError("the message is too large")
        try:
            envelope = read_envelope(octets)
            verify_envelope(envelope, self.directory.find(device_from).offer_public_key)
            return decode_message(envelope.label, envelope.body)
        except WireError:
            raise ExchangeError("the message is malformed") from None
        except SignatureError:
            raise ExchangeError("the signature is not the peer's") from None

    def check_hosted(self, peer: Peer, want: SaWant, now_s: float) -> None:
        """Raise ExchangeError unless both sides host the wanted network and its epoch is in force."""
        self.ring.key_for(want, now_s)
        if want.network_id not in peer.networks:
            raise ExchangeError("the peer does not host the network")


def envelope_sha256(envelope: bytes) -> bytes:
    """Return the hash that names a request or an offer."""
    return hashlib.sha256(envelope).digest()
