"""Whom an agent believes: it follows control, across restarts, never back, and an operator's file counts more."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from ztdpu.agent.trust_bundle import FILE_NAME, TrustBundle
from ztdpu.errors import ConfigurationError, StateError, SvidError
from ztdpu.trust.bundle_document import BundleDocument, encode_bundle_document
from ztdpu.trust.svid import create_authority

DOMAIN = "test.example"
FIRST, SECOND = (
    create_authority(DOMAIN, datetime.now(UTC), ec.generate_private_key(ec.SECP384R1()), number).certificate
    for number in (1, 2)
)


def pem(*certificates: x509.Certificate) -> bytes:
    return b"".join(one.public_bytes(Encoding.PEM) for one in certificates)


def document(sequence: int, *certificates: x509.Certificate) -> bytes:
    made = BundleDocument(
        trust_domain=DOMAIN, sequence=sequence, refresh_hint_s=60, authorities=certificates, jwt_keys={}
    )
    return encode_bundle_document(made)


def start(folder: Path, *certificates: x509.Certificate) -> TrustBundle:
    return TrustBundle(folder, trust_domain=DOMAIN, start_up_pem=pem(*certificates or (FIRST,)))


def test_it_follows_and_remembers(tmp_path) -> None:
    trust = start(tmp_path)
    assert (trust.pem, trust.sequence) == (pem(FIRST), 0)
    assert trust.take(document(5, FIRST, SECOND))
    assert not trust.take(document(5, FIRST, SECOND))
    assert trust.take(document(6, SECOND))
    again = start(tmp_path)
    assert (again.pem, again.sequence) == (pem(SECOND), 6)


@pytest.mark.parametrize("bad", [document(5, FIRST), document(7), b"{}"])
def test_it_never_goes_back_and_never_believes_nobody(bad, tmp_path) -> None:
    trust = start(tmp_path)
    trust.take(document(6, SECOND))
    with pytest.raises(SvidError):
        trust.take(bad)
    assert (trust.pem, trust.sequence) == (pem(SECOND), 6)
    assert start(tmp_path).sequence == 6


def test_another_start_up_file_counts_more_than_what_control_said(tmp_path) -> None:
    start(tmp_path).take(document(6, SECOND))
    assert start(tmp_path, FIRST, SECOND).sequence == 0
    assert start(tmp_path).sequence == 6


def test_a_damaged_file_stops_the_agent(tmp_path) -> None:
    start(tmp_path).take(document(6, SECOND))
    (tmp_path / FILE_NAME).write_text((tmp_path / FILE_NAME).read_text()[:-20])
    with pytest.raises(ConfigurationError, match=FILE_NAME):
        start(tmp_path)


def test_what_cannot_be_kept_is_not_believed(tmp_path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    trust = start(folder)
    folder.rmdir()
    with pytest.raises(StateError):
        trust.take(document(6, SECOND))
    assert (trust.pem, trust.sequence) == (pem(FIRST), 0)
