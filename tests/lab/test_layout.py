"""Names, addresses and uid ranges of a lab; the plan on paper and back."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from ztdpu.errors import StateError, UsageError
from ztdpu.lab.documents import EXAMPLE_POLICIES, make_plan
from ztdpu.lab.layout import (
    UID_RANGE,
    check_names,
    check_socket_paths,
    decode_plan,
    encode_plan,
    gso_limit_octets,
    lab_command,
    port_name,
    uid_base,
)
from ztdpu.policy.load import load_directory


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    state = tmp_path_factory.mktemp("state")
    cluster = load_directory(EXAMPLE_POLICIES)
    return make_plan(cluster, state=state, prefix="try", mtu_octets=9000, policy=EXAMPLE_POLICIES)


def test_the_example_cluster_is_planned(plan):
    assert [device.name for device in plan.devices] == ["dpu-0", "dpu-1"]
    assert [endpoint.name for endpoint in plan.endpoints] == ["blue-0", "blue-1", "green-0", "red-0", "red-1"]
    assert plan.endpoint("blue-0").addresses == plan.endpoint("red-0").addresses
    assert plan.endpoint("blue-0").mtu_octets == 9000 - 60
    assert set(plan.namespaces) >= {"try-fabric", "try-oob", "try-control", "try-dpu-0", "try-blue-0"}


def test_a_plan_reads_back_as_it_was(plan):
    assert decode_plan(json.loads(json.dumps(encode_plan(plan)))) == plan


def test_a_foreign_record_is_refused():
    with pytest.raises(StateError):
        decode_plan({"state": "/x"})


def test_uid_ranges_do_not_overlap_within_a_lab(plan):
    bases = sorted(one.uid_base for one in (*plan.devices, *plan.endpoints))
    assert all(later - earlier >= UID_RANGE for earlier, later in pairwise(bases))
    assert bases[-1] + UID_RANGE < 2**31


def test_labs_of_other_names_get_other_ranges():
    assert uid_base("/run/a", "p", 0) != uid_base("/run/b", "p", 0)


@pytest.mark.parametrize("names", [("a", "a"), ("a", "fabric"), ("control",), ("factory",), ("x" * 300,), ("a/b",)])
def test_names_that_clash_are_refused(names):
    with pytest.raises(UsageError):
        check_names(names)


def test_names_that_do_not_clash_are_taken():
    check_names(("dpu-0", "blue-0"))


def test_an_unknown_name_lists_the_known_ones(plan):
    with pytest.raises(UsageError) as caught:
        plan.endpoint("blue-7")
    assert "blue-0" in caught.value.remedy
    with pytest.raises(UsageError) as caught:
        plan.device("dpu-7")
    assert "dpu-1" in caught.value.remedy


@pytest.mark.parametrize("mtu_octets", [1280, 1440, 8940, 65_000])
def test_sealed_segments_of_the_largest_super_packet_fit_one_send(mtu_octets):
    limit = gso_limit_octets(mtu_octets)
    payload = mtu_octets - 120
    segments = -(-(limit - 120) // payload)
    assert limit + segments * (120 + 32) <= 65_507 + 152
    assert limit >= min(mtu_octets, 65_000) or mtu_octets > 60_000


def test_port_names_fit_the_kernel():
    assert port_name(3, "dpu-3") == "dpu-3"
    assert port_name(3, "a-device-with-a-long-name") == "port3"


def test_a_state_directory_too_deep_for_sockets_is_refused(plan):
    check_socket_paths(replace(plan, state="/run/ztdpu/lab"))
    with pytest.raises(UsageError, match="too long for a socket"):
        check_socket_paths(replace(plan, state="/run/" + "x" * 90))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("down", "/run/ztdpu/lab"), "ztdpu lab down"),
        (("down", "/run/x"), "ztdpu lab down --state /run/x"),
        (("exec", "/run/a b", "blue-0 -- true"), "ztdpu lab exec --state '/run/a b' blue-0 -- true"),
    ],
)
def test_a_printed_command_is_complete(arguments, expected):
    assert lab_command(*arguments) == expected


def test_a_printed_up_names_the_prefix_where_it_is_not_the_usual_one():
    assert lab_command("up", "/run/x", "--replace", prefix="p") == "ztdpu lab up --state /run/x --prefix p --replace"
    assert lab_command("up", "/run/ztdpu/lab", prefix="ztdpu") == "ztdpu lab up"
