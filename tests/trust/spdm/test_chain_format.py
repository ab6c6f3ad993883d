"""Certificate chains in SPDM form."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztdpu.errors import SpdmError
from ztdpu.trust.profile import load_profile
from ztdpu.trust.spdm.chain_format import encode_chain, split_chain
from ztdpu.trust.spdm.suite import suite_of

SUITE = suite_of(load_profile("bluefield-3"))


def wrap(body: bytes) -> bytes:
    """A DER sequence in one of the two long forms that certificates have."""
    if len(body) < 0x100:
        return b"\x30\x81" + bytes((len(body),)) + body
    return b"\x30\x82" + len(body).to_bytes(2, "big") + body


CERTIFICATES = [wrap(b"a" * 300), wrap(b"b" * 200), wrap(b"c" * 500)]
CHAIN = encode_chain(CERTIFICATES, SUITE)


@given(st.lists(st.binary(min_size=128, max_size=700).map(wrap), min_size=1, max_size=10))
def test_round_trip(certificates):
    root_hash, split = split_chain(encode_chain(certificates, SUITE), SUITE)
    assert split == tuple(certificates)
    assert root_hash == hashlib.sha384(certificates[0]).digest()


def renumber(chain: bytes) -> bytes:
    """Make the announced length right again."""
    return len(chain).to_bytes(2, "little") + chain[2:]


@pytest.mark.parametrize(
    "chain",
    [
        pytest.param(b"", id="empty"),
        pytest.param(CHAIN[:-1], id="shorter than announced"),
        pytest.param(CHAIN + b"\0", id="longer than announced"),
        pytest.param(renumber(CHAIN[:-1]), id="last certificate cut"),
        pytest.param(renumber(CHAIN + b"\x30"), id="one octet behind"),
        pytest.param(renumber(CHAIN + b"\x30\x82"), id="two octets behind"),
        pytest.param(renumber(CHAIN + b"\0" * 8), id="zeroes behind"),
        pytest.param(renumber(CHAIN[:52]), id="no certificates"),
        pytest.param(encode_chain([b"\x30\x03\x02\x01\x01"], SUITE), id="short form"),
        pytest.param(encode_chain([b"\x30\x83\0\0\x01a"], SUITE), id="overlong form"),
        pytest.param(encode_chain([CERTIFICATES[0]] * 11, SUITE), id="too many"),
        pytest.param(encode_chain([wrap(b"a" * 17000)], SUITE), id="too long"),
        pytest.param(CHAIN[:4] + bytes(48) + CHAIN[52:], id="another root hash"),
    ],
)
def test_malformed_chains_are_refused(chain):
    split_chain(CHAIN, SUITE)
    with pytest.raises(SpdmError):
        split_chain(chain, SUITE)


@given(st.binary(max_size=200))
def test_noise_is_refused(noise):
    with pytest.raises(SpdmError):
        split_chain(noise, SUITE)
    with pytest.raises(SpdmError):
        split_chain(renumber(CHAIN[:52] + noise) if noise else CHAIN[:52], SUITE)
