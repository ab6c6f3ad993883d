"""Tables of the store. `SCHEMA_VERSION` stands in the database; another one is refused, never guessed at."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

SCHEMA_VERSION: Final = 1

metadata = MetaData()

devices = Table(
    "devices",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("state", String(32), nullable=False),
    Column("since_unix_ms", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("tier", String(32), nullable=False),
    Column("profile", String(63), nullable=False),
    # NULL before enrolment: the unique constraint then lets many be there.
    Column("device_id_sha256", LargeBinary(32), nullable=True, unique=True),
    Column("boot_counter", BigInteger, nullable=False),
    Column("boot_floor", BigInteger, nullable=False),
    Column("allow_rollback", Boolean, nullable=False),
    Column("binding_sha256", LargeBinary(32), nullable=False),
    Column("lease_boot_id", String(64), nullable=False),
    Column("lease_deadline_ns", BigInteger, nullable=False),
    Column("appraised_unix_ms", BigInteger, nullable=False),
    Column("ear", Text, nullable=False),
    Column("svid_expires_unix_s", BigInteger, nullable=False),
    Column("worker_instance", LargeBinary(16), nullable=False),
)

bindings = Table(
    "bindings",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("binding_sha256", LargeBinary(32), nullable=False, unique=True),
    Column("device", String(63), nullable=False, index=True),
    Column("envelope", LargeBinary, nullable=False),
    Column("chain", LargeBinary, nullable=False),
    Column("alias_spki_sha256", LargeBinary(32), nullable=False, index=True),
    Column("boot_counter", BigInteger, nullable=False),
    Column("boot_nonce", LargeBinary(16), nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("tls_spki", LargeBinary, nullable=False),
    Column("tls_spki_sha256", LargeBinary(32), nullable=False, index=True),
    Column("offer_spki", LargeBinary, nullable=False),
    Column("offer_spki_sha256", LargeBinary(32), nullable=False, index=True),
    Column("ttl_s", Integer, nullable=False),
    Column("expires_unix_s", BigInteger, nullable=False),
    Column("live", Boolean, nullable=False),
    Column("denied", Boolean, nullable=False),
)
# Exactly one live binding per device, whatever the code above believes.
Index(
    "one_live_binding",
    bindings.c.device,
    unique=True,
    sqlite_where=bindings.c.live.is_(True),
    postgresql_where=bindings.c.live.is_(True),
)

evidence = Table(
    "evidence",
    metadata,
    Column("device", String(63), primary_key=True),
    Column("profile", String(63), nullable=False),
    Column("nonce", LargeBinary(32), nullable=False),
    Column("evidence", LargeBinary, nullable=False),
    Column("findings", Text, nullable=False),
    Column("appraised_unix_ms", BigInteger, nullable=False),
)

highest_versions = Table(
    "highest_versions",
    metadata,
    Column("device", String(63), primary_key=True),
    Column("component", String(63), primary_key=True),
    Column("version", String(100), nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("token_sha256", LargeBinary(32), primary_key=True),
    Column("device", String(63), nullable=False),
    Column("expires_unix_ms", BigInteger, nullable=False),
    Column("used_unix_ms", BigInteger, nullable=True),
)

audit = Table(
    "audit",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("leaf", LargeBinary, nullable=False),
    Column("leaf_hash", LargeBinary(32), nullable=False),
)

requests = Table(
    "requests",
    metadata,
    Column("request_id", String(128), primary_key=True),
    Column("actor", Text, nullable=False),
    Column("method", String(200), nullable=False),
    Column("request_sha256", LargeBinary(32), nullable=False),
    Column("answer", LargeBinary, nullable=False),
)

numbers = Table(
    "numbers",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("value", BigInteger, nullable=False),
    UniqueConstraint("name"),
)

policy_commits = Table(
    "policy_commits",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("commit_id", String(64), nullable=False, unique=True),
    Column("committer_unix_s", BigInteger, nullable=False),
    Column("signer", Text, nullable=False),
    Column("accepted_unix_ms", BigInteger, nullable=False),
)

policy_files = Table(
    "policy_files",
    metadata,
    # The commit in force and the last accepted one: what a start without the repository needs.
    Column("commit_id", String(64), primary_key=True),
    Column("files", LargeBinary, nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    Column("tenant", String(63), primary_key=True),
    Column("name", String(63), primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("world_size", Integer, nullable=False),
    Column("token_sha256", LargeBinary(32), nullable=False, unique=True),
    Column("created_unix_ms", BigInteger, nullable=False),
    Column("token_expires_unix_ms", BigInteger, nullable=False),
    # 0 until it ends.
    Column("ended_unix_ms", BigInteger, nullable=False),
)

job_ranks = Table(
    "job_ranks",
    metadata,
    # Of the newest epoch alone.
    Column("tenant", String(63), primary_key=True),
    Column("job", String(63), primary_key=True),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("endpoint", String(63), nullable=False),
    Column("device", String(63), nullable=False),
    Column("joined_unix_ms", BigInteger, nullable=False),
)

texts = Table(
    "texts",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("value", Text, nullable=False),
)
