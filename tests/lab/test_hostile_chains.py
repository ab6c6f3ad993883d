"""Chains made to be slow or to be believed: every verdict is no, and comes soon."""

import time
from datetime import UTC, datetime

import pytest
from cryptography import x509

from ztdpu.errors import CertificateError, SpdmError
from ztdpu.lab.hostile_chains import LENGTHS, generate_chains
from ztdpu.lab.root_of_trust import LonelyDevice
from ztdpu.trust.chain import VERIFIED, verify_device_chain
from ztdpu.trust.profile import load_profile
from ztdpu.trust.spdm.chain_format import encode_chain, split_chain
from ztdpu.trust.spdm.suite import suite_of

PROFILE = load_profile("bluefield-3")
CHAINS = list(generate_chains(len(PROFILE.levels)))
VERDICT_LIMIT_S = 0.1
"""Of a core. The slowest takes about a millisecond."""


def test_the_generator_makes_what_it_promises():
    lengths = {chain.name: len(chain.certificates) for chain in CHAINS}
    assert {f"{length} intermediates": length + 2 for length in LENGTHS}.items() <= lengths.items()
    assert sum(length == len(PROFILE.levels) for length in lengths.values()) > 10


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain.name)
def test_the_verdict_is_no_and_soon(chain):
    VERIFIED.clear()
    start = time.process_time()
    with pytest.raises(CertificateError):
        verify_device_chain(chain.certificates, (chain.root,), datetime.now(UTC), PROFILE)
    assert time.process_time() - start < VERDICT_LIMIT_S
    assert len(VERIFIED) == 0


def test_a_good_chain_is_accepted_as_soon():
    device = LonelyDevice(PROFILE)
    root = x509.load_pem_x509_certificate(device.root_pem.encode())
    start = time.process_time()
    verify_device_chain(device.root.root.certificates, (root,), datetime.now(UTC), PROFILE)
    assert time.process_time() - start < VERDICT_LIMIT_S


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain.name)
def test_its_octets_in_spdm_form_are_bounded(chain):
    joined = sum(map(len, chain.certificates))
    if joined > 60_000:
        pytest.skip("longer than the length field can say")
    start = time.process_time()
    try:
        split_chain(encode_chain(chain.certificates, suite_of(PROFILE)), suite_of(PROFILE))
    except SpdmError:
        pass
    else:
        assert len(chain.certificates) <= 10
    assert time.process_time() - start < VERDICT_LIMIT_S
