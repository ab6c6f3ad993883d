"""Labs of the end-to-end tests: own prefix, own state directory, taken down whatever happens."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ztdpu.lab.crew import Crew
from ztdpu.lab.record import require_record

CHECKOUT = Path(__file__).resolve().parents[2]
NOBODY = 65534


class Lab:
    """One lab, used as a person does: through the command line."""

    def __init__(self, name, *options):
        self.prefix = f"zt{os.getpid()}{name}"
        self.state = Path("/run") / self.prefix
        self.options = options
        self.seconds = 0.0

    def ztdpu(self, *words, check=True, timeout=90):
        command = [sys.executable, "-m", "ztdpu", *words]
        environment = os.environ | {"ZTDPU_SERVER": f"unix:{self.state}/control/admin.sock", "NO_COLOR": "1"}
        ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment, check=False)
        assert not check or ended.returncode == 0, f"{words}: {ended.stdout}{ended.stderr}"
        return ended

    def up(self):
        start = time.monotonic()
        self.ztdpu("lab", "up", "--state", str(self.state), "--prefix", self.prefix, *self.options)
        self.seconds = time.monotonic() - start
        return self

    def down(self):
        return self.ztdpu("lab", "down", "--state", str(self.state), check=False)

    def status(self):
        """The document, also when something in it is dead (exit status 1)."""
        return json.loads(self.ztdpu("lab", "status", "--state", str(self.state), "-o", "json", check=False).stdout)

    def device(self, name):
        return next(device for device in self.status()["devices"] if device["name"] == name)

    def exec(self, target, *command, check=True, timeout=60):
        return self.ztdpu(
            "lab", "exec", target, "--state", str(self.state), "--", *command, check=check, timeout=timeout
        )

    def ping(self, source, target, *, count=3):
        """Return how many answers came."""
        ended = self.exec(source, "ping", "-c", str(count), "-i", "0.2", "-W", "1", target, check=False)
        return sum("bytes from" in line for line in ended.stdout.splitlines())

    @property
    def plan(self):
        return require_record(self.state).plan

    def crew(self):
        return Crew(self.state)

    def wait_ready(self, *devices, seconds=60):
        """Return once these devices are ready again."""
        wait_for(
            lambda: all(d["ready"] for d in self.status()["devices"] if d["name"] in devices),
            seconds=seconds,
            every=0.2,
        )


def wait_for(condition, *, seconds=60, every=0.05):
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(every)


class Nobody:
    """An unprivileged user: uid 65534, no home, no group, no sudo, and a /tmp that nobody else sees.

    Its commands run in a mount namespace of their own, with a copy of the checkout and an interpreter that it may
    read, and with /dev/net/tun open to all, as udev makes it.
    """

    PREPARE = """
import os, shutil, sys
from pathlib import Path
from ztdpu.lab.namespaces.syscalls import Mount, mount
from ztdpu.lab.view import first_closed_ancestor, program_paths
wanted = [path for path in program_paths() if path.name != "ztdpu"]
closed = {str(first_closed_ancestor(path)) for path in wanted} - {"None"}
held = [(os.open(path, os.O_PATH), path) for path in wanted]
copy = os.open(sys.argv[1], os.O_PATH)
for path in {*closed, "/tmp"}:
    mount("tmpfs", path, "tmpfs", data="mode=1777" if path == "/tmp" else "mode=755")
for descriptor, path in [*held, (copy, Path("/tmp/checkout"))]:
    if not path.exists():
        path.mkdir(parents=True)
        mount(f"/proc/self/fd/{descriptor}", str(path), flags=Mount.BIND | Mount.REC)
mount("tmpfs", "/dev/net", "tmpfs", data="mode=755")
os.umask(0)
os.mknod("/dev/net/tun", 0o020666, os.makedev(10, 200))
print("ready", flush=True)
sys.stdin.read()
"""

    def __init__(self, copy):
        for name in ("ztdpu", "examples", "policies", "deploy"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(CHECKOUT / name, copy / name, ignore=ignored)
        for name in ("pyproject.toml", "requirements.lock", "Makefile"):
            shutil.copy(CHECKOUT / name, copy)
        (copy / ".venv").symlink_to(sys.prefix)
        subprocess.run(["chmod", "-R", "a+rX", str(copy)], check=True)
        subprocess.run([sys.executable, "-m", "compileall", "-q", str(copy / "ztdpu")], check=True)
        command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", self.PREPARE, str(copy)]
        self._keeper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._keeper.stdout.readline() == "ready\n"
        self.root = Path(f"/proc/{self._keeper.pid}/root")
        """The file system as nobody sees it."""

    def command(self, *words, **environment):
        """Return the command line that runs `words` as nobody."""
        known = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent", "PYTHONPATH": "/tmp/checkout"}
        return [
            "nsenter", f"--mount=/proc/{self._keeper.pid}/ns/mnt", "--wd=/",
            "setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups",
            "env", "-i", *(f"{key}={value}" for key, value in (known | environment).items()), *words,
        ]  # fmt: skip

    def run(self, *words, timeout=90, **environment):
        return subprocess.run(
            self.command(*words, **environment), capture_output=True, text=True, timeout=timeout, check=False
        )

    def ztdpu(self, *words, **more):
        return self.run(sys.executable, "-m", "ztdpu", *words, **more)

    def end(self):
        self._keeper.communicate()


class NobodysLab(Lab):
    """A lab of `Nobody`: used through the same commands, run as that user."""

    def __init__(self, name, nobody, *options):
        super().__init__(name, *options)
        self.state = Path("/tmp") / self.prefix
        self.nobody = nobody

    def ztdpu(self, *words, check=True, timeout=90):
        server = f"unix:{self.state}/control/admin.sock"
        ended = self.nobody.ztdpu(*words, timeout=timeout, ZTDPU_SERVER=server, NO_COLOR="1")
        assert not check or ended.returncode == 0, f"{words}: {ended.stdout}{ended.stderr}"
        return ended


@pytest.fixture(scope="session")
def nobody(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    user = Nobody(tmp_path_factory.mktemp("nobody"))
    yield user
    user.end()


@pytest.fixture(scope="session")
def namespaced_nobody(nobody):
    """Nobody on a kernel that lets users make namespaces; skips when it does not."""
    ended = nobody.run("unshare", "--user", "--map-root-user", "--net", "--mount", "true")
    if ended.returncode != 0:
        pytest.skip(f"the kernel forbids user namespaces: {ended.stderr.strip()}")
    return nobody


def make_lab(name, *options):
    """Use as a generator fixture: a lab that is up, and nothing of it afterwards."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    lab = Lab(name, *options)
    try:
        yield lab.up()
    finally:
        lab.down()


@pytest.fixture(scope="module")
def lab():
    yield from make_lab("e")


@pytest.fixture
def new_lab():
    """Return a maker of labs that are not up yet; all are taken down at the end of the test."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    labs = []

    def make(*options):
        labs.append(Lab(f"n{len(labs)}", *options))
        return labs[-1]

    yield make
    for lab in labs:
        lab.down()


@pytest.fixture(scope="module")
def nobodys_lab(namespaced_nobody):
    """A lab on the userns fabric that is up, and nothing of it afterwards."""
    lab = NobodysLab("u", namespaced_nobody)
    try:
        yield lab.up()
    finally:
        lab.down()


@pytest.fixture
def new_nobodys_lab(namespaced_nobody):
    """A lab of nobody's that is not up yet."""
    lab = NobodysLab("v", namespaced_nobody)
    yield lab
    lab.down()


@pytest.fixture(scope="module")
def plain_lab(nobody):
    """A lab on the userspace fabric that is up, with a device to attack with, and nothing of it afterwards."""
    lab = NobodysLab("p", nobody, "--fabric", "userspace", "--stranger", "dpu-x")
    try:
        yield lab.up()
    finally:
        lab.down()


@pytest.fixture
def new_plain_lab(nobody):
    """A lab on the userspace fabric that is not up yet."""
    lab = NobodysLab("q", nobody, "--fabric", "userspace")
    yield lab
    lab.down()
