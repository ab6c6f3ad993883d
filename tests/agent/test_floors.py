from __future__ import annotations

import pytest

from ztdpu.agent.floors import FILE_NAME, Floors, load_floors, raise_floors
from ztdpu.errors import ConfigurationError


def test_nothing_there_means_zero(tmp_path):
    assert load_floors(tmp_path) == Floors()


def test_raised_floors_outlive_a_restart(tmp_path):
    raised = raise_floors(tmp_path, Floors(), roster_serial=3, roster_sha256="ab" * 32, generation=10)
    assert load_floors(tmp_path) == raised == Floors(roster_serial=3, roster_sha256="ab" * 32, generation=10)


def test_floors_never_go_down(tmp_path):
    high = raise_floors(tmp_path, Floors(), roster_serial=3, roster_sha256="ab" * 32, generation=10)
    assert raise_floors(tmp_path, high, roster_serial=2, roster_sha256="cd" * 32, generation=9) == high
    assert load_floors(tmp_path) == high


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"generation": -1}', '{"generation": "7"}', '{"other": 1}', "{"],
)
def test_a_damaged_file_is_named_and_not_ignored(tmp_path, text):
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load_floors(tmp_path)
    assert FILE_NAME in str(caught.value)
