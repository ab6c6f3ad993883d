"""Start-up files of a lab, as control and agents read them."""

import pytest

from ztdpu.control.configuration import ControlConfiguration
from ztdpu.lab.documents import EXAMPLE_POLICIES, plan_lab
from ztdpu.lab.manufacture import agent_document, control_document


@pytest.mark.parametrize("mtu_octets", [1500, 9000])
def test_control_and_agents_know_the_mtu_of_the_lab(tmp_path, mtu_octets):
    plan = plan_lab(state=tmp_path, prefix="try", mtu_octets=mtu_octets, policy=EXAMPLE_POLICIES, devices=None)
    control = ControlConfiguration.model_validate(control_document(plan, interval_s=10, lease_s=60))
    assert control.spec.underlay_mtu_octets == mtu_octets
    for device in plan.devices:
        assert agent_document(plan, device)["spec"]["underlay"]["mtuOctets"] == mtu_octets
