"""Inhabitants of a lab: own uid range, own view, no way out. Real namespaces."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ztdpu.lab import processes
from ztdpu.lab.namespaces.isolate import make_inhabitant
from ztdpu.lab.view import Bind, View, first_closed_ancestor, hosts_file

ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.netns, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
UID = 0x2000_0000
PROBE = """
import json, os, socket, subprocess
def can(call, *arguments):
    try:
        call(*arguments)
        return True
    except OSError:
        return False
print(json.dumps({
    "uid": os.getuid(),
    "host_uid": int(open("/proc/self/uid_map").read().split()[1]),
    "pids": sorted(int(p) for p in os.listdir("/proc") if p.isdecimal()),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "hostname": socket.gethostname(),
    "resolved": socket.getaddrinfo("mate", 1)[0][4][0],
    "tun": os.path.exists("/dev/net/tun"),
    "own": os.listdir(OWN), "state": os.listdir(STATE), "tmp": os.listdir("/tmp"), "root": os.listdir("/root"),
    "write_root": can(os.mkdir, "/somewhere"), "write_own": can(os.mkdir, OWN + "/made"),
    "write_tmp": can(os.mkdir, "/tmp/made"), "raw_socket": can(socket.socket, socket.AF_PACKET, socket.SOCK_RAW, 0),
    "kill_host": can(os.kill, HOST_PID, 0), "mount": subprocess.run(["umount", "/run"], capture_output=True).returncode == 0,
    "shadow": can(open, "/etc/shadow"),
}), flush=True)
"""


@pytest.fixture
def state(tmp_path):
    for name in ("own", "other"):
        (tmp_path / name).mkdir(mode=0o700)
        os.chown(tmp_path / name, UID, UID)
    (tmp_path / "own" / "mine").touch()
    return tmp_path


def wait_for(condition, *, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def inhabitant(state):
    own = state / "own"
    view = View(
        uid_base=UID,
        hidden=(state,),
        binds=(Bind(source=own, target=own, writable=True),),
        hosts=hosts_file([("mate", ["10.1.0.11"])], own="tester"),
    )
    made = make_inhabitant("tester", view, environment={"PATH": "/usr/bin:/bin"})
    made.wait_ready()
    yield made
    processes.end_members([made.pid])


def run_probe(inhabitant, state, python=sys.executable, environment=None):
    import json

    log = state / "own" / "log"
    header = f"OWN={str(state / 'own')!r}; STATE={str(state)!r}; HOST_PID={os.getpid()}\n"
    inhabitant.start([python, "-c", header + PROBE], environment=environment or {"PATH": "/usr/bin:/bin"}, log=log)
    wait_for(lambda: log.exists() and log.read_text().endswith("\n"))
    return json.loads(log.read_text())


def test_an_inhabitant_is_root_of_its_own_range_and_of_nothing_else(inhabitant, state):
    seen = run_probe(inhabitant, state)
    assert (seen["uid"], seen["host_uid"]) == (0, UID)
    assert seen["pids"][0] == 1
    assert len(seen["pids"]) == 2
    assert seen["interfaces"] == ["lo"]
    assert seen["hostname"] == "tester"
    assert seen["resolved"] == "10.1.0.11"
    assert seen["raw_socket"]
    assert seen["write_own"]
    assert seen["write_tmp"]
    assert not [word for word in ("tun", "write_root", "kill_host", "mount", "shadow") if seen[word]]
    assert set(seen["own"]) == {"mine", "log"}
    assert seen["state"] == ["own"]
    # What must be seen to run at all may itself lie under /tmp: the test's folder, the checkout.
    assert set(seen["tmp"]) == {path.parts[2] for path in (state, ROOT) if path.parts[1] == "tmp"}
    assert seen["root"] == []


def test_a_program_that_is_not_there_is_named(inhabitant, state):
    from ztdpu.errors import MachineError

    with pytest.raises(MachineError, match="/no/such"):
        inhabitant.start(["/no/such"], environment={}, log=state / "own" / "log")
    assert run_probe(inhabitant, state)["uid"] == 0


def test_pid_1_reaps_and_takes_everybody_with_it(inhabitant, state):
    log = state / "own" / "log"
    inhabitant.start(["/bin/sh", "-c", "sleep 300 & true"], environment={"PATH": "/usr/bin:/bin"}, log=log)

    def others():
        return [pid for pid in processes.find_in_namespace(inhabitant.pid) if pid != inhabitant.pid]

    wait_for(lambda: [processes.command_line(pid)[:1] for pid in others()] == [["sleep"]])
    (orphan,) = others()
    os.kill(inhabitant.pid, signal.SIGTERM)
    wait_for(lambda: processes.identify(inhabitant.pid) is None and processes.identify(orphan) is None)


def test_a_checkout_under_a_closed_directory_can_be_used(tmp_path_factory, tmp_path):
    """A clone in `mktemp -d`: the only way to it is 0700, and yet other uids run what lies in it."""
    closed = tmp_path_factory.mktemp("closed")
    closed.chmod(0o700)
    checkout = closed / "clone"
    root = Path(__file__).parents[3]
    checkout.mkdir()
    for name in ("pyproject.toml",):
        shutil.copy(root / name, checkout)
    shutil.copytree(root / "ztdpu", checkout / "ztdpu", ignore=shutil.ignore_patterns("__pycache__", "v1"))
    (checkout / "examples").mkdir()
    (checkout / "secret").write_text("not for tenants")
    (tmp_path / "own").mkdir()
    os.chown(tmp_path / "own", UID, UID)
    program = f"""
import sys, os
sys.path.insert(0, {str(checkout)!r})
from pathlib import Path
from ztdpu.lab import processes
from ztdpu.lab.namespaces.isolate import make_inhabitant
from ztdpu.lab.view import Bind, View
own = Path({str(tmp_path / "own")!r})
view = View(uid_base={UID}, hidden=(), binds=(Bind(source=own, target=own, writable=True),))
made = make_inhabitant("t", view, environment={{}})
made.wait_ready()
code = "import os, ztdpu.errors; print(ztdpu.__file__, sorted(os.listdir({str(checkout)!r})))"
made.start([sys.executable, "-c", code], environment={{"PYTHONPATH": {str(checkout)!r}}}, log=own / "log")
import time
deadline = time.monotonic() + 10
while not (own / "log").exists() or not (own / "log").read_text().endswith(chr(10)):
    assert time.monotonic() < deadline
    time.sleep(0.02)
print((own / "log").read_text())
processes.end_members([made.pid])
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert f"{checkout}/ztdpu/__init__.py ['examples', 'ztdpu']" in ended.stdout


def test_closed_ancestors_are_found(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a").chmod(0o700)
    assert first_closed_ancestor(tmp_path / "a" / "b") in (tmp_path / "a", *tmp_path.parents)
    assert first_closed_ancestor(Path("/usr/bin")) is None
