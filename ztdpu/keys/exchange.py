"""The SA exchange between two devices, without I/O: a pull in three messages, and a hint.

    A: request()              ---- sa-request ---->   B: receive() -> Allocate, then offer() or decline()
    A: receive() -> Install   <---- sa-offer -----
    A: installed()            --- sa-installed --->   B: receive() -> Activate
    A: receive() -> Hint      <---- sa-hint ------    B: hint()

Each device runs one `Exchange`; its daemon carries the envelopes (control relays them unread) and executes
the events. Time is any monotonic clock in seconds.

Rules of this machine
1. Order of checks: size, form, live peer, signature, form of the body, trust domain, then what the kind asks for.
   Nothing is decoded from a body before its signature is verified.
2. A refused message raises ExchangeError and leaves no state: the exchange that it meddles with can still end
   well. The error's text is one of a fixed set and carries nothing of what was received.
3. Every list is bounded and every entry has a deadline; a KEM key lives until its offer was opened, or 10 s.
4. A request is answered once; identical octets get identical octets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from ztdpu.errors import ExchangeError
from ztdpu.keys import messages
from ztdpu.keys.answering import Answering
from ztdpu.keys.asking import Asking
from ztdpu.keys.events import Activate, Allocate, Event, Hint, Install, Resend
from ztdpu.keys.kem import KemKey
from ztdpu.keys.messages import HintMessage, Installed, Offer, Party, Request
from ztdpu.keys.parties import Peer
from ztdpu.keys.station import Station, envelope_sha256
from ztdpu.model.sa import SaGrant, SaWant

HINT_INTERVAL_S: Final = 1.0

__all__ = [
    "Activate", "Allocate", "Event", "Exchange", "Hint", "Install", "Party", "Peer", "Resend",
]  # fmt: skip


class Exchange:
    """One device's side of all its exchanges."""

    def __init__(self, *, trust_domain: str, me: Party, offer_key: EllipticCurvePrivateKey) -> None:
        """`offer_key` is the P-256 key that `me`'s KeyBinding names."""
        self._station = Station(trust_domain=trust_domain, me=me, offer_key=offer_key)
        self._asking = Asking(self._station)
        self._answering = Answering(self._station)
        self._last_hint_s: dict[str, float] = {}

    # --- what the shell tells --------------------------------------------------------------------

    def set_me(self, me: Party, offer_key: EllipticCurvePrivateKey, *, now_s: float | None = None) -> None:
        """Speak as `me` from now on. A new worker instance voids every exchange, a new binding does not.

        With `now_s` messages to the binding before this one are let in for ten more seconds.
        """
        self._station.offer_key = offer_key
        if self._station.directory.set_me(me, now_s):
            self._asking.forget(_everyone)
            self._answering.forget(_everyone)

    def set_peer(self, peer: Peer, *, now_s: float | None = None) -> None:
        """Add or renew a peer that was verified. Its new instance or offer key voids the exchanges with it.

        With `now_s` messages under its binding before this one are let in for ten more seconds.
        """
        known = self._station.directory.peers.get(peer.device)
        if self._station.directory.set_peer(peer, now_s):
            self._forget(peer.device)
        elif known is not None and known.networks - peer.networks:
            # What is under way may be of a network that is lost: it is asked for anew without that.
            self._asking.forget(lambda other: other == peer.device)
            self._answering.void(lambda other: other == peer.device)

    def remove_peer(self, device: str) -> None:
        """The device is revoked, stale or shares no network any more: nothing with it goes on."""
        self._station.directory.remove_peer(device)
        self._forget(device)

    def set_generation(self, fleet_generation: int) -> None:
        """Newest generation applied here; it stands in every message from now on and never goes back."""
        self._station.fleet_generation = max(self._station.fleet_generation, fleet_generation)

    def set_revocation_generation(self, generation: int) -> None:
        """A revocation of this generation was applied: who has not applied it gets no answer.

        Earlier epochs and stored answers end with it, whatever its generation: one told again may bear none.
        """
        self._station.revocation_generation = max(generation, self._station.revocation_generation)
        self.set_generation(generation)
        self._station.ring.forget_previous()
        self._answering.drop_answers()

    def set_epoch_key(
        self, network_id: bytes, network_generation: int, epoch: int, key: bytes, *, now_s: float | None = None
    ) -> None:
        """Host a network, or move it to a new epoch. Raises ExchangeError when that goes back.

        With `now_s` the epoch before is let in for ten more seconds (never after a revocation).
        """
        self._station.ring.set_key(network_id, network_generation, epoch, key, now_s)

    def remove_network(self, network_id: bytes) -> None:
        """The network is no longer hosted here."""
        self._station.ring.remove(network_id)

    def clear_epoch_keys(self) -> None:
        """The lease ended: no SA can be offered or taken until keys come with a new one."""
        self._station.ring.clear()
        self._answering.void(_everyone)

    def void_offers(self, device: str) -> None:
        """The SAs offered to `device` are gone: what promised them is neither repeated nor confirmed."""
        self._answering.void(lambda other: other == device)

    def expire(self, now_s: float) -> None:
        """Drop whatever is past its deadline. Every call below does it too; a shell calls it every few seconds."""
        self._asking.expire(now_s)
        self._answering.expire(now_s)

    # --- A, the sender of packets ----------------------------------------------------------------

    def next_request_s(self, device: str) -> float:
        """Earliest moment at which this device takes another request of ours."""
        return self._asking.next_request_s(device)

    def request(
        self, device: str, wants: Sequence[SaWant], *, now_s: float, request_id: bytes, kem_private_key: KemKey
    ) -> bytes:
        """Return the sa-request for `device`. `request_id` is 16 random octets, the KEM key fresh.

        Raises ExchangeError when the device is no live peer, two requests to it wait already, or a network is
        not hosted on both sides in an epoch in force; ValueError for wants that no message can hold.
        """
        self.expire(now_s)
        return self._asking.request(device, wants, now_s=now_s, request_id=request_id, kem_key=kem_private_key)

    def installed(self, offer_hash: bytes, results: Sequence[int], *, now_s: float) -> bytes:
        """Return the sa-installed for an Install event. `results`, in its order: 0 refused, else in use.

        The SPIs that the worker answers with can be passed as they are. Raises ExchangeError when the exchange
        ended meanwhile (peer removed, too late), ValueError for another number of results.
        """
        self.expire(now_s)
        return self._asking.installed(offer_hash, results)

    # --- B, the receiver of packets --------------------------------------------------------------

    def offer(self, request_hash: bytes, grants: Sequence[SaGrant], *, now_s: float) -> bytes:
        """Return the sa-offer for an Allocate event, one grant per want in its order.

        Raises ExchangeError when the exchange ended meanwhile, an epoch key is no longer in force or the KEM
        key is unusable (all end this request); ValueError when grants do not answer the wants one to one.
        """
        self.expire(now_s)
        return self._answering.offer(request_hash, grants, now_s)

    def decline(self, request_hash: bytes) -> None:
        """The worker allocates nothing for this request; the peer may ask again."""
        self._answering.decline(request_hash)

    def hint(self, device: str, cause: str, *, now_s: float) -> bytes:
        """Return an sa-hint for `device`; `cause` is `rotate` or `restart`.

        Raises ExchangeError when the device is no live peer, ValueError for another cause.
        """
        self.expire(now_s)
        if cause not in messages.CAUSES:
            raise ValueError(f"no such cause: {cause}")
        head = self._station.head(self._station.directory.find(device).party)
        return self._station.sign(messages.HINT, HintMessage(head=head, instance=head.sender.instance, cause=cause))

    # --- both: what arrives ----------------------------------------------------------------------

    def receive(self, device_from: str, envelope: bytes, *, now_s: float) -> Event:
        """Return what to do about an envelope that control says `device_from` sent.

        Raises ExchangeError for anything refused, and then nothing has changed.
        """
        self.expire(now_s)
        message = self._station.open(device_from, envelope)
        self._station.directory.check_domain(message.head)
        match message:
            case Request():
                return self._answering.take_request(device_from, message, envelope_sha256(envelope), now_s)
            case Offer():
                return self._asking.take_offer(device_from, message, envelope_sha256(envelope), now_s)
            case Installed():
                return self._answering.take_installed(device_from, message, now_s)
            case HintMessage():
                return self._take_hint(device_from, message, now_s)

    def _take_hint(self, device: str, message: HintMessage, now_s: float) -> Hint:
        # Control may not have told us a restarted peer's instance yet, so only the devices are compared.
        head, directory = message.head, self._station.directory
        if head.sender.ueid != directory.find(device).party.ueid or message.instance != head.sender.instance:
            raise ExchangeError("the sender is not the peer as it is known now")
        if head.receiver.ueid != self._station.me.ueid:
            raise ExchangeError("the message is not for this device as it is now")
        directory.check_seq(head, messages.HINT)
        if now_s < self._last_hint_s.get(device, float("-inf")) + HINT_INTERVAL_S:
            raise ExchangeError("more than one hint a second")
        directory.note_seq(head, messages.HINT)
        self._last_hint_s[device] = now_s
        return Hint(device=device, instance=message.instance, cause=message.cause)

    def _forget(self, device: str) -> None:
        self._asking.forget(lambda other: other == device)
        self._answering.forget(lambda other: other == device)
        self._last_hint_s.pop(device, None)


def _everyone(_device: str) -> bool:
    return True
