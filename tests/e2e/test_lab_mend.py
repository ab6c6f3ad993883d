"""A lab that something happened to: what is said about it, what mends it, and what is found of it without a record."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ztdpu.lab import marks, processes
from ztdpu.lab.namespaces import netns
from ztdpu.lab.record import read_record

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
ROOT = Path(__file__).parents[2]


def kill(lab, name):
    process = read_record(lab.state).processes[name]
    processes.end_members([process.pid])
    return process.pid


def kill_all(lab):
    processes.end_members(processes.find_members(str(lab.state)))


def names(lab):
    return [path.name for path in netns.NAMES.iterdir() if path.name.startswith(f"{lab.prefix}-")]


def is_gone(lab):
    return not names(lab) and not processes.find_members(str(lab.state)) and not lab.state.exists()


def look(lab, *options):
    return lab.ztdpu("lab", "status", "--state", str(lab.state), *options, check=False)


def exec_in(lab, directory, target, *command):
    words = [sys.executable, "-m", "ztdpu", "lab", "exec", "--state", str(lab.state), target, "--", *command]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        words, cwd=directory, capture_output=True, text=True, timeout=60, env=environment, check=False
    )


def lab_words(lab, verb, rest=""):
    return f"ztdpu lab {verb} --state {lab.state} {rest}".rstrip()


@pytest.mark.parametrize("target", ["blue-0", "dpu-0", "fabric", "control"])
def test_a_command_starts_where_the_caller_stands(lab, target):
    ended = exec_in(lab, ROOT / "examples", target, "sh", "-c", "pwd; ls train_digits.py")
    assert (ended.stdout.split(), ended.stderr) == ([str(ROOT / "examples"), "train_digits.py"], "")


def test_a_directory_that_is_not_visible_there_is_named(lab, tmp_path):
    (tmp_path / "mine").mkdir()
    ended = exec_in(lab, tmp_path / "mine", "blue-0", "pwd")
    assert ended.stdout == "/\n"
    assert ended.stderr == f"note: {tmp_path / 'mine'} is not visible in blue-0; the program starts in /\n"
    assert exec_in(lab, tmp_path / "mine", "fabric", "pwd").stdout == f"{tmp_path / 'mine'}\n"


def test_a_healthy_lab_has_no_trouble_and_rows_that_fit(lab):
    ended = look(lab)
    assert ended.returncode == 0
    assert "TROUBLE" not in ended.stdout
    assert max(len(line) for line in ended.stdout.splitlines()) <= 80


def test_a_dead_control_is_said_to_be_dead_and_mended(lab):
    pid = kill(lab, "control")
    ended = look(lab)
    assert ended.returncode == 1
    assert f"control is dead (pid {pid}); traffic goes on until leases end" in ended.stdout
    assert f"log:  {lab.state}/logs/control.log" in ended.stdout
    assert f"next: {lab_words(lab, 'restart', 'control')}" in ended.stdout
    rows = [line.split() for line in ended.stdout.splitlines() if line.startswith(("dpu-", "blue-"))]
    assert [row[1:4] for row in rows if row[0] == "dpu-0"] == [["?", "?", "?"]]
    assert [row[3] for row in rows if row[0] == "blue-0"] == ["?"]
    assert look(lab, "-o", "json").returncode == 1
    lab.ztdpu("lab", "restart", "control", "--state", str(lab.state))
    lab.wait_ready("dpu-0", "dpu-1")
    assert lab.ping("blue-0", "blue-1", count=1) == 1


@pytest.mark.soak
def test_a_control_that_was_started_by_hand_is_no_dead_one(lab):
    kill(lab, "control")
    config, log = lab.plan.paths.control / "control.yaml", lab.plan.paths.control_log
    again = f"exec {sys.executable} -m ztdpu control run --config {config} >>{log} 2>&1 </dev/null"
    lab.exec("control", "sh", "-c", f"setsid sh -c '{again}' &")
    lab.wait_ready("dpu-0", "dpu-1")
    assert look(lab).returncode == 0
    by_hand = lab.status()["control"]["pid"]
    refused = lab.ztdpu("lab", "up", "--state", str(lab.state), "--prefix", lab.prefix, check=False)
    assert "a lab is up" in refused.stderr
    lab.ztdpu("lab", "restart", "control", "--state", str(lab.state))
    assert processes.identify(by_hand) is None, "two would fight for the socket"
    lab.wait_ready("dpu-0", "dpu-1")
    assert look(lab).returncode == 0


@pytest.mark.soak
def test_a_dead_agent_is_named_with_its_log_and_mended(lab):
    os.kill(lab.device("dpu-1")["agent_pid"], signal.SIGKILL)
    ended = look(lab)
    assert ended.returncode == 1
    assert "the agent of dpu-1 is dead" in ended.stdout
    assert f"log:  {lab.state}/logs/dpu-1.log" in ended.stdout
    assert f"next: {lab_words(lab, 'restart', 'dpu-1')}" in ended.stdout
    row = next(line for line in ended.stdout.splitlines() if line.startswith("dpu-1 "))
    assert row.endswith("agent dead")
    assert len(row) <= 80
    said = lab.ztdpu("lab", "restart", "dpu-1", "--state", str(lab.state)).stderr
    assert said.endswith("dpu-1 works again\n")
    device = lab.device("dpu-1")
    assert device["ready"]
    inside = Path(f"/proc/{device['agent_pid']}/status").read_text()
    assert f"Uid:\t{device['uid_base']}\t" in inside
    parent = int(inside.split("PPid:")[1].split()[0])
    assert parent == device["pid"], "the first process of the device reaps it"
    assert look(lab).returncode == 0


def test_a_running_agent_is_replaced(lab):
    before = lab.device("dpu-0")
    lab.ztdpu("lab", "restart", "dpu-0", "--state", str(lab.state))
    after = lab.device("dpu-0")
    assert after["agent_pid"] != before["agent_pid"]
    assert after["worker_pid"] != before["worker_pid"]
    assert lab.ping("blue-0", "blue-1", count=1) == 1


def test_a_dead_factory_is_named_and_mended(lab):
    pid = kill(lab, "factory")
    assert f"the factory is dead (pid {pid})" in look(lab).stdout
    lab.ztdpu("lab", "restart", "factory", "--state", str(lab.state))
    assert look(lab).returncode == 0
    lab.exec("blue-0", "ip", "link", "del", "ztdpu0")
    lab.wait_ready("dpu-0", "dpu-1")
    assert lab.ping("blue-0", "blue-1", count=3) > 0


def test_what_cannot_be_restarted_is_refused(lab):
    ended = lab.ztdpu("lab", "restart", "blue-0", "--state", str(lab.state), check=False)
    assert ended.returncode == 2
    assert "parts: control, factory, dpu-0, dpu-1" in ended.stderr


def test_the_usage_line_and_the_hints_are_complete(lab):
    assert "lab exec [OPTIONS] TARGET -- COMMAND [ARGS]..." in lab.ztdpu("lab", "exec", "--help").stdout
    ended = lab.ztdpu("lab", "exec", "--state", str(lab.state), "blue-0", check=False)
    assert f"next: {lab_words(lab, 'exec', 'blue-0 -- COMMAND [ARGS]...')}" in ended.stderr


@pytest.mark.soak
def test_a_dead_endpoint_is_named(new_lab):
    lab = new_lab().up()
    kill(lab, "green-0")
    ended = look(lab)
    assert ended.returncode == 1
    assert "green-0 is dead" in ended.stdout
    entered = lab.exec("green-0", "true", check=False)
    assert f"next: ztdpu lab up --state {lab.state} --prefix {lab.prefix} --replace" in entered.stderr


def test_down_finds_everything_when_the_record_is_garbage(new_lab):
    lab = new_lab().up()
    (lab.state / "lab.json").write_text('{"plan": ')
    for verb in (("exec", "blue-0"), ("status",), ("up", "--prefix", lab.prefix)):
        words = ("true",) if verb[0] == "exec" else ()
        refused = lab.ztdpu("lab", *verb, "--state", str(lab.state), *words, check=False)
        assert refused.returncode == 1
        assert "lab.json is not readable" in refused.stderr
        assert lab_words(lab, "down") in refused.stderr
        assert "Traceback" not in refused.stderr
    ended = lab.down()
    assert ended.returncode == 0
    assert "lab.json is not readable" in ended.stderr
    assert ended.stderr.endswith("the lab is down\n")
    assert is_gone(lab)


@pytest.mark.parametrize("alive", [True, False])
@pytest.mark.soak
def test_down_finds_everything_when_the_state_directory_is_gone(new_lab, alive):
    lab = new_lab().up()
    if not alive:
        kill_all(lab)
    shutil.rmtree(lab.state)
    assert names(lab)
    ended = lab.down()
    assert (ended.returncode, ended.stderr) == (0, "the lab is down\n")
    assert is_gone(lab)


@pytest.mark.parametrize("alive", [True, False])
@pytest.mark.soak
def test_up_sweeps_a_lab_whose_directory_is_gone(new_lab, alive):
    lab = new_lab().up()
    if not alive:
        kill_all(lab)
    shutil.rmtree(lab.state)
    said = lab.ztdpu("lab", "up", "--state", str(lab.state), "--prefix", lab.prefix).stderr
    assert f"removing what is left of a crashed lab in {lab.state}" in said
    assert lab.ping("blue-0", "blue-1", count=1) == 1


@pytest.mark.soak
def test_up_sweeps_what_a_dead_lab_of_another_directory_holds(new_lab):
    first, second = new_lab().up(), new_lab()
    second.prefix = first.prefix
    command = ("lab", "up", "--state", str(second.state), "--prefix", second.prefix)
    refused = second.ztdpu(*command, check=False)
    assert refused.returncode == 1
    assert f"are those of the lab in {first.state}" in refused.stderr
    assert lab_words(first, "down") in refused.stderr
    kill_all(first)
    said = second.ztdpu(*command).stderr
    assert f"removing what is left of a crashed lab in {first.state}" in said
    assert not first.state.exists()
    assert second.ping("blue-0", "blue-1", count=1) == 1


@pytest.mark.soak
def test_a_foreign_namespace_of_the_prefix_stays(new_lab):
    lab = new_lab().up()
    foreign = f"{lab.prefix}-mine"
    subprocess.run(["ip", "netns", "add", foreign], check=True)
    try:
        shutil.rmtree(lab.state)
        lab.down()
        assert names(lab) == [foreign]
    finally:
        subprocess.run(["ip", "netns", "del", foreign], check=True)


def test_a_tenant_cannot_sign_another_lab_into_its_namespace(new_lab):
    lab = new_lab().up()
    lab.exec("blue-0", "ip", "link", "set", "lo", "alias", "ztdpu lab in /run/somebody-else")
    assert not [mark for mark in marks.read_marks() if mark.state == "/run/somebody-else"]
    assert marks.owners(marks.read_marks())[f"{lab.prefix}-blue-0"] == str(lab.state)
    shutil.rmtree(lab.state)
    lab.down()
    assert is_gone(lab)


@pytest.mark.soak
def test_guests_in_a_namespace_are_named_and_left_alone(new_lab):
    lab = new_lab().up()
    with subprocess.Popen(["ip", "netns", "exec", f"{lab.prefix}-fabric", "sleep", "60"]) as guest:
        try:
            said = lab.down().stderr
            assert f"sleep (pid {guest.pid}) still runs in a namespace of the lab" in said
            assert guest.poll() is None
        finally:
            guest.kill()


@pytest.mark.soak
def test_a_lab_of_which_nothing_lives_is_swept_and_that_is_said(new_lab):
    lab = new_lab().up()
    kill_all(lab)
    said = lab.ztdpu("lab", "up", "--state", str(lab.state), "--prefix", lab.prefix).stderr
    assert f"removing what is left of a crashed lab in {lab.state} (0 processes, {len(names(lab))} namespaces)" in said
    assert lab.ping("blue-0", "blue-1", count=1) == 1


def test_a_file_is_no_state_directory(new_lab):
    lab = new_lab()
    lab.state.write_text("a file")
    try:
        for verb in ("up", "down", "status"):
            ended = lab.ztdpu("lab", verb, "--state", str(lab.state), check=False)
            assert ended.returncode in (1, 2)
            assert "Traceback" not in ended.stderr
        assert lab.state.read_text() == "a file"
    finally:
        lab.state.unlink()


@pytest.mark.soak
def test_a_reader_that_goes_away_does_not_stop_the_lab(new_lab):
    lab = new_lab()
    command = [sys.executable, "-m", "ztdpu", "lab", "up", "--state", str(lab.state), "--prefix", lab.prefix]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        process.stderr.readline()
        process.stderr.close()
        assert process.wait(60) == 0
    assert look(lab).returncode == 0


def test_a_hang_up_leaves_nothing_although_nobody_listens(new_lab):
    lab = new_lab()
    command = [sys.executable, "-m", "ztdpu", "lab", "up", "--state", str(lab.state), "--prefix", lab.prefix]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if "plugging" in line:
                break
        process.stderr.close()
        process.send_signal(signal.SIGHUP)
        assert process.wait(30) == 128 + signal.SIGHUP
    assert is_gone(lab)


@pytest.mark.soak
def test_a_lab_that_never_came_up_is_said_to_be_none(new_lab):
    lab = new_lab()
    command = [sys.executable, "-m", "ztdpu", "lab", "up", "--state", str(lab.state), "--prefix", lab.prefix]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if "plugging" in line:
                break
        process.kill()
        process.communicate()
    ended = look(lab)
    assert ended.returncode == 1
    assert "the lab was never ready" in ended.stdout
    assert f"next: ztdpu lab up --state {lab.state} --prefix {lab.prefix}\n" in ended.stdout
    said = lab.ztdpu("lab", "up", "--state", str(lab.state), "--prefix", lab.prefix).stderr
    assert f"removing what is left of a crashed lab in {lab.state}" in said
