"""`ztdpu job`: what can be told without control."""

import pytest

from ztdpu.cli.job import read_duration_s
from ztdpu.errors import UsageError


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("1h", 3600), ("1d", 86_400)])
def test_durations(text, seconds):
    assert read_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0h", "-1", "1w", "1.5h", "h", "9999999s"])
def test_no_durations(text):
    with pytest.raises(UsageError):
        read_duration_s(text)
