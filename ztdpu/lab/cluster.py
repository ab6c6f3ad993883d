"""Bring a lab up.

    sweep what a crash left -> plan -> record -> directories, secrets, start-up files -> control
    -> namespaces and holders -> cables -> factory -> join tokens -> agents -> all are ready

Called by `ztdpu lab`, the demo and the tests. Forks only while it is small: grpc is imported (by
`readiness`) after the last fork; agents are started by their own first process.
"""

from __future__ import annotations

import compileall
import dataclasses
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Final

from ztdpu.errors import MachineError, StateError, UsageError
from ztdpu.lab import marks, processes
from ztdpu.lab.documents import EXAMPLE_POLICIES, plan_lab
from ztdpu.lab.fabric.choice import ISOLATION, Fabric, Isolation
from ztdpu.lab.fabric.obstacles import has_uids
from ztdpu.lab.layout import (
    DEFAULT_MTU_OCTETS,
    DEFAULT_PREFIX,
    ENCLOSURE,
    PLACES,
    TRUST_DOMAIN,
    LabPaths,
    LabPlan,
    check_socket_paths,
    family,
    real_path,
)
from ztdpu.lab.manufacture import (
    AGENT_FILE,
    BUNDLE,
    CONTROL_FILE,
    make_directories,
    manufacture,
    write_start_up_files,
)
from ztdpu.lab.namespaces import netns
from ztdpu.lab.namespaces.enclosure import make_enclosure
from ztdpu.lab.namespaces.isolate import Inhabitant, make_inhabitant, set_sysctls
from ztdpu.lab.namespaces.links import plug_in_control, plug_in_devices
from ztdpu.lab.policy_repository import make_policy_repository
from ztdpu.lab.processes import base_environment
from ztdpu.lab.record import LabRecord, tail
from ztdpu.lab.takedown import clear, forget, locked, sweep
from ztdpu.lab.userspace.places import WIRE, endpoint_tap, own_environment, wire_tap
from ztdpu.lab.userspace.settle import ground_of, settle, write_settled_files
from ztdpu.lab.view import Bind, View, homes, hosts_file

Progress = Callable[[str], None]
SIDECAR_TARGET: Final = Path("/run/ztdpu/sidecar")
_FABRICS: Final = "docs/fabrics.md says what each fabric needs; --fabric userspace needs the least"
_FACTORY_TIMEOUT_S: Final = 10.0
_NO_IPV6: Final = "net/ipv6/conf/default/disable_ipv6=1"


def silent(_: str) -> None:
    """Report no progress."""


def start_lab(
    *,
    state: Path,
    fabric: Fabric = Fabric.NETNS,
    prefix: str = DEFAULT_PREFIX,
    mtu_octets: int = DEFAULT_MTU_OCTETS,
    policy: Path | None = None,
    policy_git: Path | None = None,
    devices: int | None = None,
    strangers: Sequence[str] = (),
    interval_s: float = 10,
    lease_s: float = 60,
    replace: bool = False,
    progress: Progress = silent,
) -> LabRecord:
    """Build the lab; returns when every device is attested and ready.

    `policy_git` is where to make a git repository of the policy, for control to read; it outlives the lab.
    `strangers` are devices without endpoints, with a join token but without a running agent; with `replace` a lab
    that is there is taken down first. Raises UsageError, PolicyRefusedError, StateError (a lab is up), MachineError
    (something did not start: says what, and shows the end of its log); nothing is left behind then.
    """
    if fabric is Fabric.NETNS:
        require_root()
    state = real_path(state)
    with locked(state):
        sweep(state, prefix, replace=replace)
        children = processes.find_children()
        plan = None
        try:
            _claim(state)
            enclosure = make_enclosure(str(state)) if fabric is Fabric.USERNS else 0
            progress("reading policy")
            plan = plan_lab(
                state=state, prefix=prefix, mtu_octets=mtu_octets, policy=policy or EXAMPLE_POLICIES, devices=devices,
                strangers=strangers, shared_uid=ISOLATION[fabric] is Isolation.SHARED_UID,
            )  # fmt: skip
            plan = settle(plan) if fabric is Fabric.USERSPACE else plan
            plan = _with_repository(plan, policy_git, progress)
            check_socket_paths(plan)
            _refuse_foreign_names(plan)
            record = LabRecord(plan=plan, fabric=fabric, isolation=ISOLATION[fabric], strangers=tuple(strangers))
            if enclosure:
                _remember(record, ENCLOSURE, enclosure)
            record.write()
            progress("manufacturing devices")
            _prepare(record, interval_s=interval_s, lease_s=lease_s)
            inhabitants = _build(record, progress)
            _admit(record, inhabitants, strangers, progress)
        except BaseException as error:
            processes.end_members(processes.find_children() - children)
            clear(state)
            forget(state)
            if plan is not None and plan.policy_git:
                shutil.rmtree(Path(plan.policy_git).parent, ignore_errors=True)
            if isinstance(error, OSError):
                cause = error.args[0][0][2] if isinstance(error, shutil.Error) else error
                raise MachineError(f"this machine refuses: {cause}", remedy=_FABRICS) from error
            raise
    return record


def _with_repository(plan: LabPlan, directory: Path | None, progress: Progress) -> LabPlan:
    if directory is None:
        return plan
    progress("making the policy repository")
    repository = make_policy_repository(real_path(directory), Path(plan.policy))
    return dataclasses.replace(plan, policy_git=str(repository.bare), policy_anchor=repository.anchor)


def _prepare(record: LabRecord, *, interval_s: float, lease_s: float) -> None:
    plan = record.plan
    make_directories(plan)
    manufacture(plan)
    write_start_up_files(plan, interval_s=interval_s, lease_s=lease_s)
    if record.fabric is Fabric.USERSPACE:
        write_settled_files(plan, interval_s=interval_s, lease_s=lease_s)
    _make_authority(plan)
    _compile_programs()


def _build(record: LabRecord, progress: Progress) -> dict[str, Inhabitant]:
    """Start control, then make everything else while it starts."""
    plan = record.plan
    progress("starting control")
    if record.fabric is Fabric.USERSPACE:
        for start in (start_control, start_wire, start_factory):
            start(record)
        return {}
    _make_places(plan)
    plug_in_control(plan)
    start_control(record)
    progress("making namespaces")
    inhabitants = _make_inhabitants(record)
    progress("plugging in")
    plug_in_devices(plan)
    start_factory(record)
    return inhabitants


def _admit(
    record: LabRecord, inhabitants: Mapping[str, Inhabitant], strangers: Collection[str], progress: Progress
) -> None:
    """Give every device its join token, start the agents, wait until all are ready."""
    from ztdpu.lab import readiness  # the last fork is behind us: grpc may come

    wanted = [device.name for device in record.plan.devices if device.name not in strangers]
    with readiness.connected(record, progress) as control:
        for device in record.plan.devices:
            readiness.give_token(record, control, device)
        progress("starting agents")
        for name in wanted:
            if record.fabric is Fabric.USERSPACE:
                start_plain_agent(record, name)
            else:
                start_agent(record, inhabitants[name])
        for inhabitant in inhabitants.values():
            inhabitant.orders.close()
        readiness.wait_ready(record, control, wanted, progress)
    record.complete = True
    record.write()


def require_root() -> None:
    """Raise MachineError unless we are root with all uids of the host at hand."""
    if os.geteuid() != 0:
        raise MachineError("the lab needs root", remedy="run it with sudo, or in a container with --privileged")
    if not Path("/dev/net/tun").exists():
        raise MachineError("/dev/net/tun is missing", remedy="modprobe tun, or pass --device /dev/net/tun")
    if not has_uids(Path("/proc/self/uid_map").read_text()):
        raise MachineError(
            "this root may not give out uid ranges (it is root of a user namespace)",
            remedy="run it as root of the host",
        )


def _claim(state: Path) -> None:
    """Mark an empty directory as ours, so that whatever happens next may be deleted."""
    if any(state.iterdir()):
        raise UsageError(f"{state} is not empty and no lab's", remedy="name another directory with --state")
    state.chmod(0o700)
    LabPaths(state).record.write_text("{}")


def _refuse_foreign_names(plan: LabPlan) -> None:
    taken = [name for name in plan.namespaces if netns.exists(name)]
    if taken:
        raise StateError(
            f"namespace {taken[0]} is there already and not this lab's",
            remedy=f"ip netns del {taken[0]} if nobody needs it, or choose another --prefix",
        )


def _make_authority(plan: LabPlan) -> None:
    """Control's CA, made before agents start so that they have its certificate in their own files."""
    from ztdpu.control.authority.issue import ensure_authority

    authority = ensure_authority(plan.paths.control / "state", TRUST_DOMAIN)
    from cryptography.hazmat.primitives.serialization import Encoding

    (plan.paths.public / BUNDLE).write_bytes(authority.certificate.public_bytes(Encoding.PEM))


def _compile_programs() -> None:
    """Write byte code once as host root: agents cannot, and would compile at every start."""
    package = Path(__file__).resolve().parents[1]
    with suppress(OSError):
        compileall.compile_dir(package, quiet=2, maxlevels=6)


def _make_places(plan: LabPlan) -> None:
    """Namespaces that nobody lives in: fabric, out-of-band, control."""
    netns.prepare_names()
    for place in PLACES:
        netns.create(plan.namespace(place))
        with netns.inside(plan.namespace(place)):
            marks.write_mark(plan.state)
            set_sysctls([_NO_IPV6])


def _make_inhabitants(record: LabRecord) -> dict[str, Inhabitant]:
    plan = record.plan
    inhabitants: dict[str, Inhabitant] = {}
    environment = base_environment(plan.state)
    for name, view, network in _views(plan, isolation=record.isolation):
        inhabitants[name] = make_inhabitant(name, view, environment=environment, network=network)
    for name, inhabitant in inhabitants.items():
        inhabitant.wait_ready()
        netns.attach(plan.namespace(name), f"/proc/{inhabitant.pid}/ns/net")
        _remember(record, name, inhabitant.pid)
    record.write()
    return inhabitants


def _views(plan: LabPlan, *, isolation: Isolation) -> Iterator[tuple[str, View, tuple[str, ...]]]:
    """What each device and endpoint sees, and the sysctls of its network namespace."""
    for name, view, network in _own_views(plan):
        if isolation is Isolation.FULL:
            yield name, view, network
        else:  # the person's files are no question of uids then: they are out of sight
            yield name, replace_fields(view, uid_count=1, covered=view.covered | homes()), network


def _own_views(plan: LabPlan) -> Iterator[tuple[str, View, tuple[str, ...]]]:
    paths = plan.paths
    hidden = (paths.state,)
    public = Bind(source=paths.public, target=paths.public)
    for device in plan.devices:
        own = paths.device(device.name)
        log = paths.agent_log(device.name)
        binds = (public, Bind(source=own, target=own, writable=True), Bind(source=log, target=log, writable=True))
        network = (_NO_IPV6,) if family(device.underlay_address) == 4 else ()
        yield device.name, View(uid_base=device.uid_base, hidden=hidden, binds=binds), network
    for endpoint in plan.endpoints:
        mates = [(mate.name, mate.addresses) for mate in plan.mates(endpoint)]
        sidecar = Bind(source=paths.sidecar(endpoint.device, endpoint.name), target=SIDECAR_TARGET)
        hosts = hosts_file(mates, own=endpoint.name)
        yield endpoint.name, View(uid_base=endpoint.uid_base, hidden=hidden, binds=(sidecar,), hosts=hosts), ()


def start_control(record: LabRecord) -> None:
    """Start control in its namespace; it answers a moment later."""
    plan = record.plan
    argv = [sys.executable, "-m", "ztdpu", "control", "run", "--config", str(plan.paths.control / CONTROL_FILE)]
    namespace = "" if record.fabric is Fabric.USERSPACE else plan.namespace("control")
    _start_outside(record, "control", argv, plan.paths.control_log, namespace=namespace)


def start_factory(record: LabRecord) -> None:
    """Start the factory; returns when every device can ask it. MachineError shows the end of its log."""
    plan = record.plan
    is_plain = record.fabric is Fabric.USERSPACE
    argv = [sys.executable, "-m", "ztdpu.lab.userspace.factory" if is_plain else "ztdpu.lab.factory", plan.state]
    waiting = [plan.paths.factory_socket(device.name) for device in plan.devices]
    waiting += [endpoint_tap(plan)] if is_plain else []
    _start_serving(record, "factory", argv, plan.paths.factory_log, waiting)
    if is_plain:  # the endpoints live in it
        record.processes |= dict.fromkeys((one.name for one in plan.endpoints), record.processes["factory"])
        record.write()


def start_wire(record: LabRecord) -> None:
    """Start what stands for the networks of a lab without privilege; returns when it relays."""
    plan = record.plan
    argv = [sys.executable, "-m", "ztdpu.lab.userspace.wire", plan.state, ground_of(plan).control]
    _start_serving(record, WIRE, argv, plan.paths.wire_log, [wire_tap(plan)])


def _start_serving(record: LabRecord, name: str, argv: Sequence[str], log: Path, sockets: Sequence[Path]) -> None:
    """Start a daemon and return when it has made its sockets. MachineError shows the end of its log."""
    for socket in sockets:
        socket.unlink(missing_ok=True)
    _start_outside(record, name, argv, log)
    deadline = time.monotonic() + _FACTORY_TIMEOUT_S
    while not all(path.exists() for path in sockets):
        if time.monotonic() > deadline or not processes.is_alive(record.processes[name]):
            raise MachineError(f"the {name} does not start\n{tail(log)}")
        time.sleep(0.005)


def start_agent(record: LabRecord, inhabitant: Inhabitant) -> None:
    """Start the agent of a device as a child of its first process."""
    environment = base_environment(record.plan.state)
    log = record.plan.paths.agent_log(inhabitant.name)
    inhabitant.start(agent_command(record.plan, inhabitant.name), environment=environment, log=log)


def start_plain_agent(record: LabRecord, device: str) -> None:
    """Start the agent of a device in a lab without privilege: there it is the first process of the device."""
    plan = record.plan
    _start_outside(record, device, agent_command(plan, device), plan.paths.agent_log(device))


def agent_command(plan: LabPlan, device: str) -> list[str]:
    """The command line of the agent of a device."""
    file = plan.paths.device(device) / AGENT_FILE
    return [sys.executable, "-m", "ztdpu", "agent", "run", "--config", str(file)]


def _start_outside(record: LabRecord, name: str, argv: Sequence[str], log: Path, *, namespace: str = "") -> None:
    """Start a daemon of host root (or of the one user): own session, own log, the lab's marker in its environment."""
    is_plain = record.fabric is Fabric.USERSPACE
    environment = own_environment(record.plan) if is_plain else base_environment(record.plan.state, home="/root")
    if namespace:
        with netns.inside(namespace):
            pid = processes.spawn_daemon(argv, environment, log)
    else:
        pid = processes.spawn_daemon(argv, environment, log)
    _remember(record, name, pid)
    record.write()


def _remember(record: LabRecord, name: str, pid: int) -> None:
    process = processes.identify(pid)
    if process is None:
        raise MachineError(f"{name} ended at once")
    record.processes[name] = process
