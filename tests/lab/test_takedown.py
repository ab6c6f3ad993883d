"""The directory of a lab: held by one command, and in no place that somebody else prepared."""

import pytest

from ztdpu.errors import StateError, UsageError
from ztdpu.lab import takedown
from ztdpu.lab.layout import real_path
from ztdpu.lab.takedown import locked


def test_a_usual_place_that_leads_elsewhere_holds_no_lab(tmp_path, monkeypatch):
    """Also when its link was followed before, as every command follows links."""
    place, elsewhere = tmp_path / "ztdpu-1000", tmp_path / "elsewhere"
    monkeypatch.setattr(takedown, "RUNTIME_DIRECTORY", place)
    elsewhere.mkdir(mode=0o700)
    place.symlink_to(elsewhere)
    with pytest.raises(UsageError, match="not yours alone"), locked(real_path(place / "lab")):
        pass
    assert not list(elsewhere.iterdir())
    place.unlink()
    with locked(real_path(place / "lab")):
        assert (place / "lab").is_dir()


def test_two_commands_do_not_mix(tmp_path):
    with locked(tmp_path), pytest.raises(StateError, match="another lab command"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass
