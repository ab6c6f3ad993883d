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
    # SPDM 1.1 has no types above 4.
    assert profile.spdm_version == "1.1"
    assert [profile.measurement(index).value_type for index in (1, 5, 7, 254)] == [0x83, 0x82, 0x02, 0x82]
    assert profile.measurement(254).octets == 16
    assert profile.measurement(11) is None
    assert profile.component("gpu") is None


def test_the_other_profiles_differ_where_products_differ():
    erot, generic = load_profile("bluefield-3-erot"), load_profile("generic")
    assert (erot.spdm_version, erot.one_by_one, erot.measurement_hash) == ("1.1", True, "sha384")
    assert [spec.index for spec in erot.measurements if spec.slow_ms] == [50]
    assert (generic.spdm_version, generic.signature, generic.hash) == ("1.2", "ecdsa-p256", "sha256")
    assert generic.fwid_extension is FwidExtension.TCB_INFO
    assert [generic.measurement(index).value_type for index in (3, 4, 5, 254)] == [0x03, 0x86, 0x87, 0x85]
    assert [level.role for level in generic.levels] == [
        LevelRole.ROOT, LevelRole.PROVISIONER, LevelRole.DEVICE_ID, LevelRole.ALIAS,
    ]  # fmt: skip


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
        pytest.param('version = "1.1"', 'version = "1.3"', id="version that is not spoken"),
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
        pytest.param('hash = "sha384" ', 'hash = "sha256" ', id="hash of another curve"),
        pytest.param('"sha512"', '"sha512"\none_by_one = 1', id="number for a truth"),
        pytest.param("index = 3\n", "index = 3\nslow_ms = 5\n", id="FWID over a slow measurement"),
        pytest.param("index = 1\n", "index = 1\nslow_ms = 60001\n", id="slower than can be"),
        pytest.param("[spdm]", "[spdm", id="not TOML"),
    ],
)
def test_faults_are_refused_by_file(old, new):
    parse_profile(TEXT, file="good.toml")
    assert old in TEXT
    with pytest.raises(ConfigurationError, match=r"^bad\.toml profile is malformed"):
        parse_profile(TEXT.replace(old, new, 1), file="bad.toml")
