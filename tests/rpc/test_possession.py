"""What an agent signs: every field counts, and the two kinds never collide."""

from __future__ import annotations

from typing import Any

import pytest

from ztdpu.rpc.possession import lease_request_octets, possession_octets

FIELDS: dict[str, Any] = {
    "device": "dpu-0",
    "binding_sha256": b"b" * 32,
    "applied_generation": 7,
    "kem_public_key": b"k" * 1216,
}


@pytest.mark.parametrize(
    "change",
    [{"device": "dpu-1"}, {"binding_sha256": b"c" * 32}, {"applied_generation": 8}, {"kem_public_key": b"l" * 1216}],
)
def test_every_field_of_a_lease_request_counts(change: dict[str, Any]) -> None:
    assert lease_request_octets(**FIELDS) != lease_request_octets(**FIELDS | change)
    assert lease_request_octets(**FIELDS) == lease_request_octets(**FIELDS)


@pytest.mark.parametrize(
    "change",
    [{"nonce": b"o" * 32}, {"binding_sha256": b"c" * 32}, {"applied_generation": 8}, {"kem_public_key": b"l" * 1216}],
)
def test_every_field_of_a_possession_counts(change: dict[str, Any]) -> None:
    fields = {name: value for name, value in FIELDS.items() if name != "device"} | {"nonce": b"n" * 32}
    assert possession_octets(**fields) != possession_octets(**fields | change)


def test_kinds_have_labels_of_their_own() -> None:
    possession = possession_octets(
        nonce=b"n" * 32, binding_sha256=b"b" * 32, applied_generation=7, kem_public_key=b"k" * 1216
    )
    assert possession.startswith(b"ztdpu/v1/possession\0")
    assert lease_request_octets(**FIELDS).startswith(b"ztdpu/v1/lease-request\0")
