"""Roots that are pinned: readable to the end, or refused when they are loaded and not when a device shows up."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from ztdpu.errors import CertificateError
from ztdpu.trust.certificate import check_anchor, load_anchors

P384_OID = bytes.fromhex("06052b81040022")
UNREADABLE = {
    "a curve that nobody knows": lambda der: der.replace(P384_OID, P384_OID[:-1] + b"\x7f"),
    "a key of another kind": lambda der: der.replace(bytes.fromhex("2a8648ce3d0201"), bytes.fromhex("2a8648ce3d0301")),
    "a point beside the curve": lambda der: (
        der[: (at := der.index(b"\x03\x62\x00\x04")) + 9] + bytes([der[at + 9] ^ 1]) + der[at + 10 :]
    ),
    "a version that is none": lambda der: der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x05"),
    "a name that is no text": lambda der: der.replace(b"ztdpu", b"\xff\xfe\xfd\xfc\xfb"),
}
"""What the library reads at first and refuses, with several types of error, when it is looked at."""


def make_pem(der: bytes) -> bytes:
    import base64

    return b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(der) + b"-----END CERTIFICATE-----\n"


@pytest.mark.parametrize("fault", UNREADABLE)
def test_a_root_that_cannot_be_read_is_refused_when_it_is_loaded(world, fault):
    der = world.roots[0].public_bytes(Encoding.DER)
    assert load_anchors(make_pem(der) * 2) == (world.roots[0],) * 2
    changed = UNREADABLE[fault](der)
    assert changed != der
    with pytest.raises(ValueError):
        load_anchors(make_pem(der) + make_pem(changed))


@pytest.mark.parametrize("pem", [b"", b"nothing", make_pem(b""), make_pem(b"\x30\x00")])
def test_what_holds_no_roots_is_refused(pem):
    with pytest.raises(ValueError, match="no PEM"):
        load_anchors(pem)


def test_a_key_of_a_curve_that_nobody_knows_is_named(world):
    der = UNREADABLE["a curve that nobody knows"](world.roots[0].public_bytes(Encoding.DER))
    with pytest.raises(CertificateError, match="key of a root"):
        check_anchor(x509.load_der_x509_certificate(der))
