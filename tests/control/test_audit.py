"""Leaf and tree hashes against RFC 9162's known answers, and leaves as they stand in the store."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from ztdpu.control.audit import AuditEvent, AuditOutcome, encode_leaf, hash_leaf, hash_node, hash_tree

# Inputs of the widely used reference tree (certificate-transparency's merkle tree tests).
INPUTS = [bytes.fromhex(text) for text in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657",
                                           "606162636465666768696a6b6c6d6e6f")]  # fmt: skip
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


@pytest.mark.parametrize("size", range(1, 9))
def test_tree_known_answers(size: int) -> None:
    assert hash_tree([hash_leaf(leaf) for leaf in INPUTS[:size]]).hex() == ROOTS[size - 1]


def test_empty_tree() -> None:
    assert hash_tree([]) == hashlib.sha256(b"").digest()


def test_leaf_and_node_are_separated() -> None:
    left, right = b"\1" * 32, b"\2" * 32
    assert hash_leaf(left + right) != hash_node(left, right)


def test_leaf_is_bounded_json() -> None:
    event = AuditEvent(
        actor="a" * 9999, role="operator", action="x", subject="y", outcome=AuditOutcome.DONE, reason="ü\n\0"
    )
    document = json.loads(encode_leaf(event, now_unix_ms=5))
    assert len(document["actor"]) == 512
    assert document["reason"] == "ü\n\0"
    assert document["time_unix_ms"] == 5


async def test_stored_leaves_hash_to_what_is_said(admin: Any) -> None:
    await admin.create_join_token("dpu-0", reason="a word")
    entries = await admin.list_audit(first=0)
    assert [entry.index for entry in entries] == list(range(len(entries)))
    for entry in entries:
        assert hashlib.sha256(b"\0" + entry.leaf).digest() == entry.leaf_hash
    newest = json.loads((await admin.list_audit(limit=1))[0].leaf)
    assert newest["action"] == "create-join-token"
    assert newest["reason"] == "a word"
    assert newest["actor"] == "operator:admin-socket"
    assert (await admin.get_audit(entries[-1].index)) == entries[-1]
