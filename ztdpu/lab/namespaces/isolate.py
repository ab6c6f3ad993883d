"""Make one inhabitant (device or endpoint): user, network, mount, pid, IPC and UTS namespaces with a uid range.

Called by `cluster` from a process that has no threads and has not imported grpc (it forks). The steps, parent
left, child right:

    fork: unshare(NEWPID), fork     unshare(NEWNS), build the view, /proc of the new pid namespace
                                    unshare(NEWUSER | NEWNET | NEWNS | NEWIPC | NEWUTS)
    write uid_map and gid_map  <--  "unshared"
    "mapped"                   -->  become root of the range, sysctls, loopback up, exec `holder`

The child is root of the host (or of a lab's enclosure) until the user namespace is entered, so nobody inside can undo
the view. A process between the two makes the pid namespace and ends, because in an enclosure nobody may go back to the
pid namespace of the host; the child falls to the caller, who adopts orphans.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ztdpu.errors import MachineError
from ztdpu.lab.namespaces.syscalls import Clone, Mount, adopt_orphans, become_root, mount, unshare
from ztdpu.lab.view import View, enter_view

ANSWER_TIMEOUT_S: Final = 20.0
_REMEDY: Final = "ztdpu lab up --fabric userspace needs no namespaces; docs/fabrics.md says what each fabric needs"
_SIOCGIFFLAGS: Final = 0x8913
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 1

QUIET_SYSCTLS: Final = {
    "net/ipv6/conf/default/accept_ra": "0",
    "net/ipv6/conf/all/accept_ra": "0",
    "net/ipv6/conf/default/router_solicitations": "0",
    "net/ipv6/conf/default/accept_dad": "0",
    "net/ipv6/conf/all/accept_dad": "0",
    "net/ipv6/conf/default/addr_gen_mode": "1",
}
"""No word on a link that nobody asked for: it would be neither PSP nor ARP nor ND."""


@dataclass(slots=True, kw_only=True)
class Inhabitant:
    """A running pid 1 and the socket it takes orders on."""

    name: str
    pid: int
    """In the host's pid namespace."""
    orders: socket.socket

    def start(self, argv: Sequence[str], *, environment: Mapping[str, str], log: Path) -> int:
        """Start a program inside; returns its pid there. MachineError says why it did not start."""
        order = {"argv": list(argv), "environment": dict(environment), "log": str(log)}
        self.orders.send(json.dumps(order).encode())
        answer = self._answer()
        if "error" in answer:
            raise MachineError(f"{self.name}: cannot start {answer['error']}")
        return int(answer["pid"])

    def wait_ready(self) -> None:
        """Return when pid 1 answers; MachineError carries the reason when it never will."""
        self._answer()

    def _answer(self) -> dict[str, Any]:
        try:
            answer = self.orders.recv(65_536)
        except TimeoutError as error:
            raise MachineError(f"{self.name}: its first process does not answer") from error
        if not answer:
            raise MachineError(f"{self.name}: its first process ended")
        document: dict[str, Any] = json.loads(answer)
        if "failed" in document:
            raise MachineError(f"{self.name}: {document['failed']}", remedy=_REMEDY)
        return document


def make_inhabitant(
    name: str, view: View, *, environment: Mapping[str, str], network: Sequence[str] = ()
) -> Inhabitant:
    """Make the namespaces and start pid 1 in them; call `wait_ready` before use.

    `network` are further sysctls ("path=value") set inside before anything is plugged in.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(ANSWER_TIMEOUT_S)
    adopt_orphans()
    reading, writing = os.pipe2(os.O_CLOEXEC)
    between = os.fork()
    if between == 0:
        try:
            unshare(Clone.NEWPID)
            pid = os.fork()
            if pid == 0:
                ours.detach()
                _become_inhabitant(name, view, theirs, environment, network)
            os.write(writing, str(pid).encode())
        except OSError as error:
            os.write(writing, f"{error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    theirs.close()
    os.waitpid(between, 0)
    with os.fdopen(reading) as stream:
        said = stream.read()
    if not said.isdecimal():
        raise MachineError(f"{name}: {said}", remedy=_REMEDY)
    pid = int(said)
    inhabitant = Inhabitant(name=name, pid=pid, orders=ours)
    inhabitant.wait_ready()
    for kind in ("uid_map", "gid_map"):
        Path(f"/proc/{pid}/{kind}").write_text(f"0 {view.uid_base} {view.uid_count}\n")
    ours.send(b"mapped")
    return inhabitant


def _become_inhabitant(
    name: str, view: View, orders: socket.socket, environment: Mapping[str, str], network: Sequence[str]
) -> None:
    """Never returns: execs the holder, or tells the parent what failed and ends."""
    try:
        os.setsid()
        _close_all_but(orders.fileno())
        unshare(Clone.NEWNS)
        enter_view(view)
        unshare(Clone.NEWUSER | Clone.NEWNET | Clone.NEWNS | Clone.NEWIPC | Clone.NEWUTS)
        orders.send(b'{"unshared": true}')
        if orders.recv(16) != b"mapped":
            os._exit(1)
        become_root(keep_groups=view.uid_count == 1)
        socket.sethostname(name)
        _try_own_sysfs()
        _quiet_network(network)
        os.chdir("/")
        os.umask(0o022)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(orders.fileno(), 0)
        os.dup2(null, 1)
        os.dup2(null, 2)
        program = str(Path(__file__).resolve().with_name("holder.py"))
        interpreter = os.path.realpath(sys.executable)
        os.execve(interpreter, [interpreter, "-I", "-S", program, name], dict(environment))  # noqa: S606 - this process becomes pid 1
    except BaseException as error:  # noqa: BLE001 - the parent must hear of everything
        orders.send(json.dumps({"failed": f"{type(error).__name__}: {error}"}).encode())
    finally:
        os._exit(1)


def _close_all_but(kept: int) -> None:
    """Close what the parent had open: its locks must go with it, and the end of its socket must be the end."""
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers, not paths
        descriptor = int(entry)
        if descriptor > 2 and descriptor != kept:
            with suppress(OSError):  # the descriptor of this very listing
                os.close(descriptor)


def _try_own_sysfs() -> None:
    """Show the own network devices under /sys; some containers forbid it and then the host's stays, read only."""
    try:
        mount("sysfs", "/sys", "sysfs", Mount.RDONLY | Mount.NOSUID | Mount.NODEV | Mount.NOEXEC)
    except OSError:
        return


def _quiet_network(further: Sequence[str]) -> None:
    set_sysctls(further)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        request = bytearray(struct.pack("16sh14x", b"lo", 0))
        fcntl.ioctl(handle, _SIOCGIFFLAGS, request)
        (flags,) = struct.unpack_from("h", request, 16)
        struct.pack_into("h", request, 16, flags | _IFF_UP)
        fcntl.ioctl(handle, _SIOCSIFFLAGS, request)


def set_sysctls(further: Sequence[str] = ()) -> None:
    """Set the quiet sysctls and `further` ("path=value") in the present network namespace."""
    wanted = dict(QUIET_SYSCTLS)
    wanted.update(dict(entry.split("=", 1) for entry in further))
    for path, value in wanted.items():
        target = Path("/proc/sys", path)
        if target.exists():  # a kernel without IPv6 has nothing to silence
            target.write_text(value)
