"""Two devices joined by a fabric in memory: packets in, packets out, and every refusal beside its twin that passes."""

from __future__ import annotations

import ipaddress
import struct
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ztdpu.model.flow import Direction
from ztdpu.model.sa import PspVersion, SaUse
from ztdpu.model.verdict import Reason, Verdict
from ztdpu.packet.checksum import checksum, pseudo_header, residue
from ztdpu.packet.pipeline import Pipeline
from ztdpu.packet.sa_table import SaState
from ztdpu.packet.tables import DeviceTables, EndpointTable, NetworkTable, PeerTable, Prefix, Route, Rule
from ztdpu.psp import HEADER_OCTETS, SaKey, seal, unseal

PID = 4711
SECOND = 1_000_000_000
BLUE, RED = b"B" * 16, b"R" * 16
V1 = PspVersion.AES_GCM_256
UNDERLAY = {"dpu-0": ipaddress.ip_address("10.90.0.10").packed, "dpu-1": ipaddress.ip_address("10.90.0.11").packed}
HOSTS = {
    # name: (network, device, addresses); blue and red use the same addresses on purpose
    "blue-0": (BLUE, "dpu-0", ("10.1.0.10", "fd00:1::10")),
    "blue-1": (BLUE, "dpu-1", ("10.1.0.11", "fd00:1::11")),
    "blue-2": (BLUE, "dpu-0", ("10.1.0.12",)),
    "red-0": (RED, "dpu-0", ("10.1.0.10",)),
    "red-1": (RED, "dpu-1", ("10.1.0.11",)),
}


def packed(address: str) -> bytes:
    return ipaddress.ip_address(address).packed


def endpoint_id(name: str) -> bytes:
    return name.encode().ljust(16, b".")


def tables_of(device: str, *, denied: frozenset[str] = frozenset(), hosts=None, peers=True) -> DeviceTables:
    """Everything may talk inside its network, but for the endpoints in `denied`."""
    hosts = HOSTS if hosts is None else hosts
    endpoints = []
    for number, (name, (network, at, addresses)) in enumerate(sorted(hosts.items())):
        if at == device:
            anywhere = (Prefix(address=bytes(4), length=0), Prefix(address=bytes(16), length=0))
            rules = () if name in denied else tuple(
                Rule(rule_id=number * 2 + index + 1, direction=direction, verdict=Verdict.ALLOW, protocol=0, port_first=0, port_last=65535, peers=anywhere)
                for index, direction in enumerate((Direction.EGRESS, Direction.INGRESS))
            )  # fmt: skip
            endpoints.append(
                EndpointTable(
                    endpoint_id=endpoint_id(name),
                    name=name,
                    network_id=network,
                    addresses=tuple(map(packed, addresses)),
                    mtu_octets=8940,
                    rules=rules,
                )
            )
    networks = []
    for network, tenant in ((BLUE, "blue"), (RED, "red")):
        routes = [
            Route(address=packed(address), device=at, endpoint_id=endpoint_id(name))
            for name, (of, at, addresses) in hosts.items()
            if of == network
            for address in addresses
        ]
        networks.append(
            NetworkTable(
                network_id=network,
                generation=1,
                tenant=tenant,
                psp_version=1,
                flow_quota=1000,
                routes=tuple(sorted(routes, key=lambda r: (len(r.address), r.address))),
            )
        )
    others = tuple(
        PeerTable(device=name, underlay_address=address)
        for name, address in UNDERLAY.items()
        if name != device and peers
    )
    return DeviceTables(device=device, networks=tuple(networks), endpoints=tuple(endpoints), peers=others)


class Device:
    """A pipeline, its sink, and hands to feed it."""

    def __init__(self, name: str, **options) -> None:
        self.name = name
        self.sent: list[tuple[bytes, bytes, int]] = []
        self.delivered: list[tuple[bytes, bytes]] = []
        self.link_refuses: Reason | None = None
        self.transmit_works = True
        self.keys = iter(bytes([len(name) + i]) * 31 + name[-1:].encode() for i in range(100))
        self.pipeline = Pipeline(device=name, sink=self, new_master_key=lambda: next(self.keys), pid=PID, **options)
        self.now_ns = 1000 * SECOND
        self.wall_ns = 2_000_000 * SECOND
        self.batch()

    def transmit(self, destination, datagrams, segment_octets):
        assert len(datagrams) <= 65507
        assert -(-len(datagrams) // segment_octets) <= 128
        if self.transmit_works:
            self.sent.append((destination, bytes(datagrams), segment_octets))
        return self.transmit_works

    def deliver(self, endpoint, buffers):
        if self.link_refuses is None:
            self.delivered.append((endpoint, b"".join(buffers)))
        return self.link_refuses

    def batch(self, pid=PID):
        return self.pipeline.begin_batch(boottime_ns=self.now_ns, realtime_ns=self.wall_ns, pid=pid)

    def sleep(self, seconds: float):
        self.now_ns += int(seconds * SECOND)
        self.wall_ns += int(seconds * SECOND)
        self.batch()
        self.pipeline.tick()

    def lease(self, seconds: float = 60):
        self.pipeline.set_lease(self.now_ns + int(seconds * SECOND), boottime_ns=self.now_ns, realtime_ns=self.wall_ns)
        self.batch()

    def give(self, name: str, frame: bytes):
        """A tenant sends a frame."""
        self.pipeline.read_buffer[: len(frame)] = frame
        self.pipeline.outbound(endpoint_id(name), len(frame))
        self.pipeline.flush()

    def take(self, datagrams: bytes, segment_octets: int = 0, source: bytes | None = None):
        """The underlay brings datagrams."""
        self.pipeline.receive_buffer[: len(datagrams)] = datagrams
        other = "dpu-1" if self.name == "dpu-0" else "dpu-0"
        self.pipeline.inbound(len(datagrams), segment_octets, UNDERLAY[other] if source is None else source)

    @property
    def reasons(self) -> Counter:
        return Counter({Reason(word): n for word, n in self.pipeline.counters.by_reason()[0].items()})


def connect(sender: Device, receiver: Device, *networks: bytes) -> list[int]:
    """Give `sender` what it needs to seal to `receiver`."""
    grants = receiver.pipeline.allocate(sender.name, [(network, SaUse.DATAGRAM, 0, V1) for network in networks])
    spis = sender.pipeline.install(receiver.name, grants)
    assert 0 not in spis
    return spis


def pair(**options) -> tuple[Device, Device]:
    first, second = Device("dpu-0", **options), Device("dpu-1", **options)
    for device in (first, second):
        device.pipeline.apply_tables(tables_of(device.name))
        device.lease()
    connect(first, second, BLUE, RED)
    connect(second, first, BLUE, RED)
    return first, second


def carry(sender: Device, receiver: Device) -> None:
    """Move what was sent over the underlay, runs as runs."""
    for destination, datagrams, segment_octets in sender.sent:
        assert destination == UNDERLAY[receiver.name]
        receiver.take(datagrams, segment_octets)
    sender.sent.clear()


def datagrams_of(sender: Device) -> list[bytes]:
    parts = []
    for _, run, size in sender.sent:
        parts += [run[at : at + size] for at in range(0, len(run), size)]
    sender.sent.clear()
    return parts


def ip_packet(source: str, destination: str, protocol: int, transport: bytes) -> bytes:
    src, dst = packed(source), packed(destination)
    if len(src) == 16:
        return struct.pack("!IHBB", 6 << 28, len(transport), protocol, 64) + src + dst + transport
    header = bytearray(struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(transport), 1, 0x4000, 64, protocol, 0) + src + dst)
    header[10:12] = checksum(residue(header)).to_bytes(2, "big")
    return bytes(header) + transport


def udp(source="10.1.0.10", destination="10.1.0.11", payload=b"hello", sport=1111, dport=2222) -> bytes:
    """A frame with a finished checksum and a virtio-net header that asks for nothing."""
    length = 8 + len(payload)
    body = bytearray(struct.pack("!HHHH", sport, dport, length, 0) + payload)
    total = pseudo_header(packed(source) + packed(destination), 17, length) + residue(body)
    body[6:8] = (checksum(total) or 0xFFFF).to_bytes(2, "big")
    return bytes(10) + ip_packet(source, destination, 17, bytes(body))


def tcp(
    source="10.1.0.10",
    destination="10.1.0.11",
    *,
    payload=b"",
    flags=0x10,
    seq=1,
    ack=1,
    gso=0,
    sport=40000,
    dport=5001,
) -> bytes:
    """A frame as a kernel gives it: checksum left to offload, `gso` octets per segment if it is a super-packet."""
    length = 20 + len(payload)
    body = bytearray(
        struct.pack("!HHIIBBHHH", sport, dport, seq & 0xFFFFFFFF, ack & 0xFFFFFFFF, 0x50, flags, 512, 0, 0)
    )
    body[16:18] = pseudo_header(packed(source) + packed(destination), 6, length).to_bytes(2, "big")
    is_v4 = ":" not in source
    ip = 20 if is_v4 else 40
    kind = 0 if not gso else 1 if is_v4 else 4
    virtio = struct.pack("=BBHHHH", 1, kind, ip + 20, gso, ip, 16)
    return virtio + ip_packet(source, destination, 6, bytes(body) + payload)


SYN, ACK, PSH = 0x02, 0x10, 0x08


def shake(
    client: Device, server: Device, source="10.1.0.10", destination="10.1.0.11", names=("blue-0", "blue-1")
) -> None:
    client.give(names[0], tcp(source, destination, flags=SYN, seq=0, ack=0))
    carry(client, server)
    server.give(names[1], tcp(destination, source, flags=SYN | ACK, seq=0, ack=1, sport=5001, dport=40000))
    carry(server, client)
    client.give(names[0], tcp(source, destination, flags=ACK))
    carry(client, server)
    assert len(server.delivered) == 2
    assert len(client.delivered) == 1
    client.delivered.clear()
    server.delivered.clear()


# --- what passes -------------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "destination"), [("10.1.0.10", "10.1.0.11"), ("fd00:1::10", "fd00:1::11")])
def test_a_packet_crosses_and_comes_out_as_it_was(source, destination):
    first, second = pair()
    frame = udp(source, destination)
    first.give("blue-0", frame)
    assert frame[10:] not in first.sent[0][1]
    assert b"hello" not in first.sent[0][1]
    carry(first, second)
    assert second.delivered == [(endpoint_id("blue-1"), frame)]
    assert first.reasons == second.reasons == {Reason.RULE_ALLOWED: 1}
    assert first.pipeline.counters.sealed_packets == second.pipeline.counters.opened_packets == 1


def test_what_is_sent_is_psp_as_anybody_reads_it():
    first, second = pair()
    grant = second.pipeline.allocate("dpu-0", [(BLUE, SaUse.DATAGRAM, 0, V1)])[0]
    assert first.pipeline.install("dpu-1", [grant]) == [grant.spi]
    frame = udp()
    first.give("blue-0", frame)
    opened = unseal(SaKey(grant.key, grant.spi, V1), first.sent[0][1])
    assert opened.payload == frame[10:]
    assert (opened.header.next_header, opened.header.iv, opened.header.spi) == (4, 1, grant.spi)


@pytest.mark.parametrize(("source", "destination"), [("10.1.0.10", "10.1.0.11"), ("fd00:1::10", "fd00:1::11")])
@pytest.mark.parametrize("flags", [ACK, ACK | PSH])
def test_a_super_packet_crosses_as_segments_and_comes_out_as_one(source, destination, flags):
    first, second = pair()
    shake(first, second, source, destination)
    header = 60 if ":" in source else 40
    frame = tcp(source, destination, payload=bytes(range(250)) * 200, flags=flags, gso=1400)
    first.give("blue-0", frame)
    assert len(first.sent) == 1
    assert first.sent[0][2] == 1400 + header + 32
    carry(first, second)
    assert second.delivered == [(endpoint_id("blue-1"), frame)]
    assert second.reasons[Reason.FLOW_ESTABLISHED] == 2 + 36
    assert second.pipeline.counters.opened_packets == 2 + 36


def test_the_largest_super_packet_needs_more_than_one_send():
    first, second = pair()
    shake(first, second)
    frame = tcp(payload=bytes(65535 - 40), gso=600)
    first.give("blue-0", frame)
    assert len(first.sent) == 2
    carry(first, second)
    assert b"".join(frame[50:] for _, frame in second.delivered) == bytes(65535 - 40)


def test_finished_checksums_for_a_peer_that_verifies_each_packet():
    first, second = pair(full_checksums=True)
    shake(first, second)
    first.give("blue-0", tcp(payload=bytes(range(256)) * 40, gso=1000))
    carry(first, second)
    packets = [frame[10:] for _, frame in second.delivered]
    assert len(packets) == 11
    for packet in packets:
        assert (pseudo_header(packet[12:20], 6, len(packet) - 20) + residue(packet[20:])) % 0xFFFF == 0


def test_small_packets_of_one_size_share_a_send():
    first, second = pair()
    for number in range(5):
        frame = udp(payload=bytes([number]) * 8)
        first.pipeline.read_buffer[: len(frame)] = frame
        first.pipeline.outbound(endpoint_id("blue-0"), len(frame))
    assert first.sent == []
    first.pipeline.flush()
    assert len(first.sent) == 1
    carry(first, second)
    assert len(second.delivered) == 5


def test_tenants_with_the_same_addresses_stay_apart():
    first, second = pair()
    first.give("blue-0", udp(payload=b"of blue"))
    first.give("red-0", udp(payload=b"of red"))
    carry(first, second)
    assert [(to, frame[38:]) for to, frame in second.delivered] == [
        (endpoint_id("blue-1"), b"of blue"),
        (endpoint_id("red-1"), b"of red"),
    ]


def test_two_endpoints_of_one_device_meet_both_rule_sets():
    first, _ = pair()
    frame = udp(destination="10.1.0.12")
    first.give("blue-0", frame)
    assert first.delivered == [(endpoint_id("blue-2"), frame)]
    assert first.sent == []

    first.delivered.clear()
    first.pipeline.apply_tables(tables_of("dpu-0", denied=frozenset({"blue-2"})))
    first.give("blue-0", udp(destination="10.1.0.12", sport=3))
    assert first.delivered == []
    assert first.reasons[Reason.NO_RULE] == 1


def test_a_super_packet_between_endpoints_of_one_device_stays_one():
    first, _ = pair()
    first.give("blue-0", tcp(destination="10.1.0.12", flags=SYN, seq=0, ack=0))
    first.give("blue-2", tcp("10.1.0.12", "10.1.0.10", flags=SYN | ACK, seq=0, ack=1, sport=5001, dport=40000))
    first.give("blue-0", tcp(destination="10.1.0.12"))
    frame = tcp(destination="10.1.0.12", payload=bytes(20000), gso=5000)
    first.give("blue-0", frame)
    assert first.delivered[-1] == (endpoint_id("blue-2"), frame)


# --- on the way out -----------------------------------------------------------------------------


def test_nothing_moves_without_tables():
    first = Device("dpu-0")
    first.lease()
    first.give("blue-0", udp())
    assert first.reasons == {Reason.NO_TABLES: 1}
    first.take(bytes(100))
    assert first.reasons == {Reason.NO_TABLES: 2}


def test_nothing_moves_for_an_endpoint_that_the_tables_do_not_name():
    first, _ = pair()
    first.give("stranger", udp())
    assert (first.reasons, first.sent) == ({Reason.NO_TABLES: 1}, [])


def test_a_lease_ends_by_itself_in_both_directions():
    first, second = pair()
    first.give("blue-0", udp())
    waiting = datagrams_of(first)
    second.sleep(29)
    second.take(waiting[0])
    assert len(second.delivered) == 1, "the twin: still leased"
    for device in (first, second):
        device.sleep(60)
    first.give("blue-0", udp())
    second.take(waiting[0])
    assert first.sent == []
    assert first.reasons[Reason.NO_LEASE] == second.reasons[Reason.NO_LEASE] == 1
    assert len(second.delivered) == 1
    assert not second.pipeline.sas.receive
    assert not second.pipeline.sas.send
    assert {gone.cause for gone in second.pipeline.take_deletions()} == {"lease-ended"}


def test_a_deadline_in_the_past_stops_at_once():
    first, _ = pair()
    first.pipeline.set_lease(0, boottime_ns=first.now_ns, realtime_ns=first.wall_ns)
    first.batch()
    first.give("blue-0", udp())
    assert first.reasons == {Reason.NO_LEASE: 1}


def test_a_forked_process_moves_nothing():
    first, _ = pair()
    first.batch(pid=PID + 1)
    first.give("blue-0", udp())
    assert (first.reasons, first.sent) == ({Reason.FORKED: 1}, [])
    first.batch()
    first.give("blue-0", udp())
    assert len(first.sent) == 1


@pytest.mark.parametrize("step_s", [-2.5, 2.5, 86400])
def test_a_stepped_clock_throws_all_keys_away(step_s):
    first, second = pair()
    before = set(first.pipeline.sas.receive)
    first.wall_ns += int(step_s * SECOND)
    assert first.batch() is Reason.CLOCK_DOUBT
    first.give("blue-0", udp())
    assert first.reasons == {Reason.CLOCK_DOUBT: 1}
    assert first.pipeline.clock_step_ns == int(step_s * SECOND)
    assert not first.pipeline.sas.send
    assert {gone.spi for gone in first.pipeline.take_deletions()} == before
    first.wall_ns -= int(step_s * SECOND)
    assert first.batch() is Reason.CLOCK_DOUBT, "doubt does not go away by itself"

    old_master_grant_keys = {sa.key.spi for sa in second.pipeline.sas.send.values()}
    first.lease()
    assert first.batch() is None
    grants = first.pipeline.allocate("dpu-1", [(BLUE, SaUse.DATAGRAM, 0, V1)])
    assert grants[0].spi in old_master_grant_keys, "the numbers start again"
    second.give("blue-1", udp("10.1.0.11", "10.1.0.10"))
    carry(second, first)
    assert first.reasons[Reason.BAD_TAG] == 1, "under another master key"


@pytest.mark.parametrize("step_s", [-1.9, 1.9])
def test_a_small_correction_of_the_clock_is_no_doubt(step_s):
    first, _ = pair()
    first.wall_ns += int(step_s * SECOND)
    assert first.batch() is None


def test_a_foreign_source_address_is_spoofed():
    first, _ = pair()
    first.give("blue-0", udp(source="10.1.0.99"))
    first.give("blue-0", udp(source="10.1.0.12"))
    assert (first.reasons, first.sent) == ({Reason.SPOOFED_SOURCE: 2}, [])


def test_a_denied_endpoint_sends_nothing():
    first, _ = pair()
    first.pipeline.apply_tables(tables_of("dpu-0", denied=frozenset({"blue-0"})))
    first.give("blue-0", udp())
    first.give("red-0", udp())
    assert first.reasons == {Reason.NO_RULE: 1, Reason.RULE_ALLOWED: 1}


def test_an_address_nobody_has_is_no_route():
    first, _ = pair()
    first.give("blue-0", udp(destination="10.1.0.77"))
    assert (first.reasons, first.sent) == ({Reason.NO_ROUTE: 1}, [])


def test_without_an_sa_it_is_dropped_and_the_daemon_asked_once_a_second():
    first, second = pair()
    first.pipeline.sas.clear("test")
    for _ in range(3):
        first.give("blue-0", udp())
    assert (first.reasons, first.sent) == ({Reason.NO_SA: 3}, [])
    assert [(line.peer, line.network_id) for line in first.pipeline.take_wanted()] == [("dpu-1", BLUE)]
    first.sleep(1)
    first.give("blue-0", udp())
    assert len(first.pipeline.take_wanted()) == 1
    connect(first, second, BLUE)
    first.give("blue-0", udp())
    carry(first, second)
    assert len(second.delivered) == 1


def test_a_worn_sa_asks_for_a_successor_and_goes_on():
    first, _ = pair()
    first.lease(7200)
    first.give("blue-0", udp())
    assert first.pipeline.take_wanted() == []
    first.sleep(3600)
    first.give("blue-0", udp())
    assert [line.peer for line in first.pipeline.take_wanted()] == ["dpu-1"]
    assert len(first.sent) == 2


def test_a_hard_limit_is_the_end_of_an_sa():
    first, _ = pair()
    for sa in first.pipeline.sas.send.values():
        sa.octets = (1 << 40) - len(udp()) + 10
    first.give("blue-0", udp())
    first.give("blue-0", udp())
    assert first.reasons == {Reason.RULE_ALLOWED: 1, Reason.SA_EXHAUSTED: 1}


def test_a_send_that_fails_is_counted_as_such():
    first, _ = pair()
    first.transmit_works = False
    first.give("blue-0", udp())
    first.transmit_works = True
    first.give("blue-0", udp())
    assert first.reasons[Reason.SEND_FAILED] == 1
    assert len(first.sent) == 1


def test_the_same_key_is_never_installed_twice():
    first, second = pair()
    grants = second.pipeline.allocate("dpu-0", [(BLUE, SaUse.DATAGRAM, 0, V1)])
    assert first.pipeline.install("dpu-1", grants) == [grants[0].spi]
    assert first.pipeline.install("dpu-1", grants) == [0]


def test_what_no_datagram_can_carry_is_too_big_whatever_the_tables_say():
    first, second = pair()
    shake(first, second)
    tables = tables_of("dpu-0")
    endpoints = tuple(replace(endpoint, mtu_octets=65535) for endpoint in tables.endpoints)
    first.pipeline.apply_tables(replace(tables, endpoints=endpoints))
    first.give("blue-0", udp(payload=bytes(65507)))
    first.give("blue-0", tcp(payload=bytes(65495), gso=65490))
    assert first.reasons[Reason.TOO_BIG] == 2
    assert first.sent == []
    first.give("blue-0", udp(payload=bytes(65507 - 32 - 28)))
    first.give("blue-0", tcp(payload=bytes(65495), gso=65507 - 32 - 40))
    carry(first, second)
    assert len(second.delivered) == 3
    assert b"".join(frame[50:] for _, frame in second.delivered[1:]) == bytes(65495)


# --- on the way in ------------------------------------------------------------------------------


def one_sealed(first: Device, frame: bytes | None = None, name="blue-0") -> bytes:
    first.give(name, udp() if frame is None else frame)
    return datagrams_of(first)[0]


def only_reason(device: Device) -> Reason:
    (reason,) = device.reasons
    return reason


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_flipped_bit_is_refused_and_the_original_passes(data):
    first, second = pair()
    sealed = one_sealed(first)
    bit = data.draw(st.integers(0, len(sealed) * 8 - 1))
    flipped = bytearray(sealed)
    flipped[bit // 8] ^= 1 << bit % 8
    second.take(bytes(flipped))
    assert second.delivered == []
    assert only_reason(second) in {Reason.BAD_TAG, Reason.UNKNOWN_SPI, Reason.SA_MISMATCH, Reason.PSP_MALFORMED}
    second.take(sealed)
    assert len(second.delivered) == 1


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(datagram=st.binary(max_size=200), segment=st.integers(0, 300))
def test_rubbish_never_raises(datagram, segment):
    first, second = pair()
    second.take(datagram, segment)
    assert second.delivered == []
    second.take(one_sealed(first))
    assert len(second.delivered) == 1


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(frame=st.binary(max_size=200), prefix=st.booleans())
def test_a_tenants_rubbish_never_raises(frame, prefix):
    first, _ = pair()
    first.give("blue-0", bytes(10) + b"\x45\0" + frame if prefix else frame)
    assert first.sent == []
    assert sum(first.reasons.values()) == 1
    first.give("blue-0", udp())
    assert len(first.sent) == 1


def test_a_replayed_packet_is_refused():
    first, second = pair()
    sealed = one_sealed(first)
    second.take(sealed)
    second.take(sealed)
    assert len(second.delivered) == 1
    assert second.reasons[Reason.REPLAY_DUPLICATE] == 1


def test_a_packet_behind_the_window_is_too_old():
    first, second = pair()
    old, kept = one_sealed(first), one_sealed(first)
    for sa in first.pipeline.sas.send.values():
        sa.next_iv = 8193
    second.take(one_sealed(first))
    second.take(kept)
    second.take(old)
    assert len(second.delivered) == 2
    assert second.reasons[Reason.REPLAY_TOO_OLD] == 1


def test_the_outer_source_must_be_the_peers():
    first, second = pair()
    sealed = one_sealed(first)
    for source in (packed("10.90.0.12"), b"", packed("fd00::1")):
        second.take(sealed, source=source)
    assert (second.reasons, second.delivered) == ({Reason.WRONG_OUTER_SOURCE: 3}, [])
    second.take(sealed)
    assert len(second.delivered) == 1


def test_an_unknown_spi_is_dropped():
    first, second = pair()
    sealed = one_sealed(first)
    second.take(sealed[:4] + (0x0ABCDEF0).to_bytes(4, "big") + sealed[8:])
    assert second.reasons == {Reason.UNKNOWN_SPI: 1}


def foreign(second: Device, packet: bytes, network=BLUE, **header) -> bytes:
    """What a peer with a good SA but bad intentions could seal."""
    grant = second.pipeline.allocate("dpu-0", [(network, SaUse.DATAGRAM, 0, V1)])[0]
    fields = {"next_header": 4, "version": 1, **header}
    return seal(grant.key, grant.spi, 1, packet, **fields)


def test_the_inner_source_must_live_at_the_peer():
    _, second = pair()
    second.take(foreign(second, udp(source="10.1.0.99")[10:]))
    second.take(foreign(second, udp(source="10.1.0.11", destination="10.1.0.10")[10:]))
    assert (second.reasons, second.delivered) == ({Reason.FOREIGN_SOURCE: 2}, [])
    second.take(foreign(second, udp()[10:]))
    assert len(second.delivered) == 1


def test_the_inner_destination_must_be_an_own_endpoint():
    _, second = pair()
    second.take(foreign(second, udp(destination="10.1.0.12")[10:]))
    second.take(foreign(second, udp(destination="10.1.0.77")[10:]))
    assert (second.reasons, second.delivered) == ({Reason.FOREIGN_DESTINATION: 2}, [])


def test_an_sa_leads_into_its_own_network_only():
    _, second = pair()
    second.take(foreign(second, udp()[10:], network=RED))
    assert [to for to, _ in second.delivered] == [endpoint_id("red-1")]


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"next_header": 253}, Reason.SA_MISMATCH),
        ({"next_header": 17}, Reason.SA_MISMATCH),
        ({"next_header": 41}, Reason.SA_MISMATCH),
        ({"crypt_offset_words": 5}, Reason.SA_MISMATCH),
        ({"cookie": bytes(8)}, Reason.SA_MISMATCH),
        ({}, Reason.RULE_ALLOWED),
    ],
)
def test_what_an_sa_fixes_cannot_differ(header, reason):
    _, second = pair()
    second.take(foreign(second, udp()[10:], **header))
    assert second.reasons == {reason: 1}


def test_malformed_psp():
    first, second = pair()
    sealed = one_sealed(first)
    second.take(b"")
    second.take(sealed[:40])
    second.take(bytes((4, 1, 0, 0x04)) + sealed[4:])
    second.take(bytes((4, 0, 0, 0x05)) + sealed[4:])
    second.take(bytes((4, 1, 0, 0x0D)) + sealed[4:])
    assert second.reasons == {Reason.PSP_MALFORMED: 5}
    second.take(bytes((4, 1, 0, 0x01)) + sealed[4:])
    assert second.reasons[Reason.SA_MISMATCH] == 1, "version 0 under an SA of version 1"


def test_a_stream_sa_opens_no_datagram():
    _, second = pair()
    grant = second.pipeline.allocate("dpu-0", [(BLUE, SaUse.STREAM, 0, V1)])[0]
    second.take(seal(grant.key, grant.spi, 1, udp()[10:], next_header=4, version=1))
    assert second.reasons == {Reason.SA_MISMATCH: 1}


def test_the_receiving_firewall_decides_too():
    first, second = pair()
    second.pipeline.apply_tables(tables_of("dpu-1", denied=frozenset({"blue-1"})))
    first.give("blue-0", udp())
    first.give("red-0", udp())
    carry(first, second)
    assert second.reasons == {Reason.NO_RULE: 1, Reason.RULE_ALLOWED: 1}


@pytest.mark.parametrize("reason", [Reason.ENDPOINT_FULL, Reason.ENDPOINT_DOWN])
def test_a_virtual_function_that_takes_nothing_is_counted(reason):
    first, second = pair()
    second.link_refuses = reason
    first.give("blue-0", udp())
    carry(first, second)
    assert second.reasons == {reason: 1}


def test_one_bad_packet_does_not_cost_its_neighbours():
    first, second = pair()
    shake(first, second)
    first.give("blue-0", tcp(payload=bytes(range(250)) * 40, gso=1000))
    _, run, size = first.sent.pop()
    damaged = bytearray(run)
    damaged[3 * size + 100] ^= 1
    second.take(bytes(damaged), size)
    assert second.reasons[Reason.BAD_TAG] == 1
    assert second.pipeline.counters.opened_packets == 2 + 9
    assert [len(frame) - 50 for _, frame in second.delivered] == [3000, 6000]
    second.take(run, size)
    assert second.reasons[Reason.REPLAY_DUPLICATE] == 9
    assert second.pipeline.counters.opened_packets == 2 + 10


def test_a_run_mixed_of_two_tenants_comes_apart():
    first, second = pair()
    first.give("blue-0", udp(payload=b"blue"))
    first.give("red-0", udp(payload=b"reds"))
    first.give("blue-0", udp(payload=b"more"))
    run = b"".join(datagrams_of(first))
    second.take(run, len(run) // 3)
    assert [(to, frame[38:]) for to, frame in second.delivered] == [
        (endpoint_id("blue-1"), b"blue"),
        (endpoint_id("red-1"), b"reds"),
        (endpoint_id("blue-1"), b"more"),
    ]


# --- SAs, peers, master keys ----------------------------------------------------------------------


def state_of(device: Device, spi: int) -> SaState | None:
    sa = device.pipeline.sas.receive.get(spi)
    return None if sa is None else sa.state


def test_an_offer_becomes_active_with_its_first_packet_and_the_older_one_drains():
    first, second = pair()
    (old,) = connect(first, second, BLUE)
    assert state_of(second, old) is SaState.OFFERED
    under_old = one_sealed(first)
    second.take(under_old)
    assert state_of(second, old) is SaState.ACTIVE
    late = one_sealed(first)

    (new,) = connect(first, second, BLUE)
    second.take(one_sealed(first))
    assert (state_of(second, old), state_of(second, new)) == (SaState.DRAINING, SaState.ACTIVE)
    second.take(late)
    assert len(second.delivered) == 3
    assert state_of(second, old) is SaState.DRAINING
    second.sleep(5)
    assert state_of(second, old) is None
    assert [gone.cause for gone in second.pipeline.take_deletions() if gone.spi == old] == ["drained"]


def test_a_confirmation_activates_what_is_the_peers_own():
    first, second = pair()
    (spi,) = connect(first, second, BLUE)
    second.pipeline.activate("dpu-9", [spi])
    assert state_of(second, spi) is SaState.OFFERED
    second.pipeline.activate("dpu-0", [spi, 99])
    assert state_of(second, spi) is SaState.ACTIVE


def test_an_unanswered_offer_is_forgotten():
    first, second = pair()
    (spi,) = connect(first, second, BLUE)
    sealed = one_sealed(first)
    second.sleep(29.9)
    assert state_of(second, spi) is SaState.OFFERED
    second.sleep(0.2)
    second.take(sealed)
    assert second.reasons == {Reason.UNKNOWN_SPI: 1}


def test_a_removed_peer_is_deaf_and_mute_at_once():
    first, second = pair()
    first.give("blue-0", udp())
    carry(first, second)
    accepted_at = second.wall_ns
    late = one_sealed(first)
    second.sleep(1)
    assert second.pipeline.remove_peer("dpu-0", cut_flows=True) == accepted_at
    assert second.pipeline.flow_count == 0
    second.take(late)
    second.give("blue-1", udp("10.1.0.11", "10.1.0.10", sport=2222, dport=1111))
    assert second.reasons[Reason.UNKNOWN_SPI] == 1
    assert len(second.delivered) == 1
    assert second.sent == []
    assert first.pipeline.remove_peer("dpu-1", cut_flows=True) == 0, "never heard of"


def test_a_stale_peer_is_deaf_and_mute_and_its_flows_wait():
    first, second = pair()
    first.give("blue-0", udp())
    carry(first, second)
    late = one_sealed(first)
    second.pipeline.remove_peer("dpu-0", cut_flows=False)
    second.take(late)
    second.give("blue-1", udp("10.1.0.11", "10.1.0.10", sport=2222, dport=1111))
    assert second.reasons[Reason.UNKNOWN_SPI] == 1
    assert (second.sent, second.pipeline.flow_count) == ([], 1)


def test_nothing_is_offered_to_strangers_or_without_a_lease():
    _, second = pair()
    allocate = second.pipeline.allocate
    assert allocate("dpu-9", [(BLUE, SaUse.DATAGRAM, 0, V1)]) == []
    assert allocate("dpu-0", [(b"X" * 16, SaUse.DATAGRAM, 0, V1)]) == []
    assert allocate("dpu-0", [(BLUE, SaUse.DATAGRAM, 0, PspVersion.AES_GCM_128)]) == []
    assert len(allocate("dpu-0", [(BLUE, SaUse.DATAGRAM, 0, V1)])) == 1
    second.sleep(60)
    assert allocate("dpu-0", [(BLUE, SaUse.DATAGRAM, 0, V1)]) == []


def test_networks_and_peers_that_leave_the_tables_take_their_sas_along():
    first, second = pair()
    sealed_blue, sealed_red = one_sealed(first), one_sealed(first, name="red-0")
    tables = tables_of("dpu-1")
    second.pipeline.apply_tables(
        replace(
            tables,
            networks=tuple(network for network in tables.networks if network.network_id == BLUE),
            endpoints=tuple(endpoint for endpoint in tables.endpoints if endpoint.network_id == BLUE),
        )
    )
    second.take(sealed_red)
    second.take(sealed_blue)
    assert second.reasons == {Reason.UNKNOWN_SPI: 1, Reason.RULE_ALLOWED: 1}
    second.pipeline.apply_tables(tables_of("dpu-1", peers=False))
    assert not second.pipeline.sas.receive
    assert not second.pipeline.sas.send


def test_rotation_makes_before_it_breaks():
    first, second = pair()
    first.lease(3600)
    second.lease(3600)
    (old,) = connect(first, second, BLUE)
    first.give("blue-0", udp())
    carry(first, second)
    assert second.pipeline.rotate(is_forced=False) == ""
    first.give("blue-0", udp())
    carry(first, second)
    assert len(second.delivered) == 2, "the old key still opens"
    assert second.pipeline.rotate(is_forced=False) == "dpu-0", "a sender lags"

    (new,) = connect(first, second, BLUE)
    assert (old >> 31, new >> 31) == (0, 1)
    first.give("blue-0", udp())
    carry(first, second)
    assert len(second.delivered) == 3
    second.sleep(31)
    assert set(second.pipeline.sas.receive) == {new}
    assert second.pipeline.rotate(is_forced=False) == ""
    assert second.pipeline.key_rotations == 2


def test_a_forced_rotation_ends_the_laggard():
    first, second = pair()
    (old,) = connect(first, second, BLUE)
    first.give("blue-0", udp())
    carry(first, second)
    second.pipeline.rotate(is_forced=False)
    assert second.pipeline.rotate(is_forced=True) == ""
    assert state_of(second, old) is None
    first.give("blue-0", udp())
    carry(first, second)
    assert second.reasons[Reason.UNKNOWN_SPI] == 1


def test_a_lagging_master_key_dies_after_the_lease():
    first, second = pair()
    connect(first, second, BLUE)
    first.give("blue-0", udp())
    carry(first, second)
    second.pipeline.rotate(is_forced=False)
    for _ in range(59):
        second.sleep(1)
        second.lease()
    assert len(second.pipeline.sas.receive) == 1
    second.sleep(1.1)
    assert len(second.pipeline.sas.receive) == 0
    assert "master-key-retired" in {gone.cause for gone in second.pipeline.take_deletions()}


def test_every_packet_is_counted_once():
    first, second = pair()
    for number in range(20):
        first.give("blue-0", udp(source="10.1.0.99") if number % 3 == 0 else udp(sport=number + 1))
    sent = datagrams_of(first)
    for number, sealed in enumerate(sent):
        second.take(sealed[:-1] if number % 2 else sealed)
    assert sum(first.reasons.values()) == 20
    assert sum(second.reasons.values()) == len(sent) == 13
    assert HEADER_OCTETS == 16


def test_a_withheld_network_is_dark_in_every_direction_and_comes_back():
    hosts = HOSTS | {"red-2": (RED, "dpu-0", ("10.1.0.12",))}
    first, second = pair()
    for device in (first, second):
        device.pipeline.apply_tables(tables_of(device.name, hosts=hosts))
    connect(first, second, BLUE, RED)
    late = one_sealed(first)
    first.sent.clear()
    second.pipeline.withhold([BLUE])
    second.take(late)
    first.pipeline.withhold([BLUE])
    for name in ("blue-0", "red-0"):
        first.give(name, udp())
        first.give(name, udp(destination="10.1.0.12"))
    assert [endpoint for endpoint, _ in first.delivered] == [endpoint_id("red-2")], "between its own endpoints too"
    assert len(first.sent) == 1, "of red alone"
    assert second.delivered == []
    assert first.pipeline.allocate("dpu-1", [(BLUE, SaUse.DATAGRAM, 0, V1)]) == []
    assert first.pipeline.allocate("dpu-1", [(RED, SaUse.DATAGRAM, 0, V1)])
    first.pipeline.withhold([])
    first.give("blue-0", udp(destination="10.1.0.12"))
    assert first.delivered[-1][0] == endpoint_id("blue-2")
