"""Policy tests wait for devices that have only begun, and not for ever."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ztdpu.control.policy.watch import SETTLING_MS, PolicyWatch
from ztdpu.model.device import DeviceState

BEGAN_MS = 1_000_000


def watch(state: DeviceState, since_unix_ms: int) -> PolicyWatch:
    record = SimpleNamespace(state=state, since_unix_ms=since_unix_ms)
    fleet: Any = SimpleNamespace(now=lambda: SimpleNamespace(unix_ms=BEGAN_MS), record=lambda _: record)
    return PolicyWatch(fleet, SimpleNamespace())  # type: ignore[arg-type] - what is asked of them, and no more


@pytest.mark.parametrize(
    ("state", "since_unix_ms", "after_ms", "may_yet_come"),
    [
        (DeviceState.PENDING, 0, 0, True),
        (DeviceState.PENDING, 0, SETTLING_MS - 1, True),
        (DeviceState.PENDING, 0, SETTLING_MS, False),
        (DeviceState.PENDING, BEGAN_MS + 60_000, 60_001, True),
        (DeviceState.PENDING, BEGAN_MS - SETTLING_MS, 0, False),
        (DeviceState.REVOKED, BEGAN_MS, 1, False),
        (DeviceState.QUARANTINED, BEGAN_MS, 1, False),
    ],
)
def test_only_a_device_that_has_just_begun_is_waited_for(
    state: DeviceState, since_unix_ms: int, after_ms: int, *, may_yet_come: bool
) -> None:
    assert watch(state, since_unix_ms)._may_yet_come("dpu-0", BEGAN_MS + after_ms) is may_yet_come
