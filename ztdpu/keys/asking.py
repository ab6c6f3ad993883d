"""The half of the exchange that wants to send packets: request, take the offer, confirm.

Owns requests that wait for an offer, with their KEM keys, and offers whose grants are being installed.
Driven by `exchange`, which has opened the messages handed to `take_offer`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ztdpu.errors import ExchangeError
from ztdpu.keys import messages
from ztdpu.keys.events import Install
from ztdpu.keys.kem import KemKey
from ztdpu.keys.messages import Installed, Offer, Party, Request
from ztdpu.keys.station import Station, envelope_sha256
from ztdpu.keys.wrapping import open_grants
from ztdpu.model.sa import SaWant

REQUEST_LIFE_S: Final = 10.0
"""How long an offer is waited for; the KEM key lives no longer."""
INSTALL_LIFE_S: Final = 30.0
REQUESTS_MAX: Final = 2
"""Per peer, waiting for an offer."""
REQUEST_SPACING_S: Final = 1.25
"""A little over what the peer allows, because the network squeezes messages together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    device: str
    me: Party
    wants: tuple[SaWant, ...]
    kem_key: KemKey
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Installing:
    device: str
    sender: Party
    entries: int
    at_s: float


class Asking:
    """Our requests."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._asked: dict[bytes, _Asked] = {}
        self._installing: dict[bytes, _Installing] = {}
        self._last_s: dict[str, float] = {}

    def pending(self, device: str) -> int:
        """Requests to this device that wait for an offer."""
        return sum(asked.device == device for asked in self._asked.values())

    def next_request_s(self, device: str) -> float:
        """Earliest moment at which the device takes another request of ours."""
        return self._last_s.get(device, float("-inf")) + REQUEST_SPACING_S

    def request(
        self, device: str, wants: Sequence[SaWant], *, now_s: float, request_id: bytes, kem_key: KemKey
    ) -> bytes:
        """See `Exchange.request`."""
        peer = self._station.directory.find(device)
        messages.check_wants(wants)
        for want in wants:
            self._station.check_hosted(peer, want, now_s)
        if self.pending(device) >= REQUESTS_MAX:
            raise ExchangeError("two requests to this peer wait for an answer")
        message = Request(
            head=self._station.head(peer.party),
            request_id=request_id,
            kem_public=kem_key.public_octets,
            wants=tuple(wants),
        )
        envelope = self._station.sign(messages.REQUEST, message)
        self._asked[envelope_sha256(envelope)] = _Asked(
            device=device, me=message.head.sender, wants=message.wants, kem_key=kem_key, at_s=now_s
        )
        self._last_s[device] = now_s
        return envelope

    def take_offer(self, device: str, offer: Offer, offer_hash: bytes, now_s: float) -> Install:
        """Return the grants of an offer that answers a request of ours. Raises ExchangeError."""
        asked = self._asked.get(offer.request_hash)
        if asked is None or asked.device != device:
            raise ExchangeError("no such request waits for an offer")
        self._station.directory.check_sender(offer.head, device, now_s)
        if offer.head.receiver != asked.me:
            raise ExchangeError("the message is not for this device as it is now")
        grants = open_grants(
            offer.sealed,
            asked.wants,
            lambda want: self._station.ring.key_for(want, now_s),
            head=offer.head,
            request_hash=offer.request_hash,
            kem_key=asked.kem_key,
        )
        del self._asked[offer.request_hash]
        self._installing[offer_hash] = _Installing(
            device=device, sender=offer.head.sender, entries=len(grants), at_s=now_s
        )
        return Install(device=device, offer_hash=offer_hash, grants=grants, wants=asked.wants)

    def installed(self, offer_hash: bytes, results: Sequence[int]) -> bytes:
        """See `Exchange.installed`."""
        installing = self._installing.get(offer_hash)
        if installing is None:
            raise ExchangeError("no such offer is being installed")
        if len(results) != installing.entries:
            raise ValueError(f"{len(results)} results for {installing.entries} entries")
        del self._installing[offer_hash]
        flags = tuple(int(result != 0) for result in results)
        message = Installed(head=self._station.head(installing.sender), offer_hash=offer_hash, results=flags)
        return self._station.sign(messages.INSTALLED, message)

    def expire(self, now_s: float) -> None:
        """Drop what is past its deadline."""
        self._asked = {key: asked for key, asked in self._asked.items() if now_s < asked.at_s + REQUEST_LIFE_S}
        self._installing = {key: one for key, one in self._installing.items() if now_s < one.at_s + INSTALL_LIFE_S}

    def forget(self, concerns: Callable[[str], bool]) -> None:
        """Drop everything with the devices that `concerns` names."""
        self._asked = {key: asked for key, asked in self._asked.items() if not concerns(asked.device)}
        self._installing = {key: one for key, one in self._installing.items() if not concerns(one.device)}
        self._last_s = {device: at_s for device, at_s in self._last_s.items() if not concerns(device)}
