"""Where the taps of a lab without privilege are, and what a program in one of its places finds in its environment.

Read by the factory and the wire, which serve the taps, and by `lab.enter`, which says where they are.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ztdpu.lab.capture import TAP_VARIABLE
from ztdpu.lab.layout import LabPlan
from ztdpu.lab.processes import base_environment
from ztdpu.lab.userspace.tap import PLACE_VARIABLE

WIRE: Final = "wire"
"""Name of the process between devices, in the lab's record."""


def endpoint_tap(plan: LabPlan) -> Path:
    """Where the factory lets programs at endpoints."""
    return plan.paths.state / "endpoints.sock"


def wire_tap(plan: LabPlan) -> Path:
    """Where the wire lets programs at what passes."""
    return plan.paths.state / "wire.sock"


def find_tap(plan: LabPlan, target: str) -> Path:
    """Where programs in the place `target` are let in."""
    return endpoint_tap(plan) if target in {one.name for one in plan.endpoints} else wire_tap(plan)


def own_environment(plan: LabPlan, target: str = "") -> dict[str, str]:
    """Return the environment of a process of the lab; with a target, that of a program in that place."""
    environment = base_environment(plan.state, home=os.environ.get("HOME", "/"))
    if target:
        environment |= {TAP_VARIABLE: str(find_tap(plan, target)), PLACE_VARIABLE: target}
    return environment
