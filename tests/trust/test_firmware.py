"""Stand-in firmware and its measurements."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ztdpu.errors import ConfigurationError
from ztdpu.trust.firmware import (
    Firmware,
    FirmwareFault,
    alter_firmware,
    compute_fwid,
    decode_version,
    default_firmware,
    encode_version,
    measure,
)
from ztdpu.trust.profile import load_profile

PROFILE = load_profile("bluefield-3")
SHIPPED = default_firmware(PROFILE)


def values(firmware):
    return {block.index: block.value for block in measure(PROFILE, firmware)}


def test_every_measurement_of_the_profile_is_there_in_its_type_and_size():
    for block, spec in zip(measure(PROFILE, SHIPPED), PROFILE.measurements, strict=True):
        assert (block.index, block.dmtf_type, len(block.value)) == (spec.index, spec.value_type, spec.octets)


def test_shipped_firmware_is_the_same_everywhere():
    # Reference values in policies name these digests: a change here is a change for every operator.
    text = b"emulated bluefield-3 nic-firmware 1.0.0"
    assert values(SHIPPED)[3] == hashlib.sha512(text).digest()
    assert values(SHIPPED)[1] == bytes((0, 0, 0, 1))
    assert values(SHIPPED)[5] == (1).to_bytes(8, "little")
    assert values(SHIPPED)[254].hex() == "0d000000040000001f00000000000000"


def test_altered_firmware_changes_the_nic_and_what_covers_it_alone():
    altered = alter_firmware(PROFILE, SHIPPED, FirmwareFault.FIRMWARE_ALTERED)
    before, after = values(SHIPPED), values(altered)
    assert [index for index in before if before[index] != after[index]] == [3]
    changed = [
        level.common_name
        for level in PROFILE.levels
        if level.fwid_covers
        and compute_fwid(PROFILE, level, measure(PROFILE, SHIPPED))
        != compute_fwid(PROFILE, level, measure(PROFILE, altered))
    ]
    assert changed == [PROFILE.levels[-1].common_name]


@given(st.integers(0, 255), st.integers(0, 65535), st.integers(0, 255))
def test_version_round_trip(major, minor, patch):
    assert decode_version(encode_version(f"{major}.{minor}.{patch}")) == (major, minor, patch)


def test_version_octets_stand_as_the_product_has_them():
    assert encode_version("24.513.7") == bytes((7, 0x01, 0x02, 24))
    with pytest.raises(ValueError):
        decode_version(bytes(5))


@pytest.mark.parametrize(
    ("component", "value"),
    [
        ("version", "1.2"),
        ("version", "256.0.0"),
        ("version", 1),
        ("nic-rollback-counters", -1),
        ("nic-rollback-counters", 1 << 64),
        ("nic-rollback-counters", True),
        ("nic-rollback-counters", "1"),
        ("device-mode", "asleep"),
        ("nic-firmware", 7),
        ("nic-firmware", "x" * 1025),
    ],
)
def test_values_that_a_component_cannot_have_are_refused(component, value):
    with pytest.raises(ConfigurationError, match=component):
        measure(PROFILE, Firmware(components={**SHIPPED.components, component: value}))


def test_missing_and_unknown_components_are_refused():
    less = {name: value for name, value in SHIPPED.components.items() if name != "arm-firmware"}
    with pytest.raises(ConfigurationError, match="arm-firmware"):
        measure(PROFILE, Firmware(components=less))
    with pytest.raises(ConfigurationError, match="gpu-firmware"):
        measure(PROFILE, Firmware(components={**SHIPPED.components, "gpu-firmware": "x"}))
