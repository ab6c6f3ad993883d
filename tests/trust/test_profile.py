"""Profiles as data."""

import pytest

from ztdpu.errors import ConfigurationError
from ztdpu.trust.profile import (
    PROFILES_FOLDER,
    FwidExtension,
    LevelRole,
    MeasurementKind,
    list_profiles,
    load_profile,
    parse_profile,
)

TEXT = (PROFILES_FOLDER / "bluefield-3.toml").read_text()


@pytest.mark.parametrize("name", list_profiles())
def test_every_shipped_profile_loads_and_says_that_it_is_emulated(name):
    profile = load_profile(name)
    assert profile.name == name
    assert all("emulated" in level.common_name for level in profile.levels)


def test_bluefield_3():
    profile = load_profile("bluefield-3")
    assert [level.role for level in profile.levels] == list(LevelRole)
    assert profile.device_id_level == 3
    assert profile.fwid_extension is FwidExtension.COMPOSITE_DEVICE_ID
    assert [spec.index for spec in profile.measurements] == [*range(1, 11), 254]
    nic = profile.component("nic-firmware")
    assert nic is not None
    assert (nic.index, nic.kind, nic.octets, nic.value_type) == (3, MeasurementKind.FIRMWARE, 64, 0x01)
    assert profile.measurement(1).value_type == 0x86
    assert profile.measurement(254).octets == 16
    assert profile.measurement(11) is None
    assert profile.component("gpu") is None


@pytest.mark.parametrize("name", ["", "none", "../bluefield-3", "bluefield-3.toml", "BLUEFIELD-3", "/etc/passwd"])
def test_unknown_names_are_refused_with_what_there_is(name):
    with pytest.raises(ConfigurationError) as caught:
        load_profile(name)
    assert "bluefield-3" in caught.value.remedy


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param('name = "bluefield-3"\n', "", id="field missing"),
        pytest.param('vendor = "NVIDIA"', 'vendor = "NVIDIA"\ncolour = "red"', id="unknown field"),
        pytest.param('version = "1.2"', 'version = "1.1"', id="version that is not spoken"),
        pytest.param('"ecdsa-p384"', '"rsa-3072"', id="signature that is not known"),
        pytest.param('measurement_hash = "sha512"', 'measurement_hash = "md5"', id="measurement hash"),
        pytest.param("index = 2\n", "index = 1\n", id="index twice"),
        pytest.param("index = 254", "index = 255", id="reserved index"),
        pytest.param('"psc-firmware"', '"nic-firmware"', id="component twice"),
        pytest.param('kind = "svn" ', 'kind = "mood" ', id="unknown kind"),
        pytest.param("fwid_covers = [3, 4]", "fwid_covers = [3, 77]", id="FWID over nothing"),
        pytest.param("fwid_covers = [3, 4]", "", id="alias without FWID"),
        pytest.param('role = "device-id"', 'role = "family"', id="no DeviceID"),
        pytest.param('role = "root"', 'role = "family"', id="no root"),
        pytest.param("[spdm]", "[spdm", id="not TOML"),
    ],
)
def test_faults_are_refused_by_file(old, new):
    parse_profile(TEXT, file="good.toml")
    assert old in TEXT
    with pytest.raises(ConfigurationError, match=r"^bad\.toml profile is malformed"):
        parse_profile(TEXT.replace(old, new, 1), file="bad.toml")
