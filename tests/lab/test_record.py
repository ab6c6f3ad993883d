"""A lab's record: as it was, not there, or named as unreadable."""

import json
from dataclasses import replace

import pytest

from ztdpu.errors import StateError
from ztdpu.lab.fabric.choice import ISOLATION, Fabric
from ztdpu.lab.layout import LabPlan
from ztdpu.lab.processes import Process
from ztdpu.lab.record import LabRecord, read_record, require_record


@pytest.fixture
def written(tmp_path):
    plan = LabPlan(state=str(tmp_path), prefix="p", mtu_octets=9000, policy="/x", devices=(), endpoints=())
    record = LabRecord(plan=plan, complete=True, strangers=("dpu-x",), processes={"control": Process(1, 2)})
    record.write()
    return record


def test_a_record_reads_back_as_it_was(written, tmp_path):
    assert read_record(tmp_path) == require_record(tmp_path) == written


@pytest.mark.parametrize("fabric", list(Fabric))
def test_fabric_and_isolation_are_remembered(written, tmp_path, fabric):
    replace(written, fabric=fabric, isolation=ISOLATION[fabric]).write()
    read = require_record(tmp_path)
    assert (read.fabric, read.isolation) == (fabric, ISOLATION[fabric])


def test_a_fabric_that_nobody_knows_is_garbage(written, tmp_path):
    file = tmp_path / "lab.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"fabric": "carrier pigeon"}))
    with pytest.raises(StateError, match="is not readable"):
        read_record(tmp_path)


@pytest.mark.parametrize("content", [None, b"{}"])
def test_where_nothing_was_planned_there_is_no_record(tmp_path, content):
    if content is not None:
        (tmp_path / "lab.json").write_bytes(content)
    assert read_record(tmp_path) is None
    with pytest.raises(StateError, match="no lab in") as caught:
        require_record(tmp_path)
    assert f"ztdpu lab up --state {tmp_path}" in caught.value.remedy


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"plan": {}}', b'{"plan": null}', b'{"plan": {"devices": 1}}', b"[" * 9],
)
def test_garbage_is_named_and_the_way_out_is_complete(tmp_path, content):
    (tmp_path / "lab.json").write_bytes(content)
    with pytest.raises(StateError, match=r"lab\.json is not readable") as caught:
        read_record(tmp_path)
    assert f"ztdpu lab down --state {tmp_path}" in caught.value.remedy


@pytest.mark.parametrize("processes", [[], {"control": 1}, {"control": [1]}, {"control": ["a", "b"]}, None])
def test_processes_that_are_none_are_garbage_too(written, tmp_path, processes):
    file = tmp_path / "lab.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"processes": processes}))
    with pytest.raises(StateError, match="is not readable"):
        read_record(tmp_path)


def test_a_record_that_is_a_directory_is_garbage(tmp_path):
    (tmp_path / "lab.json").mkdir()
    with pytest.raises(StateError, match="is not readable"):
        read_record(tmp_path)


def test_the_record_of_another_directory_is_not_believed(written, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "lab.json").write_text((tmp_path / "lab.json").read_text())
    with pytest.raises(StateError, match=f"is that of {tmp_path}"):
        read_record(copy)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    assert read_record(link) == written, "another name for the same directory is none"
