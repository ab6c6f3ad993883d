"""A plan of two devices on a free piece of 127/8, in a directory of its own."""

import pytest

from ztdpu.lab.documents import EXAMPLE_POLICIES, plan_lab
from ztdpu.lab.fabric.choice import Fabric, Isolation
from ztdpu.lab.manufacture import make_directories
from ztdpu.lab.record import LabRecord
from ztdpu.lab.userspace.settle import settle


@pytest.fixture
def plan(tmp_path):
    plan = settle(
        plan_lab(
            state=tmp_path,
            prefix="ztu",
            mtu_octets=9000,
            policy=EXAMPLE_POLICIES,
            devices=None,
            strangers=("dpu-x",),
            shared_uid=True,
        )
    )
    make_directories(plan)
    LabRecord(plan=plan, fabric=Fabric.USERSPACE, isolation=Isolation.SHARED_UID).write()
    return plan
