"""The store on a real SQLite file: what is committed stays, what fails leaves nothing, generations never go back."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ztdpu.control.audit import AuditEvent, AuditOutcome
from ztdpu.control.devices.record import AnsweredRequest, DeviceRecord, JoinTokenRecord, StoredBinding
from ztdpu.control.store import sql
from ztdpu.control.store.sql import SqlStore, open_sqlite
from ztdpu.errors import ConflictError, StateError
from ztdpu.model.device import DeviceState

RECORD = DeviceRecord(name="dpu-0", state=DeviceState.PENDING, since_unix_ms=5, reason="new")
EVENT = AuditEvent(actor="a", role="operator", action="x", subject="y", outcome=AuditOutcome.DONE, reason="r")


def binding(number: int, *, device: str = "dpu-0") -> StoredBinding:
    octets = bytes([number]) * 32
    return StoredBinding(
        binding_sha256=octets,
        device=device,
        envelope=b"e",
        chain=(b"root", b"leaf"),
        alias_spki_sha256=octets,
        boot_counter=number,
        boot_nonce=b"n" * 16,
        sequence=1,
        tls_spki=b"t",
        tls_spki_sha256=octets,
        offer_spki=b"o",
        offer_spki_sha256=bytes([number + 100]) * 32,
        ttl_s=60,
        expires_unix_s=9,
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    store = open_sqlite(tmp_path / "control.db")
    yield store
    store.close()


def test_what_can_do_nothing_any_more_is_pruned(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "BINDINGS_KEPT", 3)
    monkeypatch.setattr(sql, "REQUESTS_KEPT", 3)
    day_ms = sql.TOKENS_KEPT_MS
    with store.transaction() as transaction:
        for number in range(1, 10):
            transaction.put_binding(binding(number))
        transaction.put_binding(binding(50, device="dpu-1"))
        transaction.retire_bindings("dpu-1", denied=True)
        for number, expires in ((1, 10), (2, day_ms + 10)):
            transaction.put_token(
                JoinTokenRecord(token_sha256=bytes([number]) * 32, device="dpu-0", expires_unix_ms=expires)
            )
        for number in range(6):
            transaction.put_answer(
                AnsweredRequest(request_id=f"r-{number}", actor="a", method="m", request_sha256=b"h" * 32, answer=b"{}")
            )
    with store.transaction() as transaction:
        assert transaction.prune(now_unix_ms=day_ms + 20) == 5 + 1 + 3
        assert [one.boot_counter for one in transaction.list_bindings("dpu-0")] == [6, 7, 8, 9]
        assert [one.denied for one in transaction.list_bindings("dpu-1")] == [True]
        newest = transaction.get_newest_binding("dpu-0")
        assert newest is not None
        assert (newest.boot_counter, newest.live) == (9, True)
        assert transaction.get_newest_binding("dpu-9") is None
        assert transaction.get_token(b"\1" * 32) is None
        assert transaction.get_token(b"\2" * 32) is not None
        assert [transaction.get_answer(f"r-{n}") is not None for n in range(6)] == [False] * 3 + [True] * 3
        assert transaction.prune(now_unix_ms=day_ms + 20) == 0


def test_settings_and_rights(store: SqlStore, tmp_path: Path) -> None:
    path = tmp_path / "control.db"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with store._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_device_round_trip_and_reopening(store: SqlStore, tmp_path: Path) -> None:
    record = replace(RECORD, device_id_sha256=b"d" * 32, version=3, boot_counter=1 << 61)
    with store.transaction() as transaction:
        transaction.put_device(RECORD)
        transaction.put_device(record)
    store.close()
    again = open_sqlite(tmp_path / "control.db")
    with again.transaction() as transaction:
        assert transaction.list_devices() == [record]
        assert transaction.get_device("dpu-1") is None
    again.close()


def test_error_leaves_nothing(store: SqlStore) -> None:
    def fail() -> None:
        with store.transaction() as transaction:
            transaction.put_device(RECORD)
            transaction.append_audit(EVENT, now_unix_ms=1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with store.transaction() as transaction:
        assert transaction.get_device("dpu-0") is None
        assert transaction.count_audit() == 0


def test_one_device_id_is_one_device(store: SqlStore) -> None:
    with store.transaction() as transaction:
        transaction.put_device(replace(RECORD, device_id_sha256=b"d" * 32))
        transaction.put_device(replace(RECORD, name="dpu-2"))
        transaction.put_device(replace(RECORD, name="dpu-3"))
    with pytest.raises(ConflictError), store.transaction() as transaction:
        transaction.put_device(replace(RECORD, name="dpu-1", device_id_sha256=b"d" * 32))


def test_exactly_one_live_binding(store: SqlStore) -> None:
    with store.transaction() as transaction:
        transaction.put_binding(binding(1))
        transaction.put_binding(binding(2))
        assert [one.live for one in transaction.list_bindings("dpu-0")] == [False, True]
        assert transaction.get_binding(binding(2).binding_sha256) == binding(2)
    with pytest.raises(ConflictError), store.transaction() as transaction:
        transaction.put_binding(binding(2))
    with store.transaction() as transaction:
        transaction.retire_bindings("dpu-0", denied=True)
        assert [(one.live, one.denied) for one in transaction.list_bindings("dpu-0")] == [(False, True)] * 2


def test_key_owners_in_every_use(store: SqlStore) -> None:
    with store.transaction() as transaction:
        transaction.put_binding(binding(1))
        for key in (binding(1).tls_spki_sha256, binding(1).offer_spki_sha256, binding(1).alias_spki_sha256):
            assert [one.device for one in transaction.find_key_owners({key})] == ["dpu-0"]
        assert not transaction.find_key_owners({b"?" * 32})


@pytest.mark.parametrize(("device", "now", "spent"), [("dpu-0", 9, True), ("dpu-1", 9, False), ("dpu-0", 10, False)])
def test_token(device: str, now: int, spent: bool, store: SqlStore) -> None:
    token = JoinTokenRecord(token_sha256=b"t" * 32, device="dpu-0", expires_unix_ms=10)
    with store.transaction() as transaction:
        transaction.put_token(token)
    if spent:
        with store.transaction() as transaction:
            transaction.use_token(b"t" * 32, device=device, now_unix_ms=now)
    with pytest.raises(ConflictError), store.transaction() as transaction:
        transaction.use_token(b"t" * 32, device=device, now_unix_ms=now)


def test_generation_never_goes_back(store: SqlStore) -> None:
    with store.transaction() as transaction:
        given = [transaction.next_generation(now_unix_ms=now) for now in (1000, 1000, 5, 2000)]
    assert given == [1000, 1001, 1002, 2000]


def test_versions_are_kept_per_component(store: SqlStore) -> None:
    with store.transaction() as transaction:
        transaction.put_highest_versions("dpu-0", {"arm": "1.0.0", "nic": "2.0.0"})
        transaction.put_highest_versions("dpu-0", {"arm": "1.1.0"})
        assert transaction.get_highest_versions("dpu-0") == {"arm": "1.1.0", "nic": "2.0.0"}


def test_damaged_file_is_refused_with_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "control.db"
    path.write_bytes(b"this is no database at all" * 400)
    with pytest.raises(StateError) as caught:
        open_sqlite(path)
    assert caught.value.remedy


def test_schema_of_another_version_is_refused(store: SqlStore, tmp_path: Path) -> None:
    with store.transaction() as transaction:
        transaction.put_number("schema-version", 99)
    store.close()
    with pytest.raises(StateError):
        open_sqlite(tmp_path / "control.db")


def test_full_disk_refuses_and_recovers(store: SqlStore) -> None:
    with store.transaction() as transaction:
        transaction.put_device(RECORD)
    with store._engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
        connection.rollback()

    def fill() -> None:
        with store.transaction() as transaction:
            for _ in range(200):
                transaction.append_audit(replace(EVENT, reason="x" * 500), now_unix_ms=1)

    with pytest.raises(StateError) as caught:
        fill()
    assert "disk" in caught.value.remedy
    with store._engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count=100000")
        connection.rollback()
    with store.transaction() as transaction:
        assert transaction.count_audit() == 0
        transaction.append_audit(EVENT, now_unix_ms=1)


def test_file_is_plain_sqlite(store: SqlStore, tmp_path: Path) -> None:
    with store.transaction() as transaction:
        transaction.append_audit(EVENT, now_unix_ms=1)
    connection = sqlite3.connect(tmp_path / "control.db")
    assert connection.execute("select count(*) from audit").fetchone() == (1,)
    connection.close()


def test_numbers_and_texts_of_a_prefix(store: SqlStore) -> None:
    with store.transaction() as transaction:
        transaction.put_numbers({})
        transaction.put_numbers({"bundle:dpu-0": 1, "bundle:dpu-1": 2, "bundle": 8, "bundlf:": 9})
        transaction.put_numbers({"bundle:dpu-0": 3})
        transaction.put_text("svid:dpu-0", "a")
        transaction.put_text("svie", "b")
    with store.transaction() as transaction:
        assert transaction.list_numbers("bundle:") == {"bundle:dpu-0": 3, "bundle:dpu-1": 2}
        assert transaction.list_texts("svid:") == {"svid:dpu-0": "a"}
        assert transaction.list_texts("nothing:") == {}
