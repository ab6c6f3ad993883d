"""Who counts as a peer: what control lists, what the roster and the peer's own proofs allow, what tables need.

Keeps the newest boot and binding seen of every device, so that nothing goes back. Called by `agent.conversation`,
which writes them down (`agent.floors`) before a peer counts; the checks are `trust.peer.verify_peer`. No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_der_public_key

from ztdpu.agent.configuration import AgentSpec
from ztdpu.agent.journal import log, warn
from ztdpu.errors import EarError, RefusedError
from ztdpu.keys.messages import Party
from ztdpu.keys.parties import Peer
from ztdpu.packet.tables import DeviceTables
from ztdpu.trust.peer import PeerFloor, PeerStatement, VerifiedPeer, verify_peer
from ztdpu.trust.roster import Roster
from ztdpu.v1 import agent_pb2

INSTANCE_OCTETS = 16


class PeerBook:
    """One per daemon."""

    def __init__(
        self,
        spec: AgentSpec,
        *,
        manufacturer_roots: Sequence[x509.Certificate],
        floors: Mapping[str, PeerFloor],
    ) -> None:
        """`floors` are those of the runs before."""
        self._spec = spec
        self._manufacturer_roots = manufacturer_roots
        self._ear_spki = b""
        self._ear_key: ec.EllipticCurvePublicKey | None = None
        self.floors: dict[str, PeerFloor] = dict(floors)
        """The newest accepted of every DeviceID (SHA-256, hexadecimal): a name may get other hardware."""
        self._refused: dict[str, str] = {}
        """Device -> why, so that a refusal is logged once and not with every list."""

    def set_ear_key(self, spki: bytes) -> bool:
        """Take the key of attestation results (SubjectPublicKeyInfo, DER). True when it is another one.

        Raises EarError for what is no P-256 key.
        """
        if not spki or spki == self._ear_spki:
            return False
        try:
            key = load_der_public_key(spki)
        except Exception as error:  # the library raises several types for malformed DER
            raise EarError("control's key for attestation results cannot be read") from error
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
            raise EarError("control's key for attestation results is not on P-256")
        self._ear_spki, self._ear_key = spki, key
        return True

    def judge(
        self,
        peers: Sequence[agent_pb2.Peer],
        *,
        roster: Roster,
        tables: DeviceTables,
        now: datetime,
        withheld: Mapping[str, frozenset[bytes]],
    ) -> dict[str, Peer]:
        """Return the peers that count and share a network with us, by device. Each is judged on its own.

        `withheld` has for each of them the networks that are not to be used with it; one with no other is no peer.
        `now` decides freshness: when control sent the list, or, while control answers, the present.
        """
        needed = networks_by_device(tables)
        live: dict[str, Peer] = {}
        for peer in peers:
            barred = withheld.get(peer.device, frozenset())
            networks = needed.get(peer.device, frozenset()) - barred
            if peer.device == self._spec.device or not networks:
                continue
            try:
                device_id = roster.find_device(peer.device).device_id_sha256.hex()
                verified = self._verify(peer, roster, now, self.floors.get(device_id))
                if len(peer.worker_instance) != INSTANCE_OCTETS:
                    continue  # its worker is not up: it comes with the next list
            except RefusedError as error:
                self._note_refusal(peer.device, f"{error.code}: {error.message}")
                continue
            self._refused.pop(peer.device, None)
            self.floors[device_id] = verified.floor
            hosted = {network.network_id for network in verified.networks}
            party = Party(verified.ueid, verified.binding_sha256, peer.worker_instance)
            live[peer.device] = Peer(peer.device, party, verified.offer_public_key, networks & hosted, barred & hosted)
        return live

    def settle(self, live: Mapping[str, Peer], written: Mapping[str, PeerFloor], *, roster: Roster) -> dict[str, Peer]:
        """Go back to the floors that could be `written`; return the peers of the last `judge` that they cover."""
        kept = {}
        for device, peer in live.items():
            device_id = roster.find_device(device).device_id_sha256.hex()
            if self.floors[device_id] == written.get(device_id):
                kept[device] = peer
            else:
                self._note_refusal(device, "its newest boot and binding cannot be written down")
        self.floors = dict(written)
        return kept

    def _verify(self, peer: agent_pb2.Peer, roster: Roster, now: datetime, floor: PeerFloor | None) -> VerifiedPeer:
        if self._ear_key is None:
            raise EarError("control has not named its key for attestation results yet")
        statement = PeerStatement(
            device=peer.device,
            profile=peer.profile,
            chain=tuple(peer.chain),
            key_binding=peer.key_binding,
            ear=peer.ear,
        )
        return verify_peer(
            statement,
            roster=roster,
            trust_domain=self._spec.trust_domain,
            manufacturer_roots=self._manufacturer_roots,
            ear_key=self._ear_key,
            now=now,
            floor=floor,
        )

    def _note_refusal(self, device: str, why: str) -> None:
        if self._refused.get(device) != why:
            self._refused[device] = why
            warn("peer-refused", peer=device[:64], cause=why)
        if len(self._refused) > 4096:
            self._refused.clear()
            log("peer-refusals-forgotten")


def networks_by_device(tables: DeviceTables) -> dict[str, frozenset[bytes]]:
    """Networks in which each device hosts an endpoint, as far as our tables tell."""
    found: dict[str, set[bytes]] = {}
    for network in tables.networks:
        for route in network.routes:
            found.setdefault(route.device, set()).add(network.network_id)
    return {device: frozenset(networks) for device, networks in found.items()}
