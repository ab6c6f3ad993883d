"""`ztdpu lab fault` without a lab: what it refuses and says; with one: tests/e2e/test_faults.py."""

import os
import subprocess
import sys

import pytest

from ztdpu.agent.root_of_trust import FAULT_SET, open_door
from ztdpu.errors import StateError, UsageError
from ztdpu.lab.faults import PRESETS, read_preset, set_at_door, set_fault
from ztdpu.trust.faults import Preset


def test_words():
    assert [read_preset(word) for word in PRESETS] == list(Preset)
    with pytest.raises(UsageError) as caught:
        read_preset("Silent")
    assert "silent" in caught.value.remedy


def test_no_lab_and_nobody_behind_the_door(tmp_path):
    with pytest.raises(StateError):
        set_fault(tmp_path, "dpu-0", Preset.SILENT)
    with pytest.raises(StateError, match="does not take faults") as caught:
        set_at_door(tmp_path / "fault.sock", Preset.SILENT, remedy="start it")
    assert caught.value.remedy == "start it"


@pytest.mark.parametrize(("answer", "words"), [(FAULT_SET, None), (b"no such preset", "no such"), (b"", "hung up")])
def test_answers(tmp_path, answer, words):
    path = tmp_path / "fault.sock"
    door = open_door(path)
    door.setblocking(True)
    pid = os.fork()
    if not pid:
        peer, _ = door.accept()
        if peer.recv(100) == b"old-boot" and answer:
            peer.send(answer)
        os._exit(0)
    try:
        if words is None:
            set_at_door(path, Preset.OLD_BOOT, remedy="")
        else:
            with pytest.raises(StateError, match=words):
                set_at_door(path, Preset.OLD_BOOT, remedy="")
    finally:
        os.waitpid(pid, 0)
        door.close()


def test_the_command_line_says_what_there_is(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "ztdpu", "lab", "fault", "dpu-0", "lazy", "--state", str(tmp_path)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "malleated-signature" in ended.stderr
    assert "Traceback" not in ended.stderr
