"""Who attacks whom, and which flows are tried: chosen from any lab's plan."""

from pathlib import Path

import pytest

from ztdpu.errors import UsageError
from ztdpu.lab.campaign import choose_cast
from ztdpu.lab.connectivity import allowed_flows
from ztdpu.lab.documents import EXAMPLE_POLICIES, plan_lab
from ztdpu.policy.load import load_directory


@pytest.fixture
def plan(tmp_path):
    return plan_lab(
        state=tmp_path, prefix="ztc", mtu_octets=9000, policy=EXAMPLE_POLICIES, devices=None, strangers=("dpu-x",)
    )


def test_the_example_has_an_attacker_a_mate_a_victim_and_a_namesake(plan):
    cast = choose_cast(plan, spare="dpu-x")
    assert (cast.attacker.name, cast.mate.name, cast.victim.name) == ("red-0", "red-1", "green-0")
    assert [one.name for one in cast.namesakes] == ["blue-1"]


def test_a_lab_of_one_tenant_has_no_victim(plan):
    from dataclasses import replace

    blue = replace(plan, endpoints=tuple(one for one in plan.endpoints if one.tenant == "blue"))
    with pytest.raises(UsageError):
        choose_cast(blue)


def test_every_allowed_flow_is_named_once_and_no_other(plan):
    flows = list(allowed_flows(load_directory(Path(plan.policy)), plan))
    names = [flow.name for flow in flows]
    assert len(names) == len(set(names)) == 28
    assert "blue-0 -> blue-1 tcp/5005 v4" in names
    assert "red-1 -> red-0 ping v6" in names
    assert {flow.source.tenant for flow in flows} == {"blue", "red"}, "green opens nothing"
    across = [flow.name for flow in flows if flow.source.tenant != flow.destination.tenant]
    assert across == [f"blue-{rank} -> green-0 tcp/2049 v{version}" for rank in (0, 1) for version in (4, 6)]
