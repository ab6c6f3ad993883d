"""Where a lab without privilege stands: a free piece of 127/8, and a policy that names it and nothing else anew."""

import filecmp
import shutil
import socket
from pathlib import Path

import pytest

from ztdpu.errors import MachineError, UsageError
from ztdpu.lab.documents import EXAMPLE_POLICIES
from ztdpu.lab.layout import MAIN_PORT
from ztdpu.lab.userspace.faces import write_policy_with_faces
from ztdpu.lab.userspace.ground import PSP_PORT, choose_ground
from ztdpu.lab.userspace.settle import ground_of, write_settled_files
from ztdpu.policy.load import load_directory

FACES = {"dpu-0": "127.77.1.129", "dpu-1": "127.77.1.130"}


def test_a_piece_where_somebody_stands_is_passed_over(tmp_path):
    first = choose_ground(str(tmp_path), 2)
    assert choose_ground(str(tmp_path), 2) == first, "the same as long as it is free"
    with socket.create_server((first.control, MAIN_PORT)):
        second = choose_ground(str(tmp_path), 2)
        assert second != first
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as face:
            face.bind((second.face(1), PSP_PORT))
            assert choose_ground(str(tmp_path), 2) not in {first, second}
    with pytest.raises(MachineError):
        choose_ground(str(tmp_path), 101)


def test_the_plan_stands_on_its_piece(plan):
    ground = ground_of(plan)
    assert [one.oob_address for one in plan.devices] == [ground.device(index) for index in range(3)]
    assert [one.underlay_address for one in plan.devices] == [ground.face(index) for index in range(3)]
    cluster = load_directory(Path(plan.policy))
    assert {name: str(one.spec.underlay.address) for name, one in cluster.devices.items()} == {
        one.name: one.underlay_address for one in plan.devices
    }


def test_nothing_but_the_addresses_of_devices_is_changed(tmp_path):
    target = tmp_path / "policy"
    write_policy_with_faces(EXAMPLE_POLICIES, target, FACES)
    changed = {
        path.relative_to(EXAMPLE_POLICIES).as_posix()
        for path in EXAMPLE_POLICIES.rglob("*.yaml")
        if not filecmp.cmp(path, target / path.relative_to(EXAMPLE_POLICIES), shallow=False)
    }
    assert changed == {"devices/dpu-0.yaml", "devices/dpu-1.yaml"}
    before = (EXAMPLE_POLICIES / "devices/dpu-0.yaml").read_text()
    assert (target / "devices/dpu-0.yaml").read_text() == before.replace("10.90.0.10", "127.77.1.129")


@pytest.mark.parametrize("written", ['address: "10.90.0.10"', "address:   10.90.0.10  # rack 4"])
def test_addresses_are_found_however_they_are_written(tmp_path, written):
    source, target = tmp_path / "source", tmp_path / "target"
    shutil.copytree(EXAMPLE_POLICIES, source)
    file = source / "devices/dpu-0.yaml"
    file.write_text(file.read_text().replace("address: 10.90.0.10", written))
    write_policy_with_faces(source, target, FACES)
    assert "127.77.1.129" in (target / "devices/dpu-0.yaml").read_text()


def test_an_address_that_cannot_be_replaced_is_refused(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(EXAMPLE_POLICIES, source)
    file = source / "devices/dpu-0.yaml"
    file.write_text(file.read_text().replace("address: 10.90.0.10", 'address: "10.90.0\\x2e10"'))
    with pytest.raises(UsageError) as refused:
        write_policy_with_faces(source, tmp_path / "target", FACES)
    assert "device dpu-0" in str(refused.value)


def test_start_up_files_name_port_and_addresses_of_this_fabric(plan):
    write_settled_files(plan, interval_s=10, lease_s=60)
    ground = ground_of(plan)
    agent = (plan.paths.device("dpu-1") / "agent.yaml").read_text()
    assert f'address: "{ground.device(1)}"' in agent
    assert f"port: {PSP_PORT}" in agent
    assert f'enrolment: "{ground.face(1)}:7401"' in agent, "through the wire, where it is counted"
    assert f'main: "{ground.control}:7402"' in (plan.paths.control / "control.yaml").read_text()
