"""The Store interface: one transaction at a time, grouped by noun. `sql.SqlStore` implements it.

Contract: leaving `transaction()` without an error means durable; leaving with an error means nothing of it
happened. Errors of the machine below (disk full, locked, corrupt) come out as StateError with a remedy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from ztdpu.control.audit import AuditEvent
from ztdpu.control.devices.record import (
    AnsweredRequest,
    AuditRecord,
    DeviceRecord,
    JobRankRecord,
    JobRecord,
    JoinTokenRecord,
    StoredBinding,
    StoredEvidence,
)
from ztdpu.control.policy.record import AcceptedCommit


class Transaction(Protocol):
    """Everything that can be read and written inside one transaction."""

    # --- devices ---

    def get_device(self, name: str) -> DeviceRecord | None:
        """The record, or None before the device was first seen."""

    def list_devices(self) -> Sequence[DeviceRecord]:
        """All, by name."""

    def put_device(self, record: DeviceRecord) -> None:
        """Write a record; ConflictError when its DeviceID is another device's."""

    # --- bindings ---

    def get_binding(self, binding_sha256: bytes) -> StoredBinding | None:
        """One binding, live or retired."""

    def list_bindings(self, device: str) -> Sequence[StoredBinding]:
        """Every binding of a device, oldest first."""

    def get_newest_binding(self, device: str) -> StoredBinding | None:
        """The binding with the highest boot and sequence, live or not; None before the first."""

    def find_key_owners(self, keys: Collection[bytes]) -> Sequence[StoredBinding]:
        """Every binding, of any device, that names one of these keys (SHA-256 of the SPKI), in either use."""

    def put_binding(self, binding: StoredBinding) -> None:
        """Make it the device's only live one."""

    def retire_bindings(self, device: str, *, denied: bool) -> None:
        """No binding of the device is live any more; with `denied` its keys never come back."""

    # --- evidence ---

    def get_evidence(self, device: str) -> StoredEvidence | None:
        """Evidence of the last appraisal."""

    def put_evidence(self, evidence: StoredEvidence) -> None:
        """Replace it."""

    def get_highest_versions(self, device: str) -> dict[str, str]:
        """Component -> highest version ever accepted."""

    def put_highest_versions(self, device: str, versions: dict[str, str]) -> None:
        """Replace them."""

    # --- tokens ---

    def put_token(self, token: JoinTokenRecord) -> None:
        """Keep a new token."""

    def get_token(self, token_sha256: bytes) -> JoinTokenRecord | None:
        """By hash."""

    def use_token(self, token_sha256: bytes, *, device: str, now_unix_ms: int) -> None:
        """Spend it; ConflictError unless exactly one unspent, unexpired token of that device was there."""

    # --- jobs ---

    def list_jobs(self) -> Sequence[JobRecord]:
        """Every job that is kept, by tenant and name."""

    def put_job(self, job: JobRecord) -> None:
        """Insert, or replace the epoch before it."""

    def delete_job(self, tenant: str, name: str) -> None:
        """Forget a job and its ranks."""

    def list_job_ranks(self) -> Sequence[JobRankRecord]:
        """Every rank that is taken."""

    def put_job_rank(self, rank: JobRankRecord) -> None:
        """Take a rank; ConflictError when it is taken."""

    def delete_job_ranks(self, tenant: str, job: str, *, endpoint: str = "") -> None:
        """Give back the ranks of one endpoint, or all."""

    # --- audit, requests, numbers ---

    def append_audit(self, event: AuditEvent, *, now_unix_ms: int) -> int:
        """Write a leaf; returns its index."""

    def list_audit(self, *, first: int, limit: int) -> Sequence[AuditRecord]:
        """`limit` leaves from index `first`."""

    def count_audit(self) -> int:
        """Size of the tree."""

    def get_answer(self, request_id: str) -> AnsweredRequest | None:
        """What was answered to this request id."""

    def put_answer(self, answer: AnsweredRequest) -> None:
        """Remember an answer."""

    def prune(self, *, now_unix_ms: int) -> int:
        """Forget what can do nothing any more; returns how many rows.

        Tokens that expired yesterday, all but the newest answers to request ids, all but the newest retired bindings
        of a device. Keys of revoked devices stay.
        """

    def next_generation(self, *, now_unix_ms: int) -> int:
        """max(previous + 1, now): never back, whatever the clock or a backup says."""

    def get_number(self, name: str) -> int:
        """A named number; 0 when it was never set."""

    def put_number(self, name: str, value: int) -> None:
        """Set a named number."""

    def list_numbers(self, prefix: str) -> Mapping[str, int]:
        """Name -> number, of every name that begins so."""

    def put_numbers(self, values: Mapping[str, int]) -> None:
        """Set many at once."""

    def get_text(self, name: str) -> str:
        """A named text; empty when it was never set."""

    def put_text(self, name: str, value: str) -> None:
        """Set a named text."""

    def list_texts(self, prefix: str) -> Mapping[str, str]:
        """Name -> text, of every name that begins so."""

    # --- policy from git ---

    def put_policy_commit(self, commit: AcceptedCommit, files: Mapping[str, bytes]) -> None:
        """Remember an accepted commit, as the newest, with its files."""

    def list_policy_commits(self, *, limit: int) -> Sequence[AcceptedCommit]:
        """Accepted commits, newest first."""

    def find_policy_commits(self, prefix: str) -> Sequence[AcceptedCommit]:
        """Accepted commits whose id begins so; two at most."""

    def get_policy_files(self, commit_id: str) -> Mapping[str, bytes] | None:
        """Path -> content of a commit whose files are kept."""

    def put_policy_files(self, commit_id: str, files: Mapping[str, bytes]) -> None:
        """Keep the files of a commit."""

    def keep_policy_files(self, commit_ids: Collection[str]) -> None:
        """Forget the files of every other commit."""


class Store(Protocol):
    """Opens transactions."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """One at a time; all or nothing."""

    def close(self) -> None:
        """Let go of files and connections."""
