"""Messages between the agent daemon and its worker, over a SOCK_SEQPACKET pair.

One datagram is one message: a CBOR array `[word, field, ...]`, fields in the order of the dataclass.
Descriptors (the TUN of an endpoint, the memfd of a tables blob) ride as SCM_RIGHTS. Master keys never
cross it; SA keys do, once, because the exchange that wraps them for a peer runs in the daemon.

Used by `agent.daemon` (asyncio side) and `agent.worker` (epoll side); does no I/O itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Final

import cbor2

from ztdpu.errors import StateError
from ztdpu.psp import UDP_PORT

MESSAGE_LIMIT_OCTETS: Final = 128 * 1024
"""No message is longer; tables travel in a memfd."""


@dataclass(frozen=True, slots=True)
class Message:
    """Base of all mailbox messages; `WORD` names it on the wire."""

    WORD: ClassVar[str] = ""


# --- daemon to worker -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Configure(Message):
    """First message: where this device stands on the underlay."""

    WORD: ClassVar[str] = "configure"
    device: str
    underlay_address: str
    """IPv4 or IPv6 address to bind."""
    underlay_mtu_octets: int
    """Tables whose endpoints need more are refused."""
    underlay_port: int = UDP_PORT
    """UDP port of PSP, here and at every peer."""


@dataclass(frozen=True, slots=True)
class AttachEndpoint(Message):
    """A TUN descriptor (one SCM_RIGHTS fd) for an endpoint; replaces an earlier one."""

    WORD: ClassVar[str] = "attach-endpoint"
    endpoint_id: bytes


@dataclass(frozen=True, slots=True)
class DetachEndpoint(Message):
    """Close the endpoint's TUN and cut its flows."""

    WORD: ClassVar[str] = "detach-endpoint"
    endpoint_id: bytes


@dataclass(frozen=True, slots=True)
class ApplyTables(Message):
    """Canonical tables in a memfd (one SCM_RIGHTS fd). Answered by TablesApplied or TablesRefused."""

    WORD: ClassVar[str] = "apply-tables"
    generation: int
    revision: bytes
    """SHA-256 of the blob; the worker checks it."""


@dataclass(frozen=True, slots=True)
class SetLease(Message):
    """Until when packets may move; an earlier deadline than now means stop."""

    WORD: ClassVar[str] = "set-lease"
    deadline_boottime_ns: int
    """Absolute, CLOCK_BOOTTIME. 0: no lease."""


@dataclass(frozen=True, slots=True)
class AllocateSas(Message):
    """The peer asked to send to us: pick SPIs and derive keys. Answered by SasAllocated."""

    WORD: ClassVar[str] = "allocate-sas"
    token: int
    peer: str
    wants: list[list[Any]]
    """[[network_id, use, lane, psp_version], ...]"""


@dataclass(frozen=True, slots=True)
class InstallSas(Message):
    """The peer allows us to send: seal with these from now on. Answered by SasInstalled."""

    WORD: ClassVar[str] = "install-sas"
    token: int
    peer: str
    grants: list[list[Any]] = field(repr=False)
    """[[network_id, use, lane, psp_version, spi, key, ttl_s, soft_limit_octets], ...]"""


@dataclass(frozen=True, slots=True)
class ActivateSas(Message):
    """The peer confirmed that it installed what we offered: OFFERED -> ACTIVE, older -> DRAINING."""

    WORD: ClassVar[str] = "activate-sas"
    peer: str
    spis: list[int]


@dataclass(frozen=True, slots=True)
class RemovePeer(Message):
    """Delete every SA with this device at once. Answered by PeerRemoved."""

    WORD: ClassVar[str] = "remove-peer"
    token: int
    peer: str
    cut_flows: bool
    """It was shut out: its conversations are over too. Else they wait for new SAs, as through any outage."""
    networks: list[bytes] = field(default_factory=list)
    """Only SAs of these networks; none named: of all."""


@dataclass(frozen=True, slots=True)
class SetWithheld(Message):
    """Networks that are not for this device now: nothing of them moves, not even between its own endpoints."""

    WORD: ClassVar[str] = "set-withheld"
    networks: list[bytes]


@dataclass(frozen=True, slots=True)
class RotateMasterKey(Message):
    """New master key into the other slot; answered by MasterKeyRotated."""

    WORD: ClassVar[str] = "rotate-master-key"
    force: bool


@dataclass(frozen=True, slots=True)
class GetStatistics(Message):
    """Answered by Statistics."""

    WORD: ClassVar[str] = "get-statistics"
    token: int


# --- worker to daemon -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerReady(Message):
    """The worker runs: fresh master keys, no SA, no lease."""

    WORD: ClassVar[str] = "worker-ready"
    instance: bytes
    """16 random octets of this start."""


@dataclass(frozen=True, slots=True)
class TablesApplied(Message):
    """Swapped between two packets; live flows re-checked."""

    WORD: ClassVar[str] = "tables-applied"
    generation: int
    revision: bytes
    flows_cut: int


@dataclass(frozen=True, slots=True)
class TablesRefused(Message):
    """The tables before stay in force."""

    WORD: ClassVar[str] = "tables-refused"
    generation: int
    message: str


@dataclass(frozen=True, slots=True)
class SasWanted(Message):
    """Packets wait for an SA, or one is near its end; at most one a second per peer and network."""

    WORD: ClassVar[str] = "sas-wanted"
    peer: str
    network_id: bytes
    use: int


@dataclass(frozen=True, slots=True)
class SasAllocated(Message):
    """What AllocateSas asked for, in its order; empty when refused (no lease, unknown network, exhausted)."""

    WORD: ClassVar[str] = "sas-allocated"
    token: int
    grants: list[list[Any]] = field(repr=False)
    """[[network_id, use, lane, psp_version, spi, key, ttl_s, soft_limit_octets], ...]"""


@dataclass(frozen=True, slots=True)
class SasInstalled(Message):
    """SPIs in use now, in the order of InstallSas; 0 where refused."""

    WORD: ClassVar[str] = "sas-installed"
    token: int
    spis: list[int]


@dataclass(frozen=True, slots=True)
class SaDeleted(Message):
    """A receive SA ended by itself; the peer may go on sealing to it until it is told."""

    WORD: ClassVar[str] = "sa-deleted"
    peer: str
    spi: int
    cause: str
    """A word of `model.sa.SaEnd`."""


@dataclass(frozen=True, slots=True)
class PeerRemoved(Message):
    """Nothing of that peer is accepted from here on."""

    WORD: ClassVar[str] = "peer-removed"
    token: int
    peer: str
    last_packet_realtime_ns: int
    """CLOCK_REALTIME of the last packet accepted from it; 0 if there was none."""


@dataclass(frozen=True, slots=True)
class MasterKeyRotated(Message):
    """The other slot is active; peers should ask again. `refused` names a lagging sender, else empty."""

    WORD: ClassVar[str] = "master-key-rotated"
    refused: str


@dataclass(frozen=True, slots=True)
class EndpointDown(Message):
    """The TUN is gone or unusable (a tenant may delete it)."""

    WORD: ClassVar[str] = "endpoint-down"
    endpoint_id: bytes
    cause: str


@dataclass(frozen=True, slots=True)
class AuditNoted(Message):
    """First packets that policies in audit mode would treat otherwise; every two seconds at most, and before a swap."""

    WORD: ClassVar[str] = "audit-noted"
    revision: bytes
    """Of the tables whose row numbers these are."""
    rows: list[list[Any]]
    """[[tenant, endpoint, direction, peer (packed), protocol, port, reason, rule id or None, packets], ...]"""
    uncounted: int
    """Packets beyond what rows there were for."""


@dataclass(frozen=True, slots=True)
class ClockDoubt(Message):
    """The clock stepped: SAs and master keys are gone, nothing moves until a new lease."""

    WORD: ClassVar[str] = "clock-doubt"
    step_ms: int


@dataclass(frozen=True, slots=True)
class Statistics(Message):
    """Counters since the worker started."""

    WORD: ClassVar[str] = "statistics"
    token: int
    packets_by_reason: dict[str, int]
    octets_by_reason: dict[str, int]
    sealed_packets: int
    """PSP packets sent (segments)."""
    sealed_octets: int
    opened_packets: int
    opened_octets: int
    flows: int
    send_sas: list[list[Any]]
    """[[peer, network_id, use, lane, spi, packets, octets, age_ms], ...]"""
    receive_sas: list[list[Any]]
    """[[peer, network_id, use, lane, spi, state word, packets, octets, age_ms], ...]"""
    resident_octets: int


MESSAGES: Final[Mapping[str, type[Message]]] = MappingProxyType(
    {
        kind.WORD: kind
        for kind in (
            Configure, AttachEndpoint, DetachEndpoint, ApplyTables, SetLease, AllocateSas, InstallSas, ActivateSas,
            RemovePeer, SetWithheld, RotateMasterKey, GetStatistics, WorkerReady, TablesApplied, TablesRefused,
            SasWanted, SasAllocated, SasInstalled, SaDeleted, PeerRemoved, MasterKeyRotated, EndpointDown, AuditNoted,
            ClockDoubt, Statistics,
        )
    }
)  # fmt: skip


def encode(message: Message) -> bytes:
    """Return the datagram for `message`."""
    fields = [getattr(message, field.name) for field in dataclasses.fields(message)]
    return cbor2.dumps([message.WORD, *fields])


def decode(datagram: bytes) -> Message:
    """Return the message in `datagram`.

    Both ends are ours and started together, so anything odd is a defect: StateError, and the caller ends.
    """
    try:
        word, *fields = cbor2.loads(datagram)
        return MESSAGES[word](*fields)
    except (cbor2.CBORDecodeError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"mailbox message not understood: {error}", remedy="restart the agent") from error
