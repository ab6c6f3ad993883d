"""Judging of what was verified: device modes, flags in certificates, identities that are not there."""

from __future__ import annotations

import dataclasses
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztdpu.model.attestation import Dimension
from ztdpu.trust import judge
from ztdpu.trust.chain import verify_device_chain
from ztdpu.trust.reference import AllowedDigests, DebugState, OperationalMode


@pytest.fixture(scope="module")
def chain(world):
    return verify_device_chain(world.boot().certificates, world.roots, world.now, world.profile)


@pytest.mark.parametrize(
    ("state", "debug", "mode", "debug_state"),
    [
        (0b0100, 0, OperationalMode.NORMAL, DebugState.DISABLED_SINCE_BOOT),
        (0b1000, 0, OperationalMode.RECOVERY, DebugState.DISABLED_SINCE_BOOT),
        (0b0001, 0, OperationalMode.MANUFACTURING, DebugState.DISABLED_SINCE_BOOT),
        (0b0000, 0, OperationalMode.OTHER, DebugState.DISABLED_SINCE_BOOT),
        (0b0101, 0, OperationalMode.OTHER, DebugState.DISABLED_SINCE_BOOT),
        (0b0100, 0b00001, OperationalMode.NORMAL, DebugState.ENABLED),
        (0b0100, 0b00010, OperationalMode.NORMAL, DebugState.ENABLED),
        (0b0100, 0b00100, OperationalMode.NORMAL, DebugState.DISABLED),
        (0b0100, 0b10000, OperationalMode.NORMAL, DebugState.DISABLED),
        (0b0100, 1 << 5, OperationalMode.NORMAL, DebugState.ENABLED),
        (0b0100, 1 << 31, OperationalMode.NORMAL, DebugState.ENABLED),
    ],
)
def test_device_modes(state, debug, mode, debug_state):
    assert judge.read_device_mode(struct.pack("<4I", 0xFF, state, 0x1F, debug)) == (mode, debug_state)


@given(st.binary(min_size=16, max_size=16))
def test_only_a_clean_word_is_normal_and_undebugged(value):
    mode, debug = judge.read_device_mode(value)
    assert (mode is OperationalMode.NORMAL) == (value[4:8] == b"\x04\0\0\0")
    assert (debug is DebugState.DISABLED_SINCE_BOOT) == (value[12:16] == bytes(4))


def measured(**changes):
    fields = {
        "versions": {},
        "mode": OperationalMode.NORMAL,
        "debug": DebugState.DISABLED_SINCE_BOOT,
        "mode_index": 254,
    } | changes
    return judge.Measured(**fields)


def test_debug_that_was_on_is_a_warning(world, chain):
    assert list(judge.judge_mode(measured(), chain, world.policy)) == []
    (finding,) = judge.judge_mode(measured(debug=DebugState.DISABLED), chain, world.policy)
    assert (finding.code, finding.claim, finding.index) == ("debug_was_enabled", 32, 254)
    assert finding.expected == ("disabled-since-boot",)
    assert finding.seen == "disabled"


def test_a_device_that_does_not_say_its_mode(world, chain):
    (finding,) = judge.judge_mode(measured(mode=None, debug=None), chain, world.policy)
    assert (finding.code, finding.claim) == ("device_mode_missing", 36)


def test_flags_in_certificates_are_found_each(world, chain):
    fwids = (chain.fwids[0], dataclasses.replace(chain.fwids[1], bad_flags=("recovery", "debug")))
    flagged = dataclasses.replace(chain, fwids=fwids)
    findings = list(judge.judge_mode(measured(), flagged, world.policy))
    assert [(finding.code, finding.seen, finding.claim) for finding in findings] == [
        ("tcb_flag", "recovery", 96),
        ("tcb_flag", "debug", 96),
    ]


def test_a_level_that_the_chain_does_not_have(world, chain):
    allowed = AllowedDigests(component="fwid-6", digests=("ab" * 48,), source=world.source)
    references = dataclasses.replace(world.references, fwids={6: allowed})
    (finding,) = judge.judge_fwids(chain, references, world.policy)
    assert (finding.code, finding.component, finding.claim) == ("fwid_missing", "fwid-6", 96)
    assert list(judge.judge_fwids(chain, world.references, world.policy)) == []


def test_claims_say_what_was_looked_at_and_no_more(world):
    nothing = dataclasses.replace(world.references, measurements={}, fwids={})
    assert Dimension.EXECUTABLES not in judge.base_vector(nothing, world.profile, measured())
    assert judge.base_vector(nothing, world.profile, measured())[Dimension.CONFIGURATION] == 3
    assert Dimension.CONFIGURATION not in judge.base_vector(nothing, world.profile, measured(mode=None))
    full = judge.base_vector(world.references, world.profile, measured())
    assert (full[Dimension.EXECUTABLES], full[Dimension.CONFIGURATION]) == (3, 2)
