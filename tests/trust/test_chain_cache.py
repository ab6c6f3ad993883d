"""Chains that were verified before: known by all that the verdict depends on, dates looked at each time, bounded."""

import dataclasses
from datetime import timedelta

import pytest

from ztdpu.errors import CertificateError
from ztdpu.trust import certificate as reading
from ztdpu.trust.chain import LINKS, VERIFIED, verify_device_chain
from ztdpu.trust.chain_cache import ChainCache, make_key
from ztdpu.trust.manufacture import create_manufacturer
from ztdpu.trust.profile import load_profile


@pytest.fixture
def chain(world):
    VERIFIED.clear()
    return world.boot().certificates


def test_a_chain_is_verified_once(world, chain, monkeypatch):
    first = verify_device_chain(chain, world.roots, world.now, world.profile)
    with monkeypatch.context() as patched:
        patched.setattr("ztdpu.trust.chain.reading.check_issued_by", None)
        assert verify_device_chain(chain, world.roots, world.now, world.profile) is first
        with pytest.raises(TypeError):
            verify_device_chain(tuple(reversed(chain)), world.roots, world.now, world.profile)
    assert verify_device_chain(tuple(reversed(chain)), world.roots, world.now, world.profile) == first


def test_dates_are_looked_at_each_time(world, chain):
    verify_device_chain(chain, world.roots, world.now, world.profile)
    with pytest.raises(CertificateError, match="not valid before"):
        verify_device_chain(chain, world.roots, world.now - timedelta(days=1000), world.profile)
    assert verify_device_chain(chain, world.roots, world.now, world.profile)


def test_another_root_set_profile_or_octet_is_another_chain(world, chain):
    verify_device_chain(chain, world.roots, world.now, world.profile)
    stranger = create_manufacturer(profile=world.profile, random=lambda n: b"\x77" * n, now=world.now)
    with pytest.raises(CertificateError, match="pinned"):
        verify_device_chain(chain, (stranger.root,), world.now, world.profile)
    with pytest.raises(CertificateError, match="pinned"):
        verify_device_chain(chain, (), world.now, world.profile)
    with pytest.raises(CertificateError):
        verify_device_chain(chain, world.roots, world.now, load_profile("bluefield-3-erot"))
    other = dataclasses.replace(world.profile, model="BlueField-2", levels=tuple(reversed(world.profile.levels)))
    with pytest.raises(CertificateError):
        verify_device_chain(chain, world.roots, world.now, other)
    changed = bytearray(chain[-1])
    changed[-1] ^= 1
    with pytest.raises(CertificateError, match="not signed"):
        verify_device_chain((*chain[:-1], bytes(changed)), world.roots, world.now, world.profile)


def test_certificates_of_the_manufacturer_are_verified_once_and_those_of_a_device_always(world, chain, monkeypatch):
    LINKS.clear()
    verified, check = [], reading.check_issued_by

    def count(certificate, issuer, **keywords):
        verified.append(certificate)
        check(certificate, issuer, **keywords)

    monkeypatch.setattr("ztdpu.trust.chain.reading.check_issued_by", count)
    verify_device_chain(chain, world.roots, world.now, world.profile)
    assert len(verified) == len(world.profile.levels) - 1
    VERIFIED.clear()
    verified.clear()
    verify_device_chain(chain, world.roots, world.now, world.profile)
    assert len(verified) == len(world.profile.levels) - world.profile.device_id_level
    VERIFIED.clear()
    for position in range(1, len(chain)):
        changed = bytearray(chain[position])
        changed[-1] ^= 1
        altered = (*chain[:position], bytes(changed), *chain[position + 1 :])
        with pytest.raises(CertificateError, match="not signed"):
            verify_device_chain(altered, world.roots, world.now, world.profile)


def test_refusals_are_not_kept(world, chain):
    for _ in range(2):
        with pytest.raises(CertificateError):
            verify_device_chain((*chain[:-1], chain[0]), world.roots, world.now, world.profile)
    assert len(VERIFIED) == 0


def test_keys_do_not_run_into_one_another(world):
    keys = [
        make_key(parts, world.roots, world.profile)
        for parts in ((b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"abc", b""), (b"c", b"ab"))
    ]
    assert len(set(keys)) == len(keys)


def test_what_was_not_used_for_longest_goes_first(world):
    cache = ChainCache(limit=3)
    keys = [make_key((bytes((number,)),), (), world.profile) for number in range(5)]
    for number, key in enumerate(keys[:3]):
        cache.keep(key, f"chain {number}")
    assert cache.find(keys[0]) == "chain 0"
    cache.keep(keys[3], "chain 3")
    assert [cache.find(key) for key in keys] == ["chain 0", None, "chain 2", "chain 3", None]
    assert len(cache) == 3
    cache.clear()
    assert len(cache) == 0
