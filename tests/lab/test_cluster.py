"""What a lab asks of its machine before it makes anything."""

import pytest

from ztdpu.lab.fabric.obstacles import has_uids
from ztdpu.lab.layout import LAST_UID


@pytest.mark.parametrize(
    ("uid_map", "expected"),
    [
        ("         0          0 4294967295\n", True),
        ("0 0 1\n1 1 2147483647\n", True),
        ("         0       1000          1\n         1     100000      65536\n", False),
        ("0 0 65536\n", False),
        ("", False),
    ],
)
def test_only_a_root_with_all_uids_will_do(uid_map, expected):
    assert has_uids(uid_map) is expected


def test_the_last_uid_is_one_that_programs_can_store():
    assert LAST_UID < 2**31
