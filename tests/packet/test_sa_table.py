"""The states of receiving SAs, as scripts; and when a sending SA is worn."""

from __future__ import annotations

import pytest

from ztdpu.model.sa import PspVersion, SaUse
from ztdpu.packet.sa_table import Line, SaState, SaTable
from ztdpu.psp import SaKey

LINE = Line("dpu-0", b"B" * 16, SaUse.DATAGRAM, 0)
OTHER = Line("dpu-0", b"R" * 16, SaUse.DATAGRAM, 0)


def key(spi: int) -> SaKey:
    return SaKey(bytes(32), spi, PspVersion.AES_GCM_256)


def offer(table: SaTable, spi: int, line: Line = LINE, now_s: float = 0):
    return table.offer(line, key(spi), now_s)


def test_an_offer_lives_thirty_seconds():
    table = SaTable()
    offer(table, 1)
    assert table.expire(29.9) == []
    assert [(gone.spi, gone.cause) for gone in table.expire(30)] == [(1, "offer-unanswered")]
    assert table.receive == {}


def test_an_active_one_stays_until_its_successor_is_used():
    table = SaTable()
    first = offer(table, 1)
    table.activate(first, 1)
    assert table.expire(10_000) == []
    second = offer(table, 2, now_s=10_000)
    assert first.state is SaState.ACTIVE
    table.activate(second, 10_001)
    assert (first.state, second.state) == (SaState.DRAINING, SaState.ACTIVE)
    assert table.expire(10_005.9) == []
    assert [(gone.spi, gone.cause) for gone in table.expire(10_006)] == [(1, "drained")]


def test_a_late_packet_under_an_older_offer_does_not_take_over():
    table = SaTable()
    first, second = offer(table, 1), offer(table, 2)
    table.activate(second, 1)
    table.activate(first, 2)
    assert (first.state, second.state) == (SaState.DRAINING, SaState.ACTIVE)


def test_activation_is_idempotent():
    table = SaTable()
    first, second = offer(table, 1), offer(table, 2)
    table.activate(first, 1)
    table.activate(second, 2)
    table.activate(first, 3)
    table.activate(second, 4)
    assert (first.state, second.state, first.switched_s) == (SaState.DRAINING, SaState.ACTIVE, 2)


def test_lines_do_not_disturb_each_other():
    table = SaTable()
    blue, red = offer(table, 1), offer(table, 2, OTHER)
    table.activate(blue, 1)
    table.activate(red, 1)
    assert (blue.state, red.state) == (SaState.ACTIVE, SaState.ACTIVE)


@pytest.mark.parametrize(
    ("delete", "left"),
    [
        (lambda table: table.remove_peer("dpu-0"), set()),
        (lambda table: table.remove_peer("dpu-9"), {1, 2, 1 << 31 | 1}),
        (lambda table: table.keep_only(["dpu-0"], [b"B" * 16]), {1, 1 << 31 | 1}),
        (lambda table: table.keep_only([], [b"B" * 16]), set()),
        (lambda table: table.retire_slot(0), {1 << 31 | 1}),
        (lambda table: table.retire_slot(1), {1, 2}),
        (lambda table: table.clear("x"), set()),
    ],
)
def test_deletions(delete, left):
    table = SaTable()
    for sa in (offer(table, 1), offer(table, 2, OTHER), offer(table, 1 << 31 | 1)):
        table.activate(sa, 0)
    gone = {deletion.spi for deletion in delete(table)}
    assert set(table.receive) == left
    assert gone == {1, 2, 1 << 31 | 1} - left


def test_laggards_are_lines_whose_active_sa_is_old():
    table = SaTable()
    table.activate(offer(table, 1), 0)
    assert (table.laggards(0), table.laggards(1)) == ([LINE], [])
    table.activate(offer(table, 1 << 31 | 1), 1)
    assert (table.laggards(0), table.laggards(1)) == ([], [LINE])
    assert table.has_slot(0), "it drains"
    table.expire(6)
    assert not table.has_slot(0)


def install(table: SaTable, spi: int, fingerprint: bytes, line: Line = LINE, **changes):
    fields = {"ttl_s": 100, "soft_limit_octets": 1000, "now_s": 0.0, **changes}
    return table.install(line, key(spi), fingerprint=fingerprint, **fields)


def test_a_sending_sa_wears():
    sa = install(SaTable(), 1, b"a")
    assert not sa.is_worn(99)
    assert sa.is_worn(100)
    sa.octets = 1000
    assert sa.is_worn(0)
    sa.octets, sa.next_iv = 0, (1 << 31) + 1
    assert sa.is_worn(0)
    assert sa.packets == 1 << 31


def test_a_peer_cannot_raise_the_soft_limits_above_ours():
    sa = install(SaTable(), 1, b"a", ttl_s=1 << 40, soft_limit_octets=1 << 60)
    assert (sa.soft_limit_s, sa.soft_limit_octets) == (3600, 1 << 38)


def test_ivs_never_restart_under_one_key():
    table = SaTable()
    install(table, 1, b"a").next_iv = 50
    assert install(table, 1, b"a") is None
    assert table.send[LINE].next_iv == 50
    assert install(table, 1, b"b").next_iv == 1, "the same number from a peer that started anew is another key"


@pytest.mark.parametrize(
    "between",
    [
        lambda table: install(table, 2, b"b"),
        lambda table: table.remove_peer("dpu-0"),
        lambda table: table.keep_only([], []),
        lambda table: table.clear("x"),
    ],
)
def test_a_key_that_was_in_use_once_never_comes_back(between):
    table = SaTable()
    assert install(table, 1, b"a").next_iv == 1
    between(table)
    assert install(table, 1, b"a") is None
    assert install(table, 1, b"c").next_iv == 1


def test_keys_of_one_peer_are_remembered_up_to_a_bound(monkeypatch):
    monkeypatch.setattr("ztdpu.packet.sa_table.KEYS_SEEN_LIMIT", 2)
    table = SaTable()
    assert install(table, 1, b"a")
    assert install(table, 2, b"b")
    assert install(table, 3, b"c") is None
    assert table.send[LINE].key.spi == 2, "what is in use stays"
    other = Line("dpu-1", b"B" * 16, SaUse.DATAGRAM, 0)
    assert table.install(other, key(1), fingerprint=b"a", ttl_s=1, soft_limit_octets=1, now_s=0.0)


def test_hard_limits():
    sa = install(SaTable(), 1, b"a")
    assert not sa.is_exhausted(1, 1 << 40)
    assert sa.is_exhausted(1, (1 << 40) + 1)
    sa.next_iv = (1 << 40) - 3
    assert not sa.is_exhausted(3, 1)
    assert sa.is_exhausted(4, 1)


def test_a_withheld_network_loses_its_sas_and_no_other():
    table = SaTable()
    elsewhere = Line("dpu-1", b"B" * 16, SaUse.DATAGRAM, 0)
    for spi, line in enumerate((LINE, OTHER, elsewhere), 1):
        offer(table, spi, line)
        install(table, spi + 10, bytes([spi]), line=line)
    assert {gone.spi for gone in table.remove_peer("dpu-0", [LINE.network_id])} == {1}
    assert (set(table.receive), set(table.send)) == ({2, 3}, {OTHER, elsewhere})
    assert {gone.spi for gone in table.remove_networks(frozenset({LINE.network_id}))} == {3}
    assert (set(table.receive), set(table.send)) == ({2}, {OTHER})
    assert set(table.datagram_senders) == {("dpu-0", OTHER.network_id)}
