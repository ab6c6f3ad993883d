"""Generated documents: more devices than the policy directory has, read back by the strict loader."""

import shutil

import pytest

from ztdpu.errors import PolicyError, UsageError
from ztdpu.lab.documents import EXAMPLE_POLICIES, generate_documents, plan_lab, write_yaml
from ztdpu.policy.load import load_directory


def make(tmp_path, **changes):
    return plan_lab(
        **{"state": tmp_path, "prefix": "try", "mtu_octets": 9000, "policy": EXAMPLE_POLICIES, "devices": None}
        | changes
    )


def test_a_directory_that_suffices_is_used_where_it_lies(tmp_path):
    assert make(tmp_path).policy == str(EXAMPLE_POLICIES)
    assert list(tmp_path.iterdir()) == []


def test_more_devices_bring_endpoints_of_the_tenants_that_span_devices(tmp_path):
    plan = make(tmp_path, devices=4)
    assert [device.name for device in plan.devices] == ["dpu-0", "dpu-1", "dpu-2", "dpu-3"]
    assert {e.name for e in plan.endpoints} == {
        "blue-0", "blue-1", "blue-2", "blue-3", "red-0", "red-1", "red-2", "red-3", "green-0",
    }  # fmt: skip
    assert plan.endpoint("blue-2").device == "dpu-2"
    assert plan.endpoint("blue-3").addresses == plan.endpoint("red-3").addresses == ("10.1.0.13", "fd00:1::13")
    assert plan.device("dpu-3").underlay_address == "10.90.0.13"
    cluster = load_directory(plan.policy)
    assert cluster.endpoints["blue-2"].labels == cluster.endpoints["blue-0"].labels


def test_a_stranger_has_no_endpoint(tmp_path):
    plan = make(tmp_path, strangers=("dpu-x",))
    assert plan.device("dpu-x").underlay_address == "10.90.0.12"
    assert not [endpoint for endpoint in plan.endpoints if endpoint.device == "dpu-x"]


@pytest.mark.parametrize("devices", [0, 1, 65])
def test_a_number_that_does_not_fit_is_refused(tmp_path, devices):
    with pytest.raises(UsageError):
        make(tmp_path, devices=devices)


def test_a_broken_policy_is_refused_before_anything_is_made(tmp_path):
    broken = tmp_path / "policies"
    shutil.copytree(EXAMPLE_POLICIES, broken)
    (broken / "devices" / "dpu-0.yaml").write_text("kind: [")
    state = tmp_path / "state"
    state.mkdir()
    with pytest.raises(PolicyError):
        make(state, policy=broken, devices=3)
    assert list(state.iterdir()) == []


def test_names_in_use_are_stepped_over(tmp_path):
    changed = tmp_path / "policies"
    shutil.copytree(EXAMPLE_POLICIES, changed)
    text = (changed / "devices" / "dpu-1.yaml").read_text().replace("dpu-1", "dpu-2")
    (changed / "devices" / "dpu-1.yaml").write_text(text)
    for tenant in ("blue", "red"):
        file = changed / "endpoints" / f"{tenant}.yaml"
        file.write_text(file.read_text().replace("device: dpu-1", "device: dpu-2"))
    names = [d["metadata"]["name"] for d in generate_documents(load_directory(changed), 3) if d["kind"] == "Device"]
    assert names == ["dpu-3"]


def test_written_yaml_reads_back_as_it_was():
    from ruamel.yaml import YAML

    document = {
        "a": {"name": "yes", "address": "fd00:1::10", "number": 3, "truth": True, "empty": {}, "text": "x: y"},
        "list": ["10.1.0.10", "on", "plain/path"],
        "half": 0.5,
    }
    assert YAML(typ="safe").load(write_yaml(document)) == document
