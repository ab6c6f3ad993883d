"""The `ip` commands of a lab, as text."""

import pytest

from ztdpu.errors import MachineError
from ztdpu.lab.documents import EXAMPLE_POLICIES, make_plan
from ztdpu.lab.namespaces.links import device_lines, fabric_lines, oob_device_lines, oob_lines, run_here, silence_lines
from ztdpu.policy.load import load_directory


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    state = tmp_path_factory.mktemp("state")
    return make_plan(
        load_directory(EXAMPLE_POLICIES), state=state, prefix="p", mtu_octets=1500, policy=EXAMPLE_POLICIES
    )


def test_every_device_has_a_cable_to_both_bridges(plan):
    fabric, oob = "\n".join(fabric_lines(plan)), "\n".join([*oob_lines(plan), *oob_device_lines(plan)])
    for device in ("dpu-0", "dpu-1"):
        assert f"peer name underlay0 mtu 1500 netns p-{device}" in fabric
        assert f"peer name oob0 netns p-{device}" in oob
    assert "netns p-control" in oob
    assert "control" not in fabric, "the fabric is the tenants' traffic and nothing else"


def test_the_bridge_says_nothing_by_itself(plan):
    assert "mcast_snooping 0" in fabric_lines(plan)[0]
    assert "stp_state 0" in fabric_lines(plan)[0]


def test_addresses_of_both_families_are_set_without_waiting():
    assert "addr add 10.90.0.10/16 dev underlay0" in device_lines("10.90.0.10", "10.91.0.10")
    assert "addr add fd90::10/64 dev underlay0 nodad" in device_lines("fd90::10", "10.91.0.10")


def test_the_kernel_of_a_device_is_kept_silent():
    assert silence_lines("10.90.0.10") == ["rule add pref 10 ipproto icmp to 10.90.0.0/16 blackhole"]
    assert silence_lines("fd90::10") == ["rule add pref 10 ipproto ipv6-icmp to fd90::/64 blackhole"]


def test_what_ip_says_is_passed_on():
    with pytest.raises(MachineError, match="no-such-link"):
        run_here(["link show dev no-such-link"])
