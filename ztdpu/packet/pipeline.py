"""The packet path of one device as one object: frames and datagrams in, frames and datagrams out.

Driven by the worker's loop and by test fabrics: call `begin_batch` with the clocks, read into `read_buffer` or
`receive_buffer`, call `outbound` or `inbound`, and `flush` at the end of a wake-up; `tick` about once a second.
Made of `outbound`, `inbound` and what they share (`station`); this module owns the commands in between: tables,
lease, SAs, master keys. It draws no randomness and reads no clock; master keys come from a function of the
shell and never leave this object.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

from ztdpu.errors import PspError, SaExhaustedError
from ztdpu.model.sa import (
    RETIRE_LEAST_S,
    SOFT_LIMIT_OCTETS,
    SOFT_LIMIT_S,
    PspVersion,
    SaEnd,
    SaGrant,
    SaUse,
)
from ztdpu.model.verdict import Reason
from ztdpu.packet.audit_book import AuditRows
from ztdpu.packet.firewall import Firewall
from ztdpu.packet.forwarding import build_forwarding
from ztdpu.packet.gate import Gate
from ztdpu.packet.inbound import Inbound
from ztdpu.packet.outbound import Outbound
from ztdpu.packet.sa_table import Deletion, Line
from ztdpu.packet.sink import Sink
from ztdpu.packet.station import Station
from ztdpu.packet.tables import DeviceTables
from ztdpu.psp import PspDevice, SaKey


class Pipeline:
    """One device's packet path."""

    def __init__(
        self,
        *,
        device: str,
        sink: Sink,
        new_master_key: Callable[[], bytes],
        pid: int,
        full_checksums: bool = False,
    ) -> None:
        """`new_master_key` returns 32 fresh random octets; `pid` is the process that owns IVs and windows."""
        self._gate = Gate(pid=pid)
        self._station = Station(device=device, gate=self._gate, sink=sink)
        self._outbound = Outbound(self._station, full_checksums=full_checksums)
        self._inbound = Inbound(self._station)
        self._new_master_key = new_master_key
        self._psp = PspDevice(new_master_key())
        self._retire_at_s = 0.0
        self._deadline_s = 0.0
        self._deletions: list[Deletion] = []
        self.counters = self._station.counters
        self.sas = self._station.sas
        self.read_buffer = self._outbound.read_buffer
        self.receive_buffer = self._inbound.receive_buffer
        self.outbound = self._outbound.outbound
        """See `Outbound.outbound`."""
        self.inbound = self._inbound.inbound
        """See `Inbound.inbound`."""
        self.flush = self._outbound.flush
        """See `Outbound.flush`."""

    # --- time ---------------------------------------------------------------------------------

    def begin_batch(self, *, boottime_ns: int, realtime_ns: int, pid: int) -> Reason | None:
        """Compare lease, clocks and process; return why nothing may move, or None. Before every read."""
        before = self._gate.refusal
        refusal = self._gate.begin_batch(boottime_ns=boottime_ns, realtime_ns=realtime_ns, pid=pid)
        if refusal is not before:
            if refusal is Reason.CLOCK_DOUBT:
                self._discard_keys(SaEnd.CLOCK_DOUBT)
            elif refusal is Reason.NO_LEASE:
                self._deletions += self.sas.clear(SaEnd.LEASE_ENDED)
        return refusal

    def tick(self) -> None:
        """What time alone brings: unanswered offers, drained SAs, an old master key, idle flows."""
        now_s = self._gate.now_s
        self._deletions += self.sas.expire(now_s)
        if self._psp.has_previous and (not self.sas.has_slot(self._old_slot) or now_s >= self._retire_at_s):
            self._retire_previous()
        if self._station.firewall is not None:
            self._station.firewall.expire(now_s)

    @property
    def clock_step_ns(self) -> int:
        """The step behind the present clock doubt; 0 without doubt."""
        return self._gate.clock_step_ns

    @property
    def now_s(self) -> float:
        """CLOCK_BOOTTIME of the last `begin_batch`."""
        return self._gate.now_s

    @property
    def refusal(self) -> Reason | None:
        """Why nothing moved at the last `begin_batch`; None when packets may."""
        return self._gate.refusal

    def take_wanted(self) -> list[Line]:
        """Return the lines that need a sending SA, each at most once a second."""
        return self._station.take_wanted()

    def take_audits(self, *, is_last: bool = False) -> AuditRows | None:
        """Return what policies in audit mode would treat otherwise, now and then; `is_last`: all that is left, now."""
        firewall = self._station.firewall
        if firewall is None:
            return None
        return firewall.audits.close() if is_last else firewall.audits.take(self._gate.now_s)

    def take_deletions(self) -> list[Deletion]:
        """Return the receiving SAs that ended by themselves since the last call."""
        deletions, self._deletions = self._deletions, []
        return deletions

    # --- tables and lease ---------------------------------------------------------------------

    @property
    def flow_count(self) -> int:
        """Live flows."""
        return self._station.firewall.flow_count if self._station.firewall is not None else 0

    def apply_tables(self, tables: DeviceTables) -> int:
        """Enforce `tables` from the next packet on; return how many live flows they cut."""
        station = self._station
        self.flush()
        cut = 0
        if station.firewall is None:
            station.firewall = Firewall(tables)
        else:
            cut = station.firewall.swap(tables, self._gate.now_s)
        station.forwarding = build_forwarding(tables)
        self._deletions += self.sas.keep_only(station.forwarding.peers, station.forwarding.networks)
        station.forget_wanted()
        return cut

    def set_lease(self, deadline_boottime_ns: int, *, boottime_ns: int, realtime_ns: int) -> None:
        """Let packets move until the deadline (CLOCK_BOOTTIME); 0 or the past: stop now."""
        self._gate.set_lease(deadline_boottime_ns, boottime_ns=boottime_ns, realtime_ns=realtime_ns)
        self._deadline_s = deadline_boottime_ns / 1e9
        self._station.forget_wanted()

    def cut_endpoint(self, endpoint_id: bytes) -> None:
        """The endpoint's virtual function went away: its flows are over."""
        if self._station.firewall is not None:
            self._station.firewall.cut_endpoint(endpoint_id)

    # --- SAs ----------------------------------------------------------------------------------

    def allocate(self, peer: str, wants: Sequence[tuple[bytes, SaUse, int, PspVersion]]) -> list[SaGrant]:
        """Offer `peer` an SA for each (network id, use, lane, version); all of them or, when refused, none.

        Refused: nothing may move here, a peer or network that the tables do not name, a version that the network
        does not use, SPIs used up.
        """
        if self._gate.refusal is not None or not all(self._is_known(peer, want[0], want[3]) for want in wants):
            return []
        grants = []
        try:
            for network_id, use, lane, version in wants:
                spi, key = self._psp.allocate(version)
                self.sas.offer(Line(peer, network_id, use, lane), SaKey(key, spi, version), self._gate.now_s)
                grants.append(
                    SaGrant(
                        network_id=network_id,
                        use=use,
                        lane=lane,
                        psp_version=version,
                        spi=spi,
                        key=key,
                        ttl_s=SOFT_LIMIT_S,
                        soft_limit_octets=SOFT_LIMIT_OCTETS,
                    )
                )
        except SaExhaustedError:
            # Those offered already are never used and expire.
            return []
        return grants

    def install(self, peer: str, grants: Iterable[SaGrant]) -> list[int]:
        """Seal to `peer` with these from now on; return the SPI of each, 0 where refused."""
        spis = []
        for grant in grants:
            spis.append(0)
            if self._gate.refusal is not None or not self._is_known(peer, grant.network_id, grant.psp_version):
                continue
            try:
                key = SaKey(grant.key, grant.spi, grant.psp_version)
            except PspError:
                continue
            installed = self.sas.install(
                Line(peer, grant.network_id, grant.use, grant.lane),
                key,
                fingerprint=hashlib.sha256(grant.key).digest(),
                ttl_s=grant.ttl_s,
                soft_limit_octets=grant.soft_limit_octets,
                now_s=self._gate.now_s,
            )
            spis[-1] = key.spi if installed is not None else 0
        return spis

    def activate(self, peer: str, spis: Iterable[int]) -> None:
        """`peer` confirmed these; SPIs that are not its own are ignored."""
        for spi in spis:
            sa = self.sas.receive.get(spi)
            if sa is not None and sa.line.peer == peer:
                self.sas.activate(sa, self._gate.now_s)

    def remove_peer(self, peer: str, *, cut_flows: bool, networks: Iterable[bytes] = ()) -> int:
        """Delete every SA with `peer` (in `networks`, if any) at once, and with `cut_flows` its conversations.

        Returns CLOCK_REALTIME in ns of the last packet accepted from it, 0 if there was none.
        """
        self.flush()
        self.sas.remove_peer(peer, networks)
        if cut_flows and self._station.firewall is not None:
            self._station.firewall.cut_device(peer)
        return self._inbound.last_accepted_ns.get(peer, 0)

    def withhold(self, networks: Iterable[bytes]) -> None:
        """Move nothing in these networks from now on, and in those of the last call again that are not named."""
        self.flush()
        self._station.withheld = frozenset(networks)
        self.sas.remove_networks(self._station.withheld)
        self._station.forget_wanted()

    def _is_known(self, peer: str, network_id: bytes, version: int) -> bool:
        forwarding = self._station.forwarding
        if network_id in self._station.withheld:
            return False
        return peer in forwarding.peers and forwarding.networks.get(network_id) == version

    # --- master keys --------------------------------------------------------------------------

    @property
    def key_rotations(self) -> int:
        """Rotations of the master key since the worker started."""
        return self._psp.key_rotations

    @property
    def _old_slot(self) -> int:
        return 1 - self._psp.key_rotations % 2

    def rotate(self, *, is_forced: bool) -> str:
        """Make a new master key active; return "".

        While a peer still sends under the key before the present one, nothing is done and its name is returned,
        unless forced: then its SAs die.
        """
        if self._psp.has_previous:
            laggards = self.sas.laggards(self._old_slot)
            if laggards and not is_forced:
                return laggards[0].peer
            self._retire_previous()
        self._psp.rotate(self._new_master_key())
        now_s = self._gate.now_s
        self._retire_at_s = now_s + max(self._deadline_s - now_s, RETIRE_LEAST_S)
        return ""

    def _retire_previous(self) -> None:
        self._deletions += self.sas.retire_slot(self._old_slot)
        self._psp.retire_previous()

    def _discard_keys(self, cause: SaEnd) -> None:
        self._deletions += self.sas.clear(cause)
        self._psp = PspDevice(self._new_master_key())
