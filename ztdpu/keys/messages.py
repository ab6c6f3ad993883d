"""The four messages of the SA exchange as values and as octets.

    sa-request    [label, H, request id, suite, KEM public key, wants]      "let me send to you"
    sa-offer      [label, H, request hash, sealed]                          "seal with these"
    sa-installed  [label, H, offer hash, results]                           "I do"
    sa-hint       [label, H, instance, cause]                               "please ask again"

H says who speaks to whom, in which incarnation of both, and how up to date the speaker is. Decoding proves
types, lengths, arities and ranges, nothing about truth: `exchange` does that. Octets in a body are decoded
only after their signature was verified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ztdpu.keys import wire
from ztdpu.keys.kem import KEM_PUBLIC_OCTETS, SUITE_IDS
from ztdpu.keys.wire import WireError
from ztdpu.model.sa import SaUse, SaWant

REQUEST, OFFER, INSTALLED, HINT = "sa-request", "sa-offer", "sa-installed", "sa-hint"
CAUSES: Final = ("rotate", "restart")
WANTS_MAX: Final = 64
LANE_MAX: Final = 15
UEID_OCTETS: Final = 33
HASH_OCTETS: Final = 32
ID_OCTETS: Final = 16
_PROTOCOL: Final = 1


@dataclass(frozen=True, slots=True)
class Party:
    """One device in one incarnation."""

    ueid: bytes
    """33 octets: 0x01 and SHA-256 of the DeviceID's SPKI."""
    binding_sha256: bytes
    """SHA-256 of the KeyBinding body whose offer key signs."""
    instance: bytes
    """16 random octets, new at every worker start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """H: the second field of every message."""

    trust_domain: str
    sender: Party
    receiver: Party
    seq: int
    """Rises with every message of the sender's instance."""
    fleet_generation: int
    """Newest generation that the sender has applied."""

    def encode(self) -> bytes:
        """The octets that hashes over H are made of."""
        return wire.encode(self.as_array())

    def as_array(self) -> list[Any]:
        """H as it stands in a message."""
        return [
            _PROTOCOL, self.trust_domain, *_party_array(self.sender), *_party_array(self.receiver), self.seq,
            self.fleet_generation,
        ]  # fmt: skip

    @classmethod
    def from_array(cls, value: Any) -> Head:
        """Raises WireError for a malformed H or another protocol version."""
        protocol, domain, *parties, seq, generation = wire.take_array(value, 10)
        if wire.take_unsigned(protocol) != _PROTOCOL:
            raise WireError("another protocol version")
        return cls(
            trust_domain=wire.take_text(domain),
            sender=_take_party(parties[:3]),
            receiver=_take_party(parties[3:]),
            seq=wire.take_unsigned(seq),
            fleet_generation=wire.take_unsigned(generation),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """sa-request: the sender of packets asks their receiver."""

    head: Head
    request_id: bytes
    kem_public: bytes
    """1216 octets, fresh for this request."""
    wants: tuple[SaWant, ...]

    def encode(self) -> bytes:
        """Return the body."""
        wants = [
            [want.network_id, want.network_generation, want.key_epoch, int(want.use), want.lane] for want in self.wants
        ]
        return wire.encode([REQUEST, self.head.as_array(), self.request_id, SUITE_IDS, self.kem_public, wants])


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """sa-offer: the answer, sealed to the request's KEM key."""

    head: Head
    request_hash: bytes
    sealed: bytes

    def encode(self) -> bytes:
        """Return the body."""
        return wire.encode([OFFER, self.head.as_array(), self.request_hash, self.sealed])


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """sa-installed: one result per offered entry, 1 in use, 0 refused."""

    head: Head
    offer_hash: bytes
    results: tuple[int, ...]

    def encode(self) -> bytes:
        """Return the body."""
        return wire.encode([INSTALLED, self.head.as_array(), self.offer_hash, list(self.results)])


@dataclass(frozen=True, slots=True, kw_only=True)
class HintMessage:
    """sa-hint: the receiver of packets would like to be asked again."""

    head: Head
    instance: bytes
    cause: str
    """One of CAUSES."""

    def encode(self) -> bytes:
        """Return the body."""
        return wire.encode([HINT, self.head.as_array(), self.instance, self.cause])


Message = Request | Offer | Installed | HintMessage


def decode_message(label: str, body: bytes) -> Message:
    """Return the message in a verified body. Raises WireError when it is not exactly what `label` names."""
    fields = wire.decode(body)
    if not isinstance(fields, list) or len(fields) < 2 or fields[0] != label:
        raise WireError("the body is not what its label says")
    head = Head.from_array(fields[1])
    if label == REQUEST:
        return _take_request(head, wire.take_array(fields, 6))
    wire.take_array(fields, 4)
    if label == OFFER:
        request_hash = wire.take_bytes(fields[2], HASH_OCTETS)
        return Offer(head=head, request_hash=request_hash, sealed=wire.take_blob(fields[3]))
    if label == INSTALLED:
        results = tuple(wire.take_unsigned(result, 1) for result in wire.take_rows(fields[3], 1, WANTS_MAX))
        return Installed(head=head, offer_hash=wire.take_bytes(fields[2], HASH_OCTETS), results=results)
    if label == HINT and fields[3] in CAUSES:
        return HintMessage(head=head, instance=wire.take_bytes(fields[2], ID_OCTETS), cause=fields[3])
    raise WireError("unknown label or cause")


def check_wants(wants: Sequence[SaWant]) -> None:
    """Raise WireError unless there are 1 to 64 wants and no network, use and lane is asked for twice."""
    if not 1 <= len(wants) <= WANTS_MAX:
        raise WireError(f"{len(wants)} wants are not 1 to {WANTS_MAX}")
    if len({(want.network_id, want.use, want.lane) for want in wants}) != len(wants):
        raise WireError("the same network, use and lane is wanted twice")


def _take_request(head: Head, fields: list[Any]) -> Request:
    if fields[3] != SUITE_IDS:
        raise WireError("another suite")
    wants = tuple(_take_want(row) for row in wire.take_rows(fields[5], 1, WANTS_MAX))
    check_wants(wants)
    return Request(
        head=head,
        request_id=wire.take_bytes(fields[2], ID_OCTETS),
        kem_public=wire.take_bytes(fields[4], KEM_PUBLIC_OCTETS),
        wants=wants,
    )


def _take_want(row: Any) -> SaWant:
    network_id, generation, epoch, use, lane = wire.take_array(row, 5)
    return SaWant(
        network_id=wire.take_bytes(network_id, ID_OCTETS),
        network_generation=wire.take_unsigned(generation),
        key_epoch=wire.take_unsigned(epoch),
        use=SaUse(wire.take_unsigned(use, max(SaUse))),
        lane=wire.take_unsigned(lane, LANE_MAX),
    )


def _party_array(party: Party) -> list[bytes]:
    return [party.ueid, party.binding_sha256, party.instance]


def _take_party(fields: list[Any]) -> Party:
    ueid, binding, instance = fields
    return Party(
        wire.take_bytes(ueid, UEID_OCTETS), wire.take_bytes(binding, HASH_OCTETS), wire.take_bytes(instance, ID_OCTETS)
    )
