"""Statements that every attestation and every stream runs, made once. Used by `sql` only.

SQLAlchemy finds a compiled statement by a key that it derives from the statement's parts. A statement made anew derives
it anew and binds its values as parts of itself, which costs several times what SQLite needs to run it. One that stays
has its key already; what varies is handed over when it runs, under the names of `bindparam`.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Table, bindparam, desc, func, insert, or_, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from ztdpu.control.store import schema


def _put(table: Table, *keys: str) -> Any:
    """Insert a row, or replace the one with the same `keys`; takes every column but generated ones."""
    statement = upsert(table)
    others = {column.name: statement.excluded[column.name] for column in table.c if column.name not in keys}
    return statement.on_conflict_do_update(index_elements=list(keys), set_=others)


_bindings, _tokens = schema.bindings.c, schema.tokens.c

GET_DEVICE: Final = select(schema.devices).where(schema.devices.c.name == bindparam("name"))
PUT_DEVICE: Final = _put(schema.devices, "name")

GET_BINDING: Final = select(schema.bindings).where(_bindings.binding_sha256 == bindparam("binding_sha256"))
GET_NEWEST_BINDING: Final = (
    select(schema.bindings)
    .where(_bindings.device == bindparam("device"))
    .order_by(desc("boot_counter"), desc("sequence"))
    .limit(1)
)
FIND_KEY_OWNERS: Final = select(schema.bindings).where(
    or_(
        _bindings.tls_spki_sha256.in_(bindparam("keys", expanding=True)),
        _bindings.offer_spki_sha256.in_(bindparam("keys", expanding=True)),
        _bindings.alias_spki_sha256.in_(bindparam("keys", expanding=True)),
    )
)
PUT_BINDING: Final = insert(schema.bindings)
RETIRE_BINDINGS: Final = update(schema.bindings).where(_bindings.device == bindparam("whose")).values(live=False)
DENY_BINDINGS: Final = (
    update(schema.bindings).where(_bindings.device == bindparam("whose")).values(live=False, denied=True)
)

GET_EVIDENCE: Final = select(schema.evidence).where(schema.evidence.c.device == bindparam("device"))
PUT_EVIDENCE: Final = _put(schema.evidence, "device")

GET_HIGHEST_VERSIONS: Final = select(schema.highest_versions.c.component, schema.highest_versions.c.version).where(
    schema.highest_versions.c.device == bindparam("device")
)
PUT_HIGHEST_VERSION: Final = _put(schema.highest_versions, "device", "component")

GET_TOKEN: Final = select(schema.tokens).where(_tokens.token_sha256 == bindparam("token_sha256"))
USE_TOKEN: Final = (
    update(schema.tokens)
    .where(
        _tokens.token_sha256 == bindparam("which"),
        _tokens.device == bindparam("whose"),
        _tokens.used_unix_ms.is_(None),
        _tokens.expires_unix_ms > bindparam("now_unix_ms"),
    )
    .values(used_unix_ms=bindparam("now_unix_ms"))
)

LAST_LEAF: Final = select(func.max(schema.audit.c.number))
PUT_LEAF: Final = insert(schema.audit)

GET_NUMBER: Final = select(schema.numbers.c.value).where(schema.numbers.c.name == bindparam("name"))
LIST_NUMBERS: Final = select(schema.numbers.c.name, schema.numbers.c.value).where(
    schema.numbers.c.name.between(bindparam("first"), bindparam("last"))
)
PUT_NUMBER: Final = _put(schema.numbers, "name")
GET_TEXT: Final = select(schema.texts.c.value).where(schema.texts.c.name == bindparam("name"))
LIST_TEXTS: Final = select(schema.texts.c.name, schema.texts.c.value).where(
    schema.texts.c.name.between(bindparam("first"), bindparam("last"))
)
PUT_TEXT: Final = _put(schema.texts, "name")
