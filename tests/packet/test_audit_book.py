"""What audit mode saw: added up, bounded, fair, and never for packets of live flows."""

from __future__ import annotations

from collections import Counter

from tests.policy.test_rows import OPEN, act, cnp, world
from tests.policy.worlds import make_packet
from ztdpu.model.flow import Direction
from ztdpu.model.verdict import Reason, Verdict
from ztdpu.packet.audit_book import ENDPOINT_ROWS, INTERVAL_S, ROWS_LIMIT, AuditBook, Sighting
from ztdpu.packet.firewall import Firewall
from ztdpu.packet.headers import Packet, parse
from ztdpu.policy.compile import Compiler, assumed_networks


def seen(port: int) -> Sighting:
    return Sighting(Direction.EGRESS, bytes(4), 6, port, Reason.AUDIT_WOULD_DROP, 7)


def test_equal_sightings_are_one_row_and_come_at_intervals():
    book = AuditBook()
    assert book.take(10.0) is None
    for _ in range(3):
        book.note("red", "red-0", seen(80))
    (row,) = book.take(10.0).rows
    assert (row.tenant, row.endpoint, row.sighting.port, row.packets) == ("red", "red-0", 80, 3)
    book.note("red", "red-0", seen(80))
    assert book.take(10.0 + INTERVAL_S / 2) is None, "too early"
    assert book.take(10.0 + INTERVAL_S).rows[0].packets == 1
    assert book.take(100.0) is None


def test_one_who_tries_every_port_costs_its_own_rows_only():
    book = AuditBook()
    for port in range(20_000):
        book.note("red", "scanner", seen(port))
    book.note("blue", "quiet", seen(1))
    taken = book.take(0.0)
    assert Counter(row.endpoint for row in taken.rows) == {"scanner": ENDPOINT_ROWS, "quiet": 1}
    assert taken.uncounted == 20_000 - ENDPOINT_ROWS


def test_no_hand_over_is_long_and_everybody_has_a_turn():
    book, now_s, turns = AuditBook(), 0.0, Counter()
    for _ in range(10):
        for name in range(20):
            for port in range(ENDPOINT_ROWS):
                book.note("red", f"red-{name}", seen(port))
        taken = book.take(now_s)
        now_s += INTERVAL_S
        assert len(taken.rows) == ROWS_LIMIT
        turns.update({row.endpoint for row in taken.rows})
    assert set(turns.values()) == {2}


def test_nothing_is_lost_unsaid_when_the_tables_change():
    book = AuditBook()
    for name in range(20):
        for port in range(ENDPOINT_ROWS + 1):
            book.note("red", f"red-{name}", seen(port))
    book.take(0.0)
    rest = book.close()
    told = ROWS_LIMIT + 20  # by `take`
    assert len(rest.rows) == ROWS_LIMIT
    assert told + sum(row.packets for row in rest.rows) + rest.uncounted == 20 * (ENDPOINT_ROWS + 1)
    assert book.close() is None


def test_first_packets_are_noted_and_those_of_live_flows_are_not():
    cluster = world(OPEN, cnp("Admin", 1, mode="audit", ingress=[act("Deny", 80)]))
    compiler = Compiler(cluster, assumed_networks(cluster))
    at = {one.name: one.device for one in cluster.endpoints.values()}
    tables, origins = compiler.tables(at["a1"])
    wall = Firewall(tables)
    table = next(one for one in tables.endpoints if one.name == "a1")

    def send(port: int, source_port: int) -> Verdict:
        packet, octets = Packet(), make_packet(bytes((10, 0, 1, 1)), table.addresses[0], 6, port, source_port)
        assert parse(packet, octets, 0, len(octets)) is None
        return wall.ingress(table.endpoint_id, packet, 1.0).verdict

    assert [send(80, source) for source in (5000, 5000, 5000, 5001)] == [Verdict.AUDIT] * 4
    assert send(81, 5000) is Verdict.ALLOW
    (row,) = wall.audits.take(1.0).rows
    assert (row.endpoint, row.sighting.port, row.packets) == ("a1", 80, 2), "two flows, four packets"
    assert row.sighting.reason is Reason.AUDIT_WOULD_DROP
    assert origins[row.sighting.rule_id].is_audit
