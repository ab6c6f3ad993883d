"""The Store on SQLAlchemy: SQLite (WAL, synchronous FULL: a commit survives a power cut). Called by control only."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import cbor2
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    RowMapping,
    create_engine,
    delete,
    desc,
    event,
    func,
    insert,
    literal_column,
    select,
)
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.exc import DatabaseError, IntegrityError, OperationalError

from ztdpu.control.audit import AuditEvent, encode_leaf, hash_leaf
from ztdpu.control.devices.record import (
    AnsweredRequest,
    AuditRecord,
    DeviceRecord,
    JoinTokenRecord,
    StoredBinding,
    StoredEvidence,
)
from ztdpu.control.policy.record import AcceptedCommit
from ztdpu.control.store import schema, statements
from ztdpu.control.store.job_rows import JobRows
from ztdpu.errors import ConflictError, StateError
from ztdpu.model.device import DeviceState

TOKENS_KEPT_MS: Final = 86_400_000
"""After they expired."""
REQUESTS_KEPT: Final = 10_000
"""Answers to request ids: whoever repeats a request does so within minutes."""
BINDINGS_KEPT: Final = 2_000
"""Retired bindings of one device: at one in half an hour, forty days. An older one is refused by its sequence."""
_GENERATION: Final = "generation"
_SCHEMA: Final = "schema-version"


class SqlTransaction(JobRows):
    """One open transaction; see the interface for what each method promises."""

    def _one(self, statement: Any, **values: Any) -> RowMapping | None:
        return self._sql.execute(statement, values).mappings().first()

    # --- devices ---

    def get_device(self, name: str) -> DeviceRecord | None:
        """The record, or None."""
        row = self._one(statements.GET_DEVICE, name=name)
        return _device(row) if row else None

    def list_devices(self) -> Sequence[DeviceRecord]:
        """All, by name."""
        rows = self._sql.execute(select(schema.devices).order_by(schema.devices.c.name)).mappings()
        return [_device(row) for row in rows]

    def put_device(self, record: DeviceRecord) -> None:
        """Insert or replace."""
        values = _values(record) | {"state": str(record.state), "device_id_sha256": record.device_id_sha256 or None}
        try:
            self._sql.execute(statements.PUT_DEVICE, values)
        except IntegrityError as error:
            raise ConflictError(
                "this DeviceID belongs to another device",
                remedy="look for two Device documents that stand for the same hardware",
            ) from error

    # --- bindings ---

    def get_binding(self, binding_sha256: bytes) -> StoredBinding | None:
        """One binding."""
        row = self._one(statements.GET_BINDING, binding_sha256=binding_sha256)
        return _binding(row) if row else None

    def list_bindings(self, device: str) -> Sequence[StoredBinding]:
        """Every binding of a device, oldest first."""
        table = schema.bindings
        rows = self._sql.execute(select(table).where(table.c.device == device).order_by(table.c.number)).mappings()
        return [_binding(row) for row in rows]

    def get_newest_binding(self, device: str) -> StoredBinding | None:
        """Highest boot, then highest sequence."""
        row = self._one(statements.GET_NEWEST_BINDING, device=device)
        return _binding(row) if row else None

    def find_key_owners(self, keys: Collection[bytes]) -> Sequence[StoredBinding]:
        """Bindings that name one of these keys, or are signed by one."""
        rows = self._sql.execute(statements.FIND_KEY_OWNERS, {"keys": list(keys)}).mappings()
        return [_binding(row) for row in rows]

    def put_binding(self, binding: StoredBinding) -> None:
        """Retire what was live, then insert."""
        self.retire_bindings(binding.device, denied=False)
        values = _values(binding) | {"chain": cbor2.dumps(list(binding.chain))}
        try:
            self._sql.execute(statements.PUT_BINDING, values)
        except IntegrityError as error:
            raise ConflictError("this key binding was used before", remedy="make a new one") from error

    def retire_bindings(self, device: str, *, denied: bool) -> None:
        """Make every binding of the device a dead one."""
        statement = statements.DENY_BINDINGS if denied else statements.RETIRE_BINDINGS
        self._sql.execute(statement, {"whose": device})

    # --- evidence ---

    def get_evidence(self, device: str) -> StoredEvidence | None:
        """Evidence of the last appraisal."""
        row = self._one(statements.GET_EVIDENCE, device=device)
        return StoredEvidence(**row) if row else None

    def put_evidence(self, evidence: StoredEvidence) -> None:
        """Replace it."""
        self._sql.execute(statements.PUT_EVIDENCE, _values(evidence))

    def get_highest_versions(self, device: str) -> dict[str, str]:
        """Component -> version."""
        rows = self._sql.execute(statements.GET_HIGHEST_VERSIONS, {"device": device})
        return {component: version for component, version in rows}  # noqa: C416 - rows are no pairs to mypy

    def put_highest_versions(self, device: str, versions: dict[str, str]) -> None:
        """Replace them."""
        rows = [{"device": device, "component": name, "version": version} for name, version in versions.items()]
        if rows:
            self._sql.execute(statements.PUT_HIGHEST_VERSION, rows)

    # --- tokens ---

    def put_token(self, token: JoinTokenRecord) -> None:
        """Keep a new token."""
        self._sql.execute(insert(schema.tokens).values(dataclasses.asdict(token)))

    def get_token(self, token_sha256: bytes) -> JoinTokenRecord | None:
        """By hash."""
        row = self._one(statements.GET_TOKEN, token_sha256=token_sha256)
        return JoinTokenRecord(**row) if row else None

    def use_token(self, token_sha256: bytes, *, device: str, now_unix_ms: int) -> None:
        """Spend it: exactly one row changes, or nobody gets anything."""
        values = {"which": token_sha256, "whose": device, "now_unix_ms": now_unix_ms}
        spent = self._sql.execute(statements.USE_TOKEN, values)
        if spent.rowcount != 1:
            raise ConflictError("the join token is spent, expired or another device's", remedy="make a new token")

    # --- audit, requests, numbers ---

    def append_audit(self, event: AuditEvent, *, now_unix_ms: int) -> int:
        """Write a leaf."""
        leaf = encode_leaf(event, now_unix_ms=now_unix_ms)
        index = self.count_audit()
        self._sql.execute(statements.PUT_LEAF, {"number": index, "leaf": leaf, "leaf_hash": hash_leaf(leaf)})
        return index

    def list_audit(self, *, first: int, limit: int) -> Sequence[AuditRecord]:
        """Leaves from `first` on."""
        table = schema.audit
        rows = self._sql.execute(select(table).where(table.c.number >= first).order_by(table.c.number).limit(limit))
        return [AuditRecord(index=number, leaf=leaf, leaf_hash=digest) for number, leaf, digest in rows]

    def count_audit(self) -> int:
        """Size of the tree."""
        last = self._sql.execute(statements.LAST_LEAF).scalar()
        return 0 if last is None else int(last) + 1

    def get_answer(self, request_id: str) -> AnsweredRequest | None:
        """What was answered before."""
        row = self._one(select(schema.requests).where(schema.requests.c.request_id == request_id))
        return AnsweredRequest(**row) if row else None

    def put_answer(self, answer: AnsweredRequest) -> None:
        """Remember an answer, or a fuller one to the same request."""
        values = dataclasses.asdict(answer)
        self._sql.execute(
            upsert(schema.requests).values(values).on_conflict_do_update(index_elements=["request_id"], set_=values)
        )

    def prune(self, *, now_unix_ms: int) -> int:
        """One bounded step of tidying up; rowid is the order of insertion."""
        old = delete(schema.tokens).where(schema.tokens.c.expires_unix_ms < now_unix_ms - TOKENS_KEPT_MS)
        pruned = self._sql.execute(old).rowcount
        rowid: ColumnElement[int] = literal_column("rowid")
        newest = select(func.max(rowid)).select_from(schema.requests).scalar_subquery()
        pruned += self._sql.execute(delete(schema.requests).where(rowid <= newest - REQUESTS_KEPT)).rowcount
        table = schema.bindings
        crowded = select(table.c.device).group_by(table.c.device).having(func.count() > BINDINGS_KEPT)
        for device in list(self._sql.execute(crowded).scalars()):
            retired = (table.c.device == device, table.c.live.is_(False), table.c.denied.is_(False))
            keep = select(table.c.number).where(*retired).order_by(desc("number")).limit(BINDINGS_KEPT).subquery()
            lowest = select(func.min(keep.c.number)).scalar_subquery()
            pruned += self._sql.execute(delete(table).where(*retired, table.c.number < lowest)).rowcount
        return pruned

    def next_generation(self, *, now_unix_ms: int) -> int:
        """max(previous + 1, now)."""
        generation = max(self.get_number(_GENERATION) + 1, now_unix_ms)
        self.put_number(_GENERATION, generation)
        return generation

    def get_number(self, name: str) -> int:
        """A named number, 0 when unset."""
        value = self._sql.execute(statements.GET_NUMBER, {"name": name}).scalar()
        return int(value or 0)

    def put_number(self, name: str, value: int) -> None:
        """Set it."""
        self._sql.execute(statements.PUT_NUMBER, {"name": name, "value": value})

    def list_numbers(self, prefix: str) -> Mapping[str, int]:
        """One look for all of them."""
        return dict(self._sql.execute(statements.LIST_NUMBERS, _range(prefix)).all())

    def put_numbers(self, values: Mapping[str, int]) -> None:
        """One call for all of them."""
        rows = [{"name": name, "value": value} for name, value in values.items()]
        if rows:
            self._sql.execute(statements.PUT_NUMBER, rows)

    def get_text(self, name: str) -> str:
        """A named text, empty when unset."""
        value = self._sql.execute(statements.GET_TEXT, {"name": name}).scalar()
        return str(value or "")

    def list_texts(self, prefix: str) -> Mapping[str, str]:
        """One look for all of them."""
        return dict(self._sql.execute(statements.LIST_TEXTS, _range(prefix)).all())

    def put_text(self, name: str, value: str) -> None:
        """Set it."""
        self._sql.execute(statements.PUT_TEXT, {"name": name, "value": value})

    # --- policy from git ---

    def put_policy_commit(self, commit: AcceptedCommit, files: Mapping[str, bytes]) -> None:
        """Insert; a commit that is there already becomes the newest."""
        table = schema.policy_commits
        self._sql.execute(delete(table).where(table.c.commit_id == commit.commit_id))
        self._sql.execute(insert(table).values(dataclasses.asdict(commit)))
        self.put_policy_files(commit.commit_id, files)

    def list_policy_commits(self, *, limit: int) -> Sequence[AcceptedCommit]:
        """Newest first."""
        table = schema.policy_commits
        return self._policy_commits(select(table).order_by(table.c.number.desc()).limit(limit))

    def find_policy_commits(self, prefix: str) -> Sequence[AcceptedCommit]:
        """By the beginning of the id."""
        table = schema.policy_commits
        return self._policy_commits(select(table).where(table.c.commit_id.startswith(prefix, autoescape=True)).limit(2))

    def _policy_commits(self, statement: Any) -> Sequence[AcceptedCommit]:
        rows = self._sql.execute(statement).mappings()
        return [AcceptedCommit(**{key: value for key, value in row.items() if key != "number"}) for row in rows]

    def get_policy_files(self, commit_id: str) -> Mapping[str, bytes] | None:
        """Path -> content."""
        table = schema.policy_files
        octets = self._sql.execute(select(table.c.files).where(table.c.commit_id == commit_id)).scalar()
        return None if octets is None else dict(cbor2.loads(octets))

    def put_policy_files(self, commit_id: str, files: Mapping[str, bytes]) -> None:
        """Insert or replace."""
        values = {"commit_id": commit_id, "files": cbor2.dumps(dict(files))}
        self._sql.execute(
            upsert(schema.policy_files).values(values).on_conflict_do_update(index_elements=["commit_id"], set_=values)
        )

    def keep_policy_files(self, commit_ids: Collection[str]) -> None:
        """Delete the rest."""
        table = schema.policy_files
        self._sql.execute(delete(table).where(table.c.commit_id.not_in(list(commit_ids))))


class SqlStore:
    """A Store in one SQLite file."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @contextmanager
    def transaction(self) -> Iterator[SqlTransaction]:
        """Begin IMMEDIATE, commit on success, roll back on any error."""
        try:
            with self._engine.begin() as connection:
                yield SqlTransaction(connection)
        except (OperationalError, DatabaseError) as error:
            raise StateError(
                f"the store refused: {error.orig}", remedy="look at the disk (space, rights) under stateDir"
            ) from error

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()


def open_sqlite(path: Path) -> SqlStore:
    """Open or make the store at `path` (mode 0600).

    Raises:
        StateError: it is no store, is damaged, or was written by another version of ztdpu.

    """
    path.touch(mode=0o600, exist_ok=True)
    engine = create_engine(f"sqlite:///{path}", isolation_level="SERIALIZABLE")
    event.listen(engine, "connect", _prepare_connection)
    event.listen(engine, "begin", _begin_immediately)
    store = SqlStore(engine)
    try:
        schema.metadata.create_all(engine)
    except DatabaseError as error:
        raise StateError(
            f"{path} cannot be opened: {error.orig}", remedy="restore it from a backup, or move it away to start anew"
        ) from error
    with store.transaction() as transaction:
        found = transaction.get_number(_SCHEMA)
        if found not in (0, schema.SCHEMA_VERSION):
            raise StateError(
                f"{path} has schema {found}, this ztdpu knows {schema.SCHEMA_VERSION}",
                remedy="run the version of ztdpu that wrote it",
            )
        transaction.put_number(_SCHEMA, schema.SCHEMA_VERSION)
    return store


def _prepare_connection(connection: Any, _record: Any) -> None:
    # The driver must not begin transactions by itself: `_begin_immediately` does, so that two writers queue
    # instead of one failing halfway.
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=5000"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_immediately(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _values(record: DeviceRecord | StoredBinding | StoredEvidence) -> dict[str, Any]:
    """Columns of a row; `dataclasses.asdict` would copy every octet string as well."""
    return {name: getattr(record, name) for name in record.__slots__}


def _range(prefix: str) -> dict[str, str]:
    """Bounds of the names that begin so."""
    return {"first": prefix, "last": prefix + chr(0x10FFFF)}


def _device(row: RowMapping) -> DeviceRecord:
    values = dict(row) | {"state": DeviceState(row["state"]), "device_id_sha256": row["device_id_sha256"] or b""}
    return DeviceRecord(**values)


def _binding(row: RowMapping) -> StoredBinding:
    values = {key: value for key, value in row.items() if key != "number"}
    return StoredBinding(**values | {"chain": tuple(cbor2.loads(row["chain"]))})
