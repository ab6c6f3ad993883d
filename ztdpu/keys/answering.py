"""The half of the exchange that will receive packets: judge a request, offer, take the confirmation.

Owns requests whose SPIs the worker is picking, offers that wait for confirmation, and stored answers for
identical requests. Driven by `exchange`, which has opened the messages handed in here. Nothing is allocated
before every check of a request has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ztdpu.errors import ExchangeBusyError, ExchangeError
from ztdpu.keys import messages
from ztdpu.keys.events import Activate, Allocate, Resend
from ztdpu.keys.messages import Installed, Offer, Party, Request
from ztdpu.keys.station import Station, envelope_sha256
from ztdpu.keys.wrapping import seal_grants
from ztdpu.model.sa import OFFER_TTL_S, SaGrant, SaWant

OUTSTANDING_LIFE_S: Final = 10.0
"""How long an unconfirmed request counts against its sender, who waits no longer for the offer."""
OUTSTANDING_MAX: Final = 2
REQUEST_INTERVAL_S: Final = 1.0
ANSWERS_MAX: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answering:
    device: str
    request: Request
    wants: tuple[SaWant, ...]
    """Those that are answered."""
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offered:
    device: str
    me: Party
    spis: tuple[int, ...]
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    device: str
    envelope: bytes
    at_s: float


class Answering:
    """Requests of peers."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._answering: dict[bytes, _Answering] = {}
        self._offered: dict[bytes, _Offered] = {}
        self._answers: dict[bytes, _Answer] = {}
        self._last_s: dict[str, float] = {}

    def take_request(self, device: str, request: Request, request_hash: bytes, now_s: float) -> Allocate | Resend:
        """Judge a request in the order of the protocol. Raises ExchangeError."""
        head, directory = request.head, self._station.directory
        directory.check_sender(head, device, now_s)
        directory.check_receiver(head, now_s)
        if head.fleet_generation < self._station.revocation_generation:
            raise ExchangeError("the sender has not applied the last revocation")
        answer = self._answers.get(request_hash)
        if answer is not None:
            return Resend(device=device, envelope=answer.envelope)
        if request_hash in self._answering:
            raise ExchangeBusyError("the same request is being answered")
        directory.check_seq(head, messages.REQUEST)
        peer = directory.find(device)
        # The asker may not have heard yet of a network that is withheld: it gets the others.
        wants = tuple(want for want in request.wants if want.network_id not in peer.withheld)
        if not wants:
            raise ExchangeError("every wanted network is withheld")
        for want in wants:
            self._station.check_hosted(peer, want, now_s)
        if self._outstanding(device, now_s) >= OUTSTANDING_MAX:
            raise ExchangeError("two requests of this peer are outstanding")
        if now_s < self._last_s.get(device, float("-inf")) + REQUEST_INTERVAL_S:
            raise ExchangeError("more than one request a second")
        directory.note_seq(head, messages.REQUEST)
        self._last_s[device] = now_s
        self._answering[request_hash] = _Answering(device=device, request=request, wants=wants, at_s=now_s)
        return Allocate(device=device, request_hash=request_hash, wants=wants)

    def offer(self, request_hash: bytes, grants: Sequence[SaGrant], now_s: float) -> bytes:
        """See `Exchange.offer`."""
        answering = self._answering.get(request_hash)
        if answering is None:
            raise ExchangeError("no such request is being answered")
        request = answering.request
        if [_place(want) for want in answering.wants] != [_place(grant) for grant in grants]:
            raise ValueError("the grants do not answer the wants one to one")
        del self._answering[request_hash]
        head = self._station.head(request.head.sender)
        sealed = seal_grants(
            answering.wants,
            grants,
            [self._station.ring.key_for(want, now_s) for want in answering.wants],
            head=head,
            request_hash=request_hash,
            kem_public=request.kem_public,
        )
        message = Offer(head=head, request_hash=request_hash, sealed=sealed)
        envelope = self._station.sign(messages.OFFER, message)
        spis = tuple(grant.spi for grant in grants)
        self._offered[envelope_sha256(envelope)] = _Offered(
            device=answering.device, me=head.sender, spis=spis, at_s=now_s
        )
        self._answers[request_hash] = _Answer(device=answering.device, envelope=envelope, at_s=now_s)
        if len(self._answers) > ANSWERS_MAX:
            del self._answers[next(iter(self._answers))]
        return envelope

    def decline(self, request_hash: bytes) -> None:
        """See `Exchange.decline`."""
        self._answering.pop(request_hash, None)

    def take_installed(self, device: str, message: Installed, now_s: float) -> Activate:
        """Return the SPIs that the peer confirmed. Raises ExchangeError."""
        offered = self._offered.get(message.offer_hash)
        if offered is None or offered.device != device:
            raise ExchangeError("no such offer waits for confirmation")
        self._station.directory.check_sender(message.head, device, now_s)
        if message.head.receiver != offered.me:
            raise ExchangeError("the message is not for this device as it is now")
        if len(message.results) != len(offered.spis):
            raise ExchangeError("the confirmation does not answer the offer one to one")
        del self._offered[message.offer_hash]
        spis = tuple(spi for spi, result in zip(offered.spis, message.results, strict=True) if result)
        return Activate(device=device, spis=spis)

    def drop_answers(self) -> None:
        """After a revocation no stored answer is given again."""
        self._answers.clear()

    def expire(self, now_s: float) -> None:
        """Drop what is past its deadline."""
        self._answering = {key: one for key, one in self._answering.items() if now_s < one.at_s + OUTSTANDING_LIFE_S}
        self._offered = {key: one for key, one in self._offered.items() if now_s < one.at_s + OFFER_TTL_S}
        self._answers = {key: one for key, one in self._answers.items() if now_s < one.at_s + OFFER_TTL_S}

    def forget(self, concerns: Callable[[str], bool]) -> None:
        """Drop everything with the devices that `concerns` names."""
        self.void(concerns)
        self._last_s = {device: at_s for device, at_s in self._last_s.items() if not concerns(device)}

    def void(self, concerns: Callable[[str], bool]) -> None:
        """Drop requests, offers and stored answers of these devices; how fast they may ask is kept."""
        self._answering = {key: one for key, one in self._answering.items() if not concerns(one.device)}
        self._offered = {key: one for key, one in self._offered.items() if not concerns(one.device)}
        self._answers = {key: one for key, one in self._answers.items() if not concerns(one.device)}

    def _outstanding(self, device: str, now_s: float) -> int:
        answering = sum(one.device == device for one in self._answering.values())
        return answering + sum(
            one.device == device and now_s < one.at_s + OUTSTANDING_LIFE_S for one in self._offered.values()
        )


def _place(entry: SaWant | SaGrant) -> tuple[bytes, int, int]:
    return entry.network_id, entry.use, entry.lane
