"""Where labs lie by default: with their user, and in no directory that somebody else prepared."""

import os
from pathlib import Path

import pytest

from ztdpu.rpc.places import make_runtime_directory, runtime_directory


def test_a_user_has_a_place_of_its_own(tmp_path):
    assert runtime_directory(1000, {"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path / "ztdpu"
    for session in ({}, {"XDG_RUNTIME_DIR": ""}, {"XDG_RUNTIME_DIR": "here"}, {"XDG_RUNTIME_DIR": "/nowhere"}):
        assert runtime_directory(1000, session) == Path("/tmp/ztdpu-1000")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_has_the_usual_place_whatever_its_session_says(tmp_path):
    assert runtime_directory(0, {"XDG_RUNTIME_DIR": str(tmp_path)}) == Path("/run/ztdpu")


def test_the_place_is_made_private_and_found_again(tmp_path):
    place = tmp_path / "ztdpu-1000"
    make_runtime_directory(place)
    make_runtime_directory(place)
    assert place.stat().st_mode & 0o777 == 0o700


def test_what_others_can_write_or_lead_elsewhere_is_refused(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("open", "link"):
        with pytest.raises(PermissionError, match="not yours alone"):
            make_runtime_directory(tmp_path / name)
    if os.geteuid() == 0:
        (tmp_path / "theirs").mkdir(mode=0o700)
        os.chown(tmp_path / "theirs", 65534, 65534)
        with pytest.raises(PermissionError, match="not yours alone"):
            make_runtime_directory(tmp_path / "theirs")
