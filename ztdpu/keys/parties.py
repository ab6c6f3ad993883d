"""Who speaks to whom: this device, its live peers, and which message of each was the newest.

Owns the current party of each side and, for a short grace, the one before it when nothing but the KeyBinding
changed: bindings are renewed at each re-attestation, and messages cross on the way. A new worker instance or
a new offer key is another incarnation and has no grace. Used by `exchange` alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from ztdpu.errors import ExchangeError
from ztdpu.keys.messages import Head, Party

BINDING_GRACE_S: Final = 10.0
_SEQUENCES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Peer:
    """A live, verified device that shares a network with this one."""

    device: str
    party: Party
    offer_public_key: EllipticCurvePublicKey
    """P-256, from its KeyBinding."""
    networks: frozenset[bytes] = frozenset()
    """Networks that it hosts by the signed roster; an SA for any other is refused."""
    withheld: frozenset[bytes] = frozenset()
    """Networks shared with it that one of the two may not use now. What it wants of these is left out of an answer."""


@dataclass(slots=True)
class _Side:
    """A party and its predecessor while that is still let in."""

    party: Party
    before: Party | None = None
    before_until_s: float = 0.0

    def admits(self, party: Party, now_s: float) -> bool:
        return party == self.party or (party == self.before and now_s < self.before_until_s)

    def renew(self, party: Party, now_s: float | None) -> None:
        if party != self.party:
            graced = now_s is not None and only_binding_differs(self.party, party)
            self.before = self.party if graced else None
            self.before_until_s = (now_s or 0.0) + BINDING_GRACE_S
            self.party = party


@dataclass(slots=True)
class Directory:
    """The parties that may speak here."""

    trust_domain: str
    me: _Side
    peers: dict[str, Peer] = field(default_factory=dict)
    _sides: dict[str, _Side] = field(default_factory=dict)
    _newest_seq: dict[tuple[Party, str], int] = field(default_factory=dict)
    """By sender incarnation and label. Kept when a peer leaves, so that its return revives no old message."""

    @classmethod
    def of(cls, trust_domain: str, me: Party) -> Directory:
        """A directory without peers."""
        return cls(trust_domain, _Side(me))

    def set_me(self, party: Party, now_s: float | None) -> bool:
        """Speak as `party` from now on. True when it is another incarnation, whose exchanges are void."""
        again = not only_binding_differs(self.me.party, party)
        self.me.renew(party, now_s)
        return again

    def set_peer(self, peer: Peer, now_s: float | None) -> bool:
        """Add or renew a peer. True when it is another incarnation, whose exchanges are void."""
        known = self.peers.get(peer.device)
        self.peers[peer.device] = peer
        if known is not None and _same_incarnation(known, peer):
            self._sides[peer.device].renew(peer.party, now_s)
            return False
        self._sides[peer.device] = _Side(peer.party)
        return True

    def remove_peer(self, device: str) -> None:
        """Nothing from this device is heard any more."""
        self.peers.pop(device, None)
        self._sides.pop(device, None)

    def find(self, device: str) -> Peer:
        """Return a live peer. Raises ExchangeError."""
        peer = self.peers.get(device)
        if peer is None:
            raise ExchangeError("the device is not a live peer")
        return peer

    def check_domain(self, head: Head) -> None:
        """Raise ExchangeError for a message of another trust domain."""
        if head.trust_domain != self.trust_domain:
            raise ExchangeError("the message belongs to another trust domain")

    def check_sender(self, head: Head, device: str, now_s: float) -> None:
        """Raise ExchangeError unless the sender is the peer in its current incarnation and binding."""
        if not self._sides[device].admits(head.sender, now_s):
            raise ExchangeError("the sender is not the peer as it is known now")

    def check_receiver(self, head: Head, now_s: float) -> None:
        """Raise ExchangeError unless the message is for this device as it is now."""
        if not self.me.admits(head.receiver, now_s):
            raise ExchangeError("the message is not for this device as it is now")

    def check_seq(self, head: Head, label: str) -> None:
        """Raise ExchangeError for a sequence number that is not above the last of this sender and label."""
        if head.seq <= self._newest_seq.get(_seq_key(head, label), 0):
            raise ExchangeError("the sequence number is not above the last")

    def note_seq(self, head: Head, label: str) -> None:
        """Remember an accepted message. The oldest sender is forgotten when there are thousands."""
        key = _seq_key(head, label)
        self._newest_seq.pop(key, None)
        self._newest_seq[key] = head.seq
        if len(self._newest_seq) > _SEQUENCES_MAX:
            del self._newest_seq[next(iter(self._newest_seq))]


def only_binding_differs(one: Party, other: Party) -> bool:
    """Say whether two parties are one device in one worker instance."""
    return (one.ueid, one.instance) == (other.ueid, other.instance)


def _same_incarnation(one: Peer, other: Peer) -> bool:
    return (
        only_binding_differs(one.party, other.party)
        and one.offer_public_key.public_numbers() == other.offer_public_key.public_numbers()
    )


def _seq_key(head: Head, label: str) -> tuple[Party, str]:
    # One instance has one counter, whatever its binding is at the moment.
    return Party(head.sender.ueid, b"", head.sender.instance), label
