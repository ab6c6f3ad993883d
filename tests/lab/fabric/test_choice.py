"""Which fabric works here: every refusal has its author and its remedy, and the machine is really tried."""

import errno
import os
import subprocess
import sys

import pytest

from ztdpu.errors import MachineError
from ztdpu.lab.fabric import choice as fabric
from ztdpu.lab.fabric.choice import Fabric, FabricChoice, Isolation, choose_fabric
from ztdpu.lab.fabric.obstacles import Obstacle, Surroundings, explain

USER = {"uid": 1000, "namespaces_limit": "10000"}
ROOT = {"uid": 0, "namespaces_limit": "10000"}


@pytest.mark.parametrize(
    ("step", "number", "around", "why", "remedy"),
    [
        ("unshare", errno.EPERM, USER | {"clone_allowed": "0"}, "kernel.unprivileged_userns_clone", "userns_clone=1"),
        ("map", errno.EPERM, USER | {"apparmor_restricts": "1"}, "AppArmor forbids", "restrict_unprivileged_userns=0"),
        ("mount", errno.EACCES, USER | {"apparmor_restricts": "1"}, "AppArmor forbids", "restrict_unprivileged"),
        ("unshare", errno.ENOSPC, USER | {"namespaces_limit": "0"}, "user.max_user_namespaces is 0", "sysctl -w user"),
        ("unshare", errno.EPERM, USER | {"seccomp": True}, "a seccomp filter", ""),
        ("unshare", errno.EPERM, ROOT | {"seccomp": True, "profile": "docker-default"}, "docker-default", ""),
        ("unshare", errno.EPERM, USER, "the kernel does not let you make namespaces", ""),
        ("unshare", errno.EPERM, ROOT, "this root may not make namespaces", ""),
        ("mount", errno.EPERM, ROOT | {"apparmor_restricts": "1", "clone_allowed": "0"}, "this root may not mount", ""),
        ("unshare", errno.EINVAL, USER, "this kernel cannot make namespaces", ""),
        ("proc", errno.EPERM, USER | {"seccomp": True}, "parts of /proc are covered", ""),
        ("sysctl", errno.EROFS, ROOT, "/proc/sys is read-only", ""),
        ("tun", errno.ENOENT, USER, "/dev/net/tun is missing", "modprobe tun"),
        ("tun", errno.ENOENT, USER | {"in_container": True}, "/dev/net/tun is missing", ""),
        ("tun", errno.EACCES, USER, "you may not open /dev/net/tun", "chmod 0666 /dev/net/tun"),
        ("tun-make", errno.EPERM, USER, "no TUN device can be made", ""),
        ("ip", errno.ENOENT, USER, "`ip` is missing", "iproute2"),
        ("ip", 0, USER, "no bridge and no virtual cable", "modprobe"),
        ("trial", errno.ETIMEDOUT, USER, "trying it failed", ""),
    ],
)
def test_a_refusal_is_explained_by_what_is_set(step, number, around, why, remedy):
    obstacle = explain({"step": step, "errno": number}, Surroundings(**around))
    assert why in obstacle.why
    assert remedy in obstacle.remedy
    assert bool(remedy) == bool(obstacle.remedy)


def test_what_did_not_stop_is_no_obstacle():
    assert explain({}, Surroundings(uid=1000, clone_allowed="0", apparmor_restricts="1", seccomp=True)) is None


@pytest.fixture
def machine(monkeypatch):
    """Return a function that says what the trials find and whether we are in a container."""

    def set_up(netns, userns, *, container=False):
        monkeypatch.setattr(fabric, "netns_obstacle", lambda: netns)
        monkeypatch.setattr(fabric, "userns_obstacle", lambda: userns)
        monkeypatch.setattr(fabric, "in_container", lambda: container)

    return set_up


NO = Obstacle(why="only root may build it")
APPARMOR = Obstacle(why="AppArmor forbids namespaces here", remedy="sudo sysctl -w kernel.x=0")


def test_the_best_that_works_is_taken_and_says_why(machine, monkeypatch):
    machine(None, None)
    assert choose_fabric().fabric is Fabric.NETNS
    machine(NO, None)
    choice = choose_fabric()
    assert (choice.fabric, choice.isolation) == (Fabric.USERNS, Isolation.SHARED_UID)
    assert choice.more.endswith("sudo make demo")
    machine(NO, APPARMOR)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    sentence = choose_fabric().sentence
    assert sentence == "userspace fabric: AppArmor forbids namespaces here. Full demo: sudo make demo"
    assert choose_fabric(command="ztdpu lab up").more == "Full lab: sudo ztdpu lab up"


def test_in_a_container_the_line_has_every_option(machine):
    machine(Obstacle(why="this root may not make namespaces"), APPARMOR, container=True)
    choice = choose_fabric()
    assert choice.fabric is Fabric.USERSPACE
    for option in ("docker run", "--cap-add NET_ADMIN", "--cap-add SYS_ADMIN", "--device /dev/net/tun", "make demo"):
        assert option in choice.more


def test_what_was_asked_for_is_taken_or_refused_and_never_replaced(machine):
    machine(NO, APPARMOR)
    with pytest.raises(MachineError, match="netns fabric does not work here: only root") as caught:
        choose_fabric(Fabric.NETNS)
    assert caught.value.remedy == "sudo make demo"
    with pytest.raises(MachineError, match="AppArmor") as caught:
        choose_fabric(Fabric.USERNS)
    assert caught.value.remedy == "sudo sysctl -w kernel.x=0"
    machine(None, None)
    for wanted in Fabric:
        assert choose_fabric(wanted).fabric is wanted


def test_elsewhere_than_on_linux_the_container_is_named(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(MachineError, match="needs Linux") as caught:
        choose_fabric(Fabric.USERSPACE)
    assert "docker run" in caught.value.remedy


def test_a_choice_says_nothing_more_when_there_is_nothing_more():
    choice = FabricChoice(fabric=Fabric.NETNS, isolation=Isolation.FULL, why="root")
    assert choice.sentence == "netns fabric: root."


# --- the machine itself ---

ASK = """
import sys
from ztdpu.lab.fabric.obstacles import userns_obstacle
found = userns_obstacle()
print(found.why if found else "works")
"""


def ask(prepare):
    """Run the userns trial as root of a user namespace prepared by `prepare`; returns what it found."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", f'{prepare} && exec "$@"', "sh"]
    ended = subprocess.run(
        [*command, sys.executable, "-c", ASK], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_a_limit_of_namespaces_is_found_by_trying():
    assert "user.max_user_namespaces is 0" in ask("echo 0 > /proc/sys/user/max_user_namespaces")


def test_a_covered_proc_is_found_by_trying():
    assert ask("mount --bind /dev/null /proc/version") == "parts of /proc are covered, so no new /proc may be mounted"


def test_read_only_settings_are_found_by_trying():
    sealed = "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys"
    assert ask(sealed) == "/proc/sys is read-only here"


def test_without_hindrance_the_trial_goes_through():
    assert ask("true") == "works"
